"""Clients on a Ray cluster.

``runtime`` is the runtime, which asks ``run_actors``, the actors of its run. They come from
``actor_pool``, which all runs of a process share. ``actor`` is what runs on the cluster, with a
``worker`` for every run; ``shipping`` brings it the data.
"""
