"""Simulated worlds: which clients are there, how fast they are, and how they fail."""

from fedmom.core.registry import Registry

WORLDS = Registry(
    "world",
    {
        name: f"fedmom.world.parts:{name}"
        for name in (
            *("online", "diurnal", "outages", "trace"),
            *("speed", "network", "capacity", "pause"),
            *("dropout", "partial", "deadline", "reweighed"),
        )
    },
    returns="fedmom.world.base:World",
    takes=(),
)
