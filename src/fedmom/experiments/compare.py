"""Several algorithms on one task: from the same model, on the same cohorts and batches."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.experiments import settings
from fedmom.experiments.settings import RunConfig

ALGORITHMS = ("fedsgd", "fedavg", "fedmom")
# What a comparison without options shows a newcomer: the paper's character model on short roles, in
# minutes on a laptop, each algorithm at its own default lr. Everything else is the paper's setting
# (M=2, B=10, η=K/M, β=0.9). There are 1,970 test samples, 20 a role: all are evaluated.
DEFAULTS: dict[str, Any] = {
    "data": "shakespeare:roles=100,samples=1000",
    "rounds": 100,
    "eval-every": 10,
    "eval-samples": 2000,
}


def configs(
    values: Mapping[str, Any], algorithms: Mapping[str, str], seeds: int = 1
) -> dict[str, RunConfig]:
    """Return the settings of every run of a comparison, by the run's name.

    Args:
        values: The settings that all share; what an algorithm has no use for is left out.
        algorithms: The algorithms by name, with their options.
        seeds: Seeds of each algorithm, counted from that of ``values`` on.

    Examples:
        >>> list(configs({"seed": 4}, {"avg": "fedavg", "mom": "fedmom"}, seeds=2))
        ['avg_seed4', 'avg_seed5', 'mom_seed4', 'mom_seed5']
    """
    from fedmom.experiments.build import fitting  # loads JAX, which the defaults above need not

    if seeds < 1:
        raise FedMomError(f"--seeds {seeds} must be at least 1. Give 10, say.")
    found = {}
    for name, algorithm in algorithms.items():
        if name != Path(name).name:
            raise FedMomError(f"A run cannot be called {name!r}: its name is that of its folder.")
        own = fitting({**values, "algorithm": algorithm})
        first = settings.parse(own)
        if seeds == 1:
            found[name] = first
            continue
        for seed in range(first.seed, first.seed + seeds):
            found[f"{name}_seed{seed}"] = settings.parse({**own, "seed": seed})
    return found
