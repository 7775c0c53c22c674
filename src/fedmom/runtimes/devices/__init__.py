"""Clients on real devices, reached through Flower: both ends of the wire."""
