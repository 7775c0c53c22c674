"""Clients that train in PyTorch, in processes of their own. Only ``runtime`` needs JAX."""
