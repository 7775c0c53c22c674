"""Where clients live. A runtime is asked and answers in blocks; ``base`` says how."""

import os

from fedmom.core.registry import Registry, options

RUNTIMES = Registry(
    "runtime",
    {
        "local": "fedmom.runtimes.local:local",
        "ray": "fedmom.runtimes.cluster.runtime:ray",
        "flower": "fedmom.runtimes.devices.runtime:flower",
    },
    returns="fedmom.runtimes.base:Runtime",
)


def cores(spec: str) -> int:
    """Return how many runs of one core each a runtime has room for: here, or on a cluster."""
    if RUNTIMES.check(spec) != "ray":
        return os.cpu_count() or 1
    from fedmom.runtimes.cluster import connect

    given = options(RUNTIMES.find(spec), spec)
    return max(1, connect.room(connect.connect(given.get("address")), given.get("cpus", 1)))
