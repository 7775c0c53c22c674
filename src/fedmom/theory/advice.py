"""What the theorems say of a step size, and which one experiments found best."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fedmom import theory
from fedmom.config import RunConfig
from fedmom.errors import FedMomError
from fedmom.runs import RunFolder
from fedmom.theory.quantities import Constants, Setting


@dataclass(frozen=True)
class Statement:
    """A theorem applied: the largest γ it allows, and its bound there and at a γ of the user's.

    None where the theorem says nothing: η is not one it covers, or γ is too large.
    """

    name: str
    algorithm: str
    largest_lr: float | None
    bound: float | None
    bound_at: float | None = None


# The bound of a theorem at γ after T rounds, and its largest γ.
Bound = Callable[[Constants, Setting, float, int], float]
Largest = Callable[[Constants, Setting, int], float]
STATEMENTS: tuple[tuple[str, str, Largest, Bound], ...] = (
    (
        "Theorem 1 (paper)",
        "fedavg",
        lambda c, s, _t: theory.theorem1_max_lr(c, s),
        lambda c, s, lr, t: float(theory.theorem1(c, s, lr, t)),
    ),
    (
        "Corollary 2 (paper, η = 1)",
        "fedavg",
        lambda c, s, t: float(theory.corollary2_max_lr(c, replace(s, server_lr=1.0), t)),
        lambda c, s, lr, t: float(theory.theorem1(c, replace(s, server_lr=1.0), lr, t)),
    ),
    (
        "Theorem 2 (paper)",
        "fedmom",
        lambda c, s, t: float(theory.theorem2_max_lr(c, s, t)),
        lambda c, s, lr, t: float(theory.theorem2_at(c, s, lr, t)),
    ),
    (
        "Theorem 1' (corrected)",
        "fedavg",
        lambda c, s, _t: theory.corrected_fedavg_max_lr(c, s),
        lambda c, s, lr, t: float(theory.corrected_fedavg(c, s, lr, t)),
    ),
    (
        "Theorem 2' (corrected)",
        "fedmom",
        lambda c, s, _t: theory.corrected_fedmom_max_lr(c, s),
        lambda c, s, lr, t: float(theory.corrected_fedmom(c, s, lr, t)),
    ),
)


def statements(
    constants: Constants, setting: Setting, rounds: int, lr: float | None = None
) -> list[Statement]:
    """Return every theorem, applied; the paper's first."""
    return [_applied(*row, constants, setting, rounds, lr) for row in STATEMENTS]


def _applied(
    name: str,
    algorithm: str,
    largest_lr: Largest,
    bound: Bound,
    constants: Constants,
    setting: Setting,
    rounds: int,
    lr: float | None,
) -> Statement:
    own = setting if algorithm == "fedmom" else replace(setting, momentum=0.0)
    try:
        largest = largest_lr(constants, own, rounds)
    except FedMomError:  # η is outside [1, K/M], where the paper's theorems are silent
        return Statement(name, algorithm, None, None)
    if not largest > 0:
        return Statement(name, algorithm, largest, None)
    allowed = lr is not None and lr <= largest * (1 + 1e-9)
    at = bound(constants, own, lr, rounds) if lr is not None and allowed else None
    return Statement(name, algorithm, largest, bound(constants, own, largest, rounds), at)


def best(
    constants: Constants, setting: Setting, rounds: int, algorithm: str
) -> tuple[float, float]:
    """Return the γ at which the corrected bound is least, and that bound."""
    own = setting if algorithm == "fedmom" else replace(setting, momentum=0.0)
    lr = float(theory.corrected_best_lr(constants, own, rounds))
    return lr, float(theory.corrected_fedmom(constants, own, lr, rounds)) if lr > 0 else 0.0


@dataclass(frozen=True)
class Found:
    """The step size with the best last test accuracy, as a mean over its seeds."""

    lr: float | str
    accuracy: float
    rounds: int
    seeds: int
    tried: int  # step sizes


def found_best(folder: Path, data: str, model: str, algorithm: str) -> Found | None:
    """Look through all finished runs below a folder with this data, model and algorithm.

    Runs are compared after as many rounds as the longest have; those that took another path
    (fewer rounds, or stopped) are left out, and so are those that the theorems do not speak of
    (other weights, a γ that changes).
    """
    runs = [
        (config, accuracy)
        for config, accuracy in _finished(folder)
        if (config.data, config.model, config.algorithm) == (data, model, algorithm)
        and config.weighting == "population"
        and not isinstance(config.lr, str)
    ]
    if not runs:
        return None
    rounds = max(config.rounds for config, _ in runs)
    by_settings: dict[RunConfig, list[float]] = {}
    for config, accuracy in runs:
        if config.rounds == rounds:
            by_settings.setdefault(config.model_copy(update={"seed": 0}), []).append(accuracy)
    winner = max(by_settings, key=lambda config: statistics.fmean(by_settings[config]))
    accuracies = by_settings[winner]
    tried = len({config.lr for config in by_settings})
    return Found(winner.lr, statistics.fmean(accuracies), rounds, len(accuracies), tried)


def _finished(folder: Path) -> Iterator[tuple[RunConfig, float]]:
    """Yield the settings and last test accuracy of every run that reached its last round."""
    for path in sorted(folder.rglob("config.toml")):
        run = RunFolder.open(path.parent)
        config = run.settings()
        last = [
            row["accuracy"]
            for row in run.rows("evals.jsonl")
            if row["split"] == "test" and row["round"] == config.rounds
        ]
        if last:
            yield config, last[0]
