"""A user's arrays, tables and images -> a population of clients."""
