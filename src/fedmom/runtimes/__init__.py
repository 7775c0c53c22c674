"""Where clients live. A runtime is asked and answers in blocks; ``base`` says how."""

import os
from typing import Any, NamedTuple

from fedmom.core.registry import Registry, options

RUNTIMES = Registry(
    "runtime",
    {
        "local": "fedmom.runtimes.local:LocalRuntime",
        "ray": "fedmom.runtimes.cluster.runtime:RayRuntime",
        "flower": "fedmom.runtimes.devices.runtime:DeviceRuntime",
        "torch": "fedmom.runtimes.pytorch.runtime:TorchRuntime",
    },
    returns="fedmom.runtimes.base:Runtime",
    takes=("workload",),
)
# The option that says how many cores a run has, where several runs go side by side.
CORES = {"local": "workers", "ray": "actors", "torch": "workers"}


class SideBySide(NamedTuple):
    """How many runs go side by side, and the options that give each of them its share of cores."""

    runs: int
    options: dict[str, Any]


def side_by_side(spec: str, runs: int) -> SideBySide:
    """Return how runs on a runtime share the cores: those of this machine, or of a cluster."""
    name = RUNTIMES.check(spec)
    cores = os.cpu_count() or 1
    if name == "ray":
        from fedmom.runtimes.cluster import connect

        given = options(RUNTIMES.find(spec), spec)
        ray = connect.connect(given.get("address"))
        cores = max(1, connect.room(ray, given.get("cpus", 1)))
    share = {CORES[name]: max(1, cores // runs)} if name in CORES else {}
    return SideBySide(min(cores, runs), share)
