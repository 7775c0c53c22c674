"""Measures of runs: final values, rounds to a target, areas, and the best step size."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from fedmom.experiments.results import Result

LAST = 5  # evaluations that a final value is the mean of: one alone is noisy
TARGET = 0.95  # of the best mean final accuracy: what rounds are counted to
ALONE = 0.05  # of the larger value: what counts as noise where there is one seed only


class Choice(NamedTuple):
    """The best γ of a grid, the next best, and whether a better one may lie beyond its end."""

    lr: float
    second: float | None
    at_edge: bool


@dataclass(frozen=True)
class Values:
    """One number for each seed."""

    of_seeds: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.of_seeds)

    @property
    def spread(self) -> float:
        """The largest less the smallest; infinite where a seed is."""
        low, high = min(self.of_seeds), max(self.of_seeds)
        return math.inf if math.isinf(high) else high - low

    def text(self, digits: int = 3) -> str:
        """Return the mean, with the range over seeds where there are several."""
        if len(self.of_seeds) == 1 or math.isinf(self.mean):
            return number(self.mean, digits)
        low, high = (number(v, digits) for v in (min(self.of_seeds), max(self.of_seeds)))
        return f"{number(self.mean, digits)} ({low}–{high})"


def number(value: float, digits: int = 3) -> str:
    """Return a number as text; a run that diverged has none."""
    return "diverged" if math.isinf(value) else f"{value:.{digits}f}"


def final_loss(run: Result) -> float:
    """Return the training loss at the end; infinite for a run that diverged."""
    return math.inf if run.diverged else _late(run, "train", "loss")


def final_accuracy(run: Result, key: str = "accuracy") -> float:
    """Return the test accuracy at the end; 0 for a run that diverged, which left no model."""
    return 0.0 if run.diverged else _late(run, "test", key)


def _late(run: Result, split: str, key: str) -> float:
    """Return the mean of the last evaluations, that of the untrained model left out."""
    trained = [value for round_, value in run.curve(split, key) if round_ > 0]
    return statistics.fmean(trained[-LAST:])


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
        return values(final_loss(run) for run in self.runs)

    @property
    def accuracy(self) -> Values:
        """Final test accuracy."""
        return values(final_accuracy(run) for run in self.runs)

    @property
    def tenth(self) -> Values:
        """Final 10th percentile of the test accuracy over clients."""
        return values(final_accuracy(run, "accuracy_p10") for run in self.runs)

    @property
    def area(self) -> Values:
        """Mean training loss over the whole run."""
        return values(area(run) for run in self.runs)

    @property
    def rounds(self) -> float:
        """Rounds to the target, the median over seeds; infinite: most never reach it."""
        return statistics.median_high(rounds_to(run, self.target) for run in self.runs)

    def rounds_text(self) -> str:
        """Return the rounds to the target."""
        return "never" if math.isinf(self.rounds) else f"{self.rounds:.0f}"


def values(of_seeds: Iterable[float]) -> Values:
    """Return one number for each seed."""
    return Values(tuple(of_seeds))


def measure(methods: Mapping[str, Sequence[Result]]) -> dict[str, Measures]:
    """Measure methods that are compared: all against one target, which favours none of them."""
    present = {name: tuple(runs) for name, runs in methods.items() if runs}
    tops = [values(final_accuracy(r) for r in runs).mean for runs in present.values()]
    return {name: Measures(runs, TARGET * max(tops)) for name, runs in present.items()}


def lower(ours: Values, theirs: Values) -> int:
    """Compare where less is better: 1 ours, -1 theirs, 0 no clear difference.

    A difference is clear if it is larger than the larger of the two spreads over seeds; where
    a side has one seed only, larger than 5 % of the larger value.
    """
    if math.isinf(ours.mean) or math.isinf(theirs.mean):
        return int(math.isinf(theirs.mean)) - int(math.isinf(ours.mean))
    if min(len(ours.of_seeds), len(theirs.of_seeds)) > 1:
        noise = max(ours.spread, theirs.spread)
    else:
        noise = ALONE * max(abs(ours.mean), abs(theirs.mean))
    gap = theirs.mean - ours.mean
    return 0 if abs(gap) <= noise else int(math.copysign(1, gap))


def higher(ours: Values, theirs: Values) -> int:
    """Compare, by the same rule, where more is better."""
    return lower(theirs, ours)


def windows(products: Sequence[float], length: int) -> tuple[list[float], list[float]]:
    """Return the last round of every stretch of rounds, and the mean over the stretch."""
    starts = range(0, len(products), length)
    parts = [products[i : i + length] for i in starts]
    ends = [float(min(i + length, len(products))) for i in starts]
    return ends, [statistics.fmean(part) for part in parts]


def positive(numbers: Sequence[float]) -> float:
    """Return the share of numbers that are greater than 0."""
    return sum(n > 0 for n in numbers) / len(numbers)
