"""Where clients live: each runtime answers ``replies(params, round, clients)``."""
