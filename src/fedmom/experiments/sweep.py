"""A grid of settings: the runs that it stands for, and their seeds taken together."""

import itertools
from collections.abc import Mapping
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.files import slug
from fedmom.experiments import build, settings
from fedmom.experiments.results import Group, Result
from fedmom.experiments.settings import RunConfig, kebab


def cells(shared: Mapping[str, Any], grid: Mapping[str, list[Any]]) -> dict[str, RunConfig]:
    """Return the settings of every run of a grid, by the run's name.

    Settings that an algorithm has no use for are left out, and what is then equal is one run.
    """
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
    configs: dict[str, RunConfig] = {}
    for combination in itertools.product(*grid.values()):
        chosen = dict(zip(grid, combination, strict=True))
        fitting = build.fitting({**shared, **chosen})
        config = settings.parse(fitting)
        if config in configs.values():
            continue
        name = _name({k: v for k, v in chosen.items() if k in fitting})
        if name in configs:
            raise FedMomError(f"Two runs of the grid would be called {name}. Write values apart.")
        configs[name] = config
    return configs


def groups(results: Mapping[str, Result]) -> list[Group]:
    """Return the runs of a sweep by name, seeds taken together."""
    together: dict[str, list[Result]] = {}
    for name, run in results.items():
        parts = (part for part in name.split("_") if part != f"seed{run.config.seed}")
        together.setdefault("_".join(parts) or "run", []).append(run)
    return [Group(label, runs) for label, runs in together.items()]


def _name(chosen: Mapping[str, Any]) -> str:
    """Return a run's name, which is its folder: algorithm-lr0.1-seed2."""
    parts = [str(v) if k == "algorithm" else f"{k}{v}" for k, v in chosen.items()]
    return slug("_".join(parts) or "run", keep="-_.=")
