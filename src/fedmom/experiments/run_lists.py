"""The runs that a comparison or a sweep consists of: their names and settings."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.files import slug
from fedmom.experiments import settings
from fedmom.experiments.settings import RunConfig, kebab

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


def of_comparison(
    values: Mapping[str, Any], algorithms: Mapping[str, str], seeds: int = 1
) -> dict[str, RunConfig]:
    """Return the settings of every run of a comparison, by the run's name.

    Args:
        values: The settings that all share; what an algorithm has no use for is left out.
        algorithms: The algorithms by name, with their options.
        seeds: Seeds of each algorithm, counted from that of ``values`` on.

    Examples:
        >>> list(of_comparison({"seed": 4}, {"avg": "fedavg", "mom": "fedmom"}, seeds=2))
        ['avg_seed4', 'avg_seed5', 'mom_seed4', 'mom_seed5']
    """
    from fedmom.experiments.defaults import fitting  # loads JAX, which DEFAULTS need not

    if seeds < 1:
        raise FedMomError(f"--seeds {seeds} must be at least 1. Give 10, say.")
    found = {}
    for name, algorithm in algorithms.items():
        if name != Path(name).name:
            raise FedMomError(f"A run cannot be called {name!r}: its name is that of its folder.")
        own = fitting({**values, "algorithm": algorithm})
        first = settings.parse(own)
        for seed in range(first.seed, first.seed + seeds):
            run = name if seeds == 1 else f"{name}_seed{seed}"
            found[run] = settings.parse({**own, "seed": seed})
    return found


def of_sweep(shared: Mapping[str, Any], grid: Mapping[str, list[Any]]) -> dict[str, RunConfig]:
    """Return the settings of every run of a grid, by the run's name: algorithm-lr0.1-seed2.

    Settings that an algorithm has no use for are left out, and what is then equal is one run.
    """
    from fedmom.experiments.defaults import fitting

    _check_grid(grid)
    configs: dict[str, RunConfig] = {}
    for combination in itertools.product(*grid.values()):
        chosen = dict(zip(grid, combination, strict=True))
        own = fitting({**shared, **chosen})
        config = settings.parse(own)
        if config in configs.values():
            continue
        varied = {k: v for k, v in chosen.items() if k in own}
        parts = [str(v) if k == "algorithm" else f"{k}{v}" for k, v in varied.items()]
        name = slug("_".join(parts) or "run", keep="-_.=")
        if name in configs:
            raise FedMomError(f"Two runs of the grid would be called {name}. Write values apart.")
        configs[name] = config
    return configs


def _check_grid(grid: Any) -> None:
    if not isinstance(grid, Mapping):
        raise FedMomError(
            f"grid = {grid!r} is not a table of lists. Write [grid] and lr = [0.01, 0.1] below it."
        )
    known = [kebab(name) for name in RunConfig.model_fields]
    for key, values in grid.items():
        if key not in known:
            raise FedMomError(
                f"There is no setting {key!r} to vary. Settings: {', '.join(sorted(known))}."
            )
        if not isinstance(values, list) or not values:
            raise FedMomError(f"grid: {key} = {values!r} must be a list of one value or more.")
