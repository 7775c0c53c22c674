"""PyTorch modules as JAX functions: their graphs, and the operations that these are made of.

A module is exported once, by ``export``, which needs torch. What it becomes is plain data, which
``graph`` runs with the operations of ``table``: without torch, on any machine.
"""
