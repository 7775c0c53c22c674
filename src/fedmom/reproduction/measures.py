"""Measures of runs, seed by seed: final values, rounds to a target, areas; two methods compared."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from fedmom.experiments.results import Result
from fedmom.experiments.seed_statistics import MARGIN, Finding, Pair, difference, holm, interval
from fedmom.reproduction.plan import NAMES

LAST = 5  # evaluations that a final value is the mean of: one alone is noisy
TARGET = 0.95  # of the best mean final accuracy: what rounds are counted to
COMPARED = ("accuracy", "loss", "area", "rounds")


class Choice(NamedTuple):
    """The best γ of a grid, the next best, and whether a better one may lie beyond its end."""

    lr: float
    second: float | None
    at_edge: bool


def final_loss(run: Result) -> float:
    """Return the training loss at the end; infinite for a run that diverged."""
    return math.inf if run.diverged else _late(run, "train", "loss")


def final_accuracy(run: Result, key: str = "accuracy") -> float:
    """Return the test accuracy at the end; 0 for a run that diverged, which left no model."""
    return 0.0 if run.diverged else _late(run, "test", key)


def _late(run: Result, split: str, key: str) -> float:
    """Return the mean of the last evaluations, that of the untrained model left out."""
    rows = [row for row in run.evals if row["split"] == split and row["round"] > 0]
    # A log of an earlier version lacks what is measured since.
    return statistics.fmean(row.get(key, math.nan) for row in rows[-LAST:])


def area(run: Result) -> float:
    """Return the area under the training loss over the rounds, divided by the rounds."""
    if run.diverged:
        return math.inf
    curve = run.curve("train", "loss")
    parts = ((b - a) * (x + y) / 2 for (a, x), (b, y) in pairwise(curve))
    return sum(parts) / (curve[-1][0] - curve[0][0])


def best(grid: Mapping[float, Mapping[int, Result]]) -> Choice | None:
    """Return the γ with the lowest final training loss, averaged over seeds.

    Only seeds that have the whole grid count, so that all learning rates meet the same cohorts.
    Ties go to the smallest γ. None: there is no such seed, or all runs diverged.
    """
    seeds = sorted({seed for runs in grid.values() for seed in runs})
    whole = [s for s in seeds if all(s in runs for runs in grid.values())]
    losses = {
        lr: statistics.fmean(final_loss(runs[s]) for s in whole)
        for lr, runs in sorted(grid.items())
        if whole
    }
    ranked = sorted((lr for lr in losses if math.isfinite(losses[lr])), key=lambda lr: losses[lr])
    if not ranked:
        return None
    at_edge = len(grid) > 1 and ranked[0] in (min(grid), max(grid))
    return Choice(ranked[0], ranked[1] if len(ranked) > 1 else None, at_edge)


# What is measured of a run; the target is the test accuracy that rounds are counted to.
MEASURES: Mapping[str, Callable[[Result, float], float]] = {
    "loss": lambda run, _target: final_loss(run),
    "accuracy": lambda run, _target: final_accuracy(run),
    "p10": lambda run, _target: final_accuracy(run, "accuracy_p10"),
    "p10_identical": lambda run, _target: final_accuracy(run, "accuracy_p10_identical"),
    "area": lambda run, _target: area(run),
    "rounds": lambda run, goal: math.inf if (r := run.rounds_to(goal)) is None else float(r),
}


@dataclass(frozen=True)
class Measures:
    """A method in one setting, over its seeds."""

    runs: tuple[Result, ...]
    target: float

    @property
    def length(self) -> int:
        """T, the rounds of a run."""
        return self.runs[0].config.rounds

    @property
    def median_rounds(self) -> float:
        """Rounds to the target, the median over seeds; infinite: most never reach it."""
        return statistics.median_high(self.by_seed("rounds").values())

    def by_seed(self, name: str) -> dict[int, float]:
        """Return one of ``MEASURES`` for every seed."""
        return {run.config.seed: MEASURES[name](run, self.target) for run in self.runs}

    def mean(self, name: str) -> float:
        """Return the mean of a measure over seeds."""
        return interval(list(self.by_seed(name).values())).mean

    def text(self, name: str, digits: int = 3) -> str:
        """Return the mean of a measure with its interval; for rounds, the median."""
        if name == "rounds":
            return "never" if math.isinf(self.median_rounds) else f"{self.median_rounds:.0f}"
        return interval(list(self.by_seed(name).values())).text(digits)

    def seeds_text(self) -> str:
        """Return the number of seeds, and how many diverged."""
        text = f"{len(self.runs)} seed{'s' if len(self.runs) != 1 else ''}"
        diverged = sum(run.diverged for run in self.runs)
        return text + (f", {diverged} diverged" if diverged else "")


def measure(methods: Mapping[str, Sequence[Result]]) -> dict[str, Measures]:
    """Measure methods that are compared: all against one target, which favours none of them."""
    present = {name: tuple(runs) for name, runs in methods.items() if runs}
    tops = [statistics.fmean(final_accuracy(r) for r in runs) for runs in present.values()]
    return {name: Measures(runs, TARGET * max(tops)) for name, runs in present.items()}


def windows(products: Sequence[float], length: int) -> tuple[list[float], list[float]]:
    """Return the last round of every stretch of rounds, and the mean over the stretch."""
    starts = range(0, len(products), length)
    ends = [float(min(i + length, len(products))) for i in starts]
    return ends, [statistics.fmean(products[i : i + length]) for i in starts]


def positive(numbers: Sequence[float]) -> float:
    """Return the share of numbers that are greater than 0."""
    return sum(n > 0 for n in numbers) / len(numbers)


@dataclass(frozen=True)
class Contest:
    """Methods that are compared in one setting, each at its learning rate."""

    where: str
    choices: Mapping[str, Choice]  # by algorithm
    measures: Mapping[str, Measures]

    @property
    def target(self) -> float:
        """The test accuracy that rounds are counted to."""
        return next(iter(self.measures.values())).target


@dataclass(frozen=True)
class Duel:
    """Two methods: their measures, and the first minus the second."""

    where: str
    ours: str  # algorithms
    theirs: str
    a: Measures
    b: Measures
    found: Mapping[str, Pair]  # by measure

    def is_(self, measure: str, finding: Finding) -> bool:
        """Return whether this is what a measure shows."""
        return self.found[measure].finding == finding

    @property
    def seeds(self) -> int:
        """How many seeds both have."""
        return self.found["accuracy"].difference.interval.seeds

    def difference(self, measure: str) -> str:
        """Return the difference with its interval and corrected p-value."""
        pair = self.found[measure]
        shown = pair.difference.interval.text(sign=True)
        return shown if pair.p is None else f"{shown}, p {pair.p:.2g}"

    def text(self) -> str:
        """Return all measures in words."""
        parts = [
            f"{name} {self.a.mean(name):.3f} vs {self.b.mean(name):.3f},"
            f" difference {self.difference(name)}"
            for name in ("accuracy", "loss", "area")
        ]
        p = self.found["rounds"].p
        parts.append(
            f"median rounds to {self.a.target:.3f} {self.a.text('rounds')} vs"
            f" {self.b.text('rounds')}{'' if p is None else f', p {p:.2g}'}"
        )
        parts.append(f"seeds {self.seeds}")
        return f"{NAMES[self.ours]} against {NAMES[self.theirs]}: {'; '.join(parts)}"


def duels(contests: Sequence[Contest], ours: str = "fedmom", theirs: str = "fedavg") -> list[Duel]:
    """Compare two methods in several contests, as one family.

    P-values are corrected over the contests by Holm's method, measure by measure. Only the
    rounds that both methods have count, with a target of the two alone. Contests that lack one
    of them, or an evaluation of both in these rounds, are left out.
    """
    sides = [side for contest in contests if (side := _sides(contest, ours, theirs)) is not None]
    found: list[dict[str, Pair]] = [{} for _ in sides]
    for name in COMPARED:
        margin = MARGIN if name == "accuracy" else None
        apart = [difference(a.by_seed(name), b.by_seed(name)) for _, a, b in sides]
        for pairs, each, p in zip(found, apart, holm([each.p for each in apart]), strict=True):
            pairs[name] = Pair(ours, theirs, each, p, each.finding(p, margin))
    return [
        Duel(where, ours, theirs, a, b, pairs)
        for (where, a, b), pairs in zip(sides, found, strict=True)
    ]


def _sides(contest: Contest, ours: str, theirs: str) -> tuple[str, Measures, Measures] | None:
    if not {ours, theirs} <= contest.measures.keys():
        return None
    measured = {m: contest.measures[m] for m in (ours, theirs)}
    length = min(side.length for side in measured.values())
    where = contest.where
    if any(side.length > length for side in measured.values()):
        where += f", first {length} rounds"
    runs = {m: [run.until(length) for run in side.runs] for m, side in measured.items()}
    each = [run for side in runs.values() for run in side]
    if not all(run.diverged or run.evals[-1]["round"] > 0 for run in each):
        return None
    a, b = measure(runs).values()
    return where, a, b
