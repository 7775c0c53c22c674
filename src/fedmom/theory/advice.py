"""What the theorems say of a step size, and which one experiments found best."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedmom import theory
from fedmom.core.errors import FedMomError
from fedmom.experiments import results
from fedmom.experiments.settings import RunConfig
from fedmom.theory.constants import Constants, Setting


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
class BestLr:
    """The step size with the best last test accuracy, as a mean over its seeds.

    Args:
        config: The settings of the best runs.
        accuracies: The accuracy of every γ tried with else the same settings, smallest γ first.
        seeds: How many seeds the best γ has.
        diverged: Every γ, else the same settings, of which all runs diverged.
    """

    config: RunConfig
    accuracies: dict[float, float]
    seeds: int
    diverged: tuple[float, ...] = ()

    @property
    def lr(self) -> float:
        """The best γ."""
        return max(self.accuracies, key=self.accuracies.__getitem__)

    @property
    def accuracy(self) -> float:
        """Its test accuracy."""
        return self.accuracies[self.lr]

    @property
    def rounds(self) -> int:
        """After how many rounds."""
        return self.config.rounds

    @property
    def tried(self) -> int:
        """How many γ were compared."""
        return len(self.accuracies)

    @property
    def neighbours(self) -> tuple[float | None, float | None]:
        """The nearest γ tried below and above, those that diverged among them."""
        others = {*self.accuracies, *self.diverged}
        below = max((lr for lr in others if lr < self.lr), default=None)
        return below, min((lr for lr in others if lr > self.lr), default=None)


def found_best(folder: Path, data: str, model: str, algorithm: str) -> BestLr | None:
    """Look through all finished runs below a folder with this data, model and algorithm.

    Runs are compared after as many rounds as the longest have; those that took another path
    (fewer rounds, or stopped) are left out, and so are those of another kind than the grid of
    constant γ that is looked for here (other weights, samplers or client optimizers, a γ that
    changes).
    """
    runs = [
        run
        for path in sorted(folder.rglob("config.toml"))
        if (run := _readable(path.parent)) is not None
        and (run.config.data, run.config.model, run.config.algorithm) == (data, model, algorithm)
        and _covered(run.config)
    ]
    rounds = max((r.config.rounds for r in runs if _last_accuracy(r) is not None), default=None)
    # By all other settings, then by γ: the accuracies of the seeds.
    families: dict[RunConfig, dict[float, list[float]]] = {}
    diverged: dict[RunConfig, set[float]] = {}
    for run in runs:
        if run.config.rounds != rounds:
            continue
        family, lr = _without_lr(run.config), float(run.config.lr)
        accuracy = _last_accuracy(run)
        if accuracy is not None:
            families.setdefault(family, {}).setdefault(lr, []).append(accuracy)
        elif run.diverged:
            diverged.setdefault(family, set()).add(lr)
    if not families:
        return None
    found = [_best_of(seeds, f, diverged.get(f, set())) for f, seeds in families.items()]
    return max(found, key=lambda best: best.accuracy)


def _best_of(by_lr: dict[float, list[float]], family: RunConfig, diverged: set[float]) -> BestLr:
    means = {lr: statistics.fmean(by_lr[lr]) for lr in sorted(by_lr)}
    best = max(means, key=means.__getitem__)
    config = family.model_copy(update={"lr": best})
    return BestLr(config, means, len(by_lr[best]), tuple(sorted(diverged - set(means))))


def _without_lr(config: RunConfig) -> RunConfig:
    """Return the settings with what runs of one grid may differ in put to one value."""
    same = {"lr": 1.0, "seed": 0, "runtime": "local", "tensorboard": False}
    return config.model_copy(update=same)


def _readable(path: Path) -> results.Result | None:
    """Return the run in a folder; None if it cannot be read, which is no reason not to advise."""
    try:
        return results.read(path)
    except FedMomError:
        return None


def _last_accuracy(run: results.Result) -> float | None:
    """Return the test accuracy after the last round, of a run that got there."""
    return next((a for t, a in run.curve("test", "accuracy") if t == run.config.rounds), None)


def _covered(config: RunConfig) -> bool:
    """Whether it is a plain run: SGD, a constant γ, population weights, uniform cohorts."""
    parts = (config.solver, config.aggregate, config.sampler, config.pace, config.weighting)
    plain = parts == ("sgd", "mean", "uniform", "synchronous", "population")
    return plain and config.average is None and not isinstance(config.lr, str)
