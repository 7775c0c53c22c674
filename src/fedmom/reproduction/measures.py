"""Measures of runs, seed by seed: final values, rounds to a target, areas; the best step size."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from fedmom.experiments.results import Result
from fedmom.experiments.seed_statistics import Interval, interval

LAST = 5  # evaluations that a final value is the mean of: one alone is noisy
TARGET = 0.95  # of the best mean final accuracy: what rounds are counted to


class Choice(NamedTuple):
    """The best γ of a grid, the next best, and whether a better one may lie beyond its end."""

    lr: float
    second: float | None
    at_edge: bool


@dataclass(frozen=True)
class Values:
    """One number for each seed."""

    of_seeds: Mapping[int, float]

    @property
    def interval(self) -> Interval:
        """The mean over seeds, with its confidence interval."""
        return interval(list(self.of_seeds.values()))

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return self.interval.mean

    def text(self, digits: int = 3) -> str:
        """Return the mean with its interval; a run that diverged has no loss."""
        return self.interval.text(digits)


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


def rounds_to(run: Result, accuracy: float) -> float:
    """Return the first evaluated round with this test accuracy; infinite: never."""
    reached = run.rounds_to(accuracy)
    return math.inf if reached is None else float(reached)


def best(grid: Mapping[float, Mapping[int, Result]]) -> Choice | None:
    """Return the γ with the lowest final training loss, in the mean over seeds.

    Counted are the seeds that have the whole grid, so that all step sizes meet the same
    cohorts. Of equal step sizes the smallest is taken. None: there is no such seed, or all runs
    diverged.
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


@dataclass(frozen=True)
class Measures:
    """A method in one setting, over its seeds."""

    runs: tuple[Result, ...]
    target: float  # the test accuracy that rounds are counted to

    @property
    def seeds(self) -> int:
        """How many there are."""
        return len(self.runs)

    @property
    def length(self) -> int:
        """T, the rounds of a run."""
        return self.runs[0].config.rounds

    @property
    def diverged(self) -> int:
        """How many of them diverged."""
        return sum(run.diverged for run in self.runs)

    @property
    def loss(self) -> Values:
        """Final training loss."""
        return self._of(final_loss)

    @property
    def accuracy(self) -> Values:
        """Final test accuracy."""
        return self._of(final_accuracy)

    @property
    def tenth(self) -> Values:
        """Final 10th percentile of the test accuracy over clients."""
        return self._of(lambda run: final_accuracy(run, "accuracy_p10"))

    @property
    def tenth_identical(self) -> Values:
        """The same percentile, if clients were identical."""
        return self._of(lambda run: final_accuracy(run, "accuracy_p10_identical"))

    @property
    def area(self) -> Values:
        """Mean training loss over the whole run."""
        return self._of(area)

    @property
    def rounds(self) -> Values:
        """Rounds to the target; infinite where a seed never reaches it."""
        return self._of(lambda run: rounds_to(run, self.target))

    @property
    def median_rounds(self) -> float:
        """Rounds to the target, the median over seeds; infinite: most never reach it."""
        return statistics.median_high(self.rounds.of_seeds.values())

    def rounds_text(self) -> str:
        """Return the rounds to the target."""
        return "never" if math.isinf(self.median_rounds) else f"{self.median_rounds:.0f}"

    def _of(self, number: Callable[[Result], float]) -> Values:
        return Values({run.config.seed: number(run) for run in self.runs})


def measure(methods: Mapping[str, Sequence[Result]]) -> dict[str, Measures]:
    """Measure methods that are compared: all against one target, which favours none of them."""
    present = {name: tuple(runs) for name, runs in methods.items() if runs}
    tops = [statistics.fmean(final_accuracy(r) for r in runs) for runs in present.values()]
    return {name: Measures(runs, TARGET * max(tops)) for name, runs in present.items()}


def windows(products: Sequence[float], length: int) -> tuple[list[float], list[float]]:
    """Return the last round of every stretch of rounds, and the mean over the stretch."""
    starts = range(0, len(products), length)
    parts = [products[i : i + length] for i in starts]
    ends = [float(min(i + length, len(products))) for i in starts]
    return ends, [statistics.fmean(part) for part in parts]


def positive(numbers: Sequence[float]) -> float:
    """Return the share of numbers that are greater than 0."""
    return sum(n > 0 for n in numbers) / len(numbers)
