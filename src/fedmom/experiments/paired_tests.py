"""Runs of several seeds against each other: differences paired over seeds, as one family.

The p-values of all pairs are corrected together, also where only those with the best are shown:
which one is the best is known from the same runs, so choosing it is as good as having looked at
every pair. Corrected for the shown pairs alone, ten methods that are equal would have a false
finding in one of nine cases.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedmom.experiments import seed_statistics
from fedmom.experiments.results import Group, Result, ranked_by
from fedmom.experiments.seed_statistics import Difference, Finding

ALL_PAIRS = 3  # groups: of more, each is shown against the best only


@dataclass(frozen=True)
class Measure:
    """A number at the end of a run, by which methods are compared.

    Args:
        name: What it is called.
        split: The split it is measured on.
        key: Its name in the evaluations.
        better: 1 if higher is better, -1 if lower is.
        margin: Values this close are equal; None: equality is not asked for.
    """

    name: str
    split: str
    key: str
    better: int
    margin: float | None

    def of(self, run: Result) -> float | None:
        """Return a run's last number, the worst there is if it diverged, None before its end."""
        if run.diverged:
            return -self.better * math.inf
        return run.last(self.split, self.key) if run.finished else None

    def by_seed(self, group: Group) -> dict[int, float]:
        """Return the numbers of the runs that have ended, by seed."""
        values = ((run.config.seed, self.of(run)) for run in group.runs)
        return {seed: value for seed, value in values if value is not None}


ACCURACY = Measure("test accuracy", "test", "accuracy", 1, seed_statistics.MARGIN)
LOSS = Measure("training loss", "train", "loss", -1, None)


def ranking_measure(groups: Sequence[Group]) -> Measure:
    """Return the measure that runs are ranked by: their models' first metric, on test samples."""
    metric, better = ranked_by(groups)
    if metric == ACCURACY.key:
        return ACCURACY
    return Measure(f"test {metric}", "test", metric, better, None)


@dataclass(frozen=True)
class Pair:
    """One group less another.

    Args:
        ours: The first group's label.
        theirs: The second's.
        difference: The difference over seeds.
        p: Its p-value, corrected for all pairs; None with too few seeds.
        finding: What may be said of it.
    """

    ours: str
    theirs: str
    difference: Difference
    p: float | None
    finding: Finding


@dataclass(frozen=True)
class Family:
    """The pairs that are shown of one measure.

    Args:
        measure: What is compared.
        pairs: Those that are shown.
        best: The label of the group that all are compared with; None if all pairs are shown.
        tested: How many pairs the p-values are corrected for.
    """

    measure: Measure
    pairs: Sequence[Pair]
    best: str | None
    tested: int


def family(groups: Sequence[Group], measure: Measure, best: int | None = None) -> Family:
    """Compare groups with each other, or with the best if there are more than ALL_PAIRS.

    Args:
        groups: The runs; those of one group differ in their seed only.
        measure: What to compare.
        best: Which group to compare the others with, whatever their number. By default that
            with the best mean.

    Examples:
        >>> from fedmom.experiments.results import Result
        >>> from fedmom.experiments.settings import RunConfig
        >>> def run(seed, accuracy):
        ...     row = {"round": 1, "split": "test", "accuracy": accuracy}
        ...     return Result(None, RunConfig(rounds=1, seed=seed), [row])
        >>> old = Group("old", [run(0, 0.71), run(1, 0.74), run(2, 0.70)])
        >>> new = Group("new", [run(0, 0.81), run(1, 0.83), run(2, 0.81)])
        >>> (pair,) = family([old, new], ACCURACY).pairs
        >>> pair.ours, pair.finding
        ('new', <Finding.HIGHER: 'higher'>)
    """
    values = [measure.by_seed(group) for group in groups]
    pairs = [(ours, theirs) for ours in range(len(groups)) for theirs in range(ours)]
    raw = [seed_statistics.difference(values[ours], values[theirs]).p for ours, theirs in pairs]
    corrected = dict(zip(pairs, seed_statistics.holm(raw), strict=True))
    if best is None and len(groups) > ALL_PAIRS:
        best = _best(values, measure)
    if best is not None:
        pairs = [(ours, best) for ours in range(len(groups)) if ours != best]
    found = []
    for ours, theirs in pairs:
        apart = seed_statistics.difference(values[ours], values[theirs])
        p = corrected[max(ours, theirs), min(ours, theirs)]
        finding = apart.finding(p, measure.margin)
        found.append(Pair(groups[ours].label, groups[theirs].label, apart, p, finding))
    return Family(measure, found, None if best is None else groups[best].label, len(corrected))


def comparable(groups: Sequence[Group]) -> bool:
    """Whether there are several groups, some with several seeds, and all on the same data."""
    several = len(groups) > 1 and any(len(group.runs) > 1 for group in groups)
    return several and same_data(groups)


def same_data(groups: Sequence[Group]) -> bool:
    """Whether all runs are on the same data: differences to others mean nothing."""
    return len({run.config.data for group in groups for run in group.runs}) == 1


def _best(values: Sequence[dict[int, float]], measure: Measure) -> int:
    """Return the place of the best mean; a group with a run that diverged has the worst."""
    means = [seed_statistics.interval(list(each.values())).mean * measure.better for each in values]
    return max(range(len(means)), key=lambda i: -math.inf if math.isnan(means[i]) else means[i])
