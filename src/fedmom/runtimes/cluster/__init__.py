"""Clients on a Ray cluster.

``runtime`` is the runtime. It asks the actors of its run (``actors``), which all runs of a process
share. ``actor`` is what runs on the cluster, with a ``worker`` for every run; ``shipping`` brings
it the data.
"""
