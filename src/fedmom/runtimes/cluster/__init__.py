"""Clients on a Ray cluster. ``runtime`` is the runtime; the rest is what it is made of."""
