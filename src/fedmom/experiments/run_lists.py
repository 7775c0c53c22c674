"""The runs that a comparison or a sweep consists of: their names and settings."""

import itertools
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.files import slug
from fedmom.experiments import settings
from fedmom.experiments.ours import is_ours
from fedmom.experiments.settings import RunConfig, kebab

NO_NAME_SIGNS = '/\\:*?"<>|'
MOST_SEEDS = 10_000
LONGEST_NAME = 200  # bytes: systems allow 255, and a file may have a longer name next to it
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


def by_name(algorithms: Iterable[str]) -> dict[str, str]:
    """Return algorithms by the names of their runs, which are made of their texts.

    Examples:
        >>> by_name(["fedavg", "fedadam:tau=0.1"])
        {'fedavg': 'fedavg', 'fedadam-tau-0.1': 'fedadam:tau=0.1'}
    """
    found: dict[str, str] = {}
    for algorithm in algorithms:
        if (name := slug(algorithm)) in found:
            raise FedMomError(
                f"algorithms: {found[name]} and {algorithm} are two runs of the name {name}. Leave"
                " one out, or name them: compare({'first': ..., 'second': ...}) in Python."
            )
        found[name] = algorithm
    return found


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

    if not 1 <= seeds <= MOST_SEEDS:
        raise FedMomError(f"--seeds {seeds} must be from 1 to {MOST_SEEDS:,}. Give 10, say.")
    found = {}
    for name, algorithm in algorithms.items():
        own = fitting({**values, "algorithm": algorithm})
        first = settings.parse(own)
        for seed in range(first.seed, first.seed + seeds):
            run = name if seeds == 1 else f"{name}_seed{seed}"
            found[run] = settings.parse({**own, "seed": seed})
    check_names(found)
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
    check_names(configs)
    return configs


def check_names(names: Iterable[str]) -> None:
    """Refuse names of runs that cannot be names of folders next to each other, on any system."""
    seen: dict[str, str] = {}
    for name in names:
        wrong = ""
        if not name or not name.isprintable() or any(c in name for c in NO_NAME_SIGNS):
            wrong = f"Use printable characters other than {NO_NAME_SIGNS}"
        elif name[0] in ". " or name[-1] in ". ":
            wrong = "It must not begin or end with a dot or a space"
        elif len(name.encode()) > LONGEST_NAME:
            wrong = f"It must have at most {LONGEST_NAME} bytes"
        elif is_ours(name):
            wrong = "FedMom has a file of this name there"
        elif (other := seen.setdefault(_on_some_systems(name), name)) != name:
            wrong = f"On some systems {other!r} is the same"
        if wrong:
            shown = repr(name) if len(name) <= LONGEST_NAME else f"{name[:40]!r}..."
            raise FedMomError(
                f"A run cannot be called {shown}: its name is that of its folder. {wrong}."
            )


def _on_some_systems(name: str) -> str:
    """Return what a name is where letters may be of either case, and accents stored apart."""
    return unicodedata.normalize("NFC", name).casefold()


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
