"""Comparisons over seeds: paired differences, their intervals, and what they show.

Two runs of one seed draw the same cohorts and start from the same model, so methods are compared
by their difference within each seed. Intervals and p-values are those of Student's t, or of the
sign test where t has no meaning.

The p-values of all pairs are corrected together, also where only those with the best are shown:
which one is the best is known from the same runs, so choosing it is as good as having looked at
every pair. Corrected for the shown pairs alone, ten methods that are equal would have a false
finding in one of nine cases.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy.special import bdtr, stdtr, stdtrit  # scipy.stats has the same, and loads for a second

from fedmom.experiments.results import Group, Result, ranked_by

LEVEL = 0.95  # of every interval
PERCENT = f"{100 * LEVEL:.0f} %"  # the same in tables and captions
MARGIN = 0.01  # two accuracies within it are equal for all that users care
FEWEST = 3  # seeds: with fewer, an interval of the t distribution says next to nothing
ALL_PAIRS = 3  # groups: of more, each is shown against the best only
ROUNDING = 1e-12  # relative: differences this close together are the same one


class Finding(StrEnum):
    """What a comparison over seeds shows."""

    HIGHER = "higher"
    LOWER = "lower"
    EQUAL = "equal"
    OPEN = "not settled"
    TOO_FEW = "not enough seeds"


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its confidence interval.

    Args:
        mean: The mean; infinite where a run diverged, and not a number without seeds.
        low: The lower end; None with one seed, or where a run diverged.
        high: The upper end, likewise.
        seeds: How many seeds there are.

    Examples:
        >>> interval([1.0, 2.0, 3.0]).text(2)
        '2.00 (-0.48 to 4.48)'
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def half(self) -> float | None:
        """Half its width; None where there is none, or seeds are too few for a useful one."""
        if self.high is None or self.seeds < FEWEST:
            return None
        return self.high - self.mean

    def text(self, digits: int = 3, sign: bool = False) -> str:
        """Return the mean and the interval."""
        form = f"{'+' if sign else ''}.{digits}f"
        if math.isnan(self.mean):
            return "–"
        if math.isinf(self.mean):
            return "diverged"
        if self.low is None or self.high is None:
            return f"{self.mean:{form}}"
        return f"{self.mean:{form}} ({self.low:{form}} to {self.high:{form}})"


@dataclass(frozen=True)
class Difference:
    """One method less another, seed by seed.

    Args:
        interval: The mean difference and its interval.
        p: The p-value of "there is no difference"; None if there are too few seeds.
    """

    interval: Interval
    p: float | None

    def finding(self, adjusted: float | None, margin: float | None = MARGIN) -> Finding:
        """Return what the comparison shows.

        A significant difference is reported as one, however small: its interval says how small.
        Equality is a statement about each pair alone, by its own interval.

        Args:
            adjusted: The p-value, corrected for the other comparisons of its family.
            margin: Values this close are equal: so is a pair whose interval lies within it, if
                no difference is shown. None: equality is not asked for.
        """
        if adjusted is None or self.interval.seeds < FEWEST:
            return Finding.TOO_FEW
        if adjusted < 1 - LEVEL:
            return Finding.HIGHER if self.interval.mean > 0 else Finding.LOWER
        low, high = self.interval.low, self.interval.high
        if margin is None or low is None or high is None:
            return Finding.OPEN
        return Finding.EQUAL if -margin < low and high < margin else Finding.OPEN


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of values, one for each seed, with its interval.

    Args:
        values: One for each seed. One that is infinite makes the mean so, without an interval.
    """
    count = len(values)
    if not count:
        return Interval(math.nan, None, None, 0)
    if count == 1 or not all(map(math.isfinite, values)):
        return Interval(sum(values) / count, None, None, count)
    mean = statistics.fmean(values)
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * _deviation(values, mean) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference:
    """Compare values by seed, over the seeds that both have.

    The p-value is that of the t test, or of the sign test where that one has no meaning: where a
    value is infinite (a run that diverged has no loss), so that there is no mean difference to
    speak of, and where the difference is the same for every seed, so that it has no spread.

    Args:
        ours: Values of one method, by seed.
        theirs: Values of the other.

    Examples:
        >>> found = difference({0: 0.81, 1: 0.83, 2: 0.82}, {0: 0.78, 1: 0.79, 2: 0.79})
        >>> found.interval.text(3, sign=True)
        '+0.033 (+0.019 to +0.048)'
        >>> found.finding(found.p)
        <Finding.HIGHER: 'higher'>
    """
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    if not all(math.isfinite(value) for pair in pairs for value in pair):
        above, below = _signs(pairs)
        mean = math.copysign(math.inf, above - below) if above != below else math.nan
        p = _sign_test(pairs) if len(pairs) > 1 else None
        return Difference(Interval(mean, None, None, len(pairs)), p)
    apart = [a - b for a, b in pairs]
    found = interval(apart)
    if len(pairs) < 2:
        return Difference(found, None)
    deviation = _deviation(apart, found.mean)
    if deviation <= ROUNDING * max(abs(value) for pair in pairs for value in pair):
        return Difference(found, _sign_test(pairs))
    t = found.mean * math.sqrt(len(apart)) / deviation
    return Difference(found, float(2 * stdtr(len(apart) - 1, -abs(t))))


def _deviation(values: Sequence[float], mean: float) -> float:
    """Return the standard deviation. The one of Python's library takes a hundred times as long."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _signs(pairs: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """Return how many pairs have the first value above the second, and how many below."""
    return sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)


def _sign_test(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the two-sided p-value of "above is as likely as below"; ties do not count."""
    above, below = _signs(pairs)
    return min(1.0, float(2 * bdtr(min(above, below), above + below, 0.5)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct the p-values of a family by Holm's method; None stays None and does not count.

    Args:
        p_values: One for each comparison of the family.

    Returns:
        What to compare with 1 - LEVEL instead.

    Examples:
        >>> holm([0.01, None, 0.04, 0.03])
        [0.03, None, 0.06, 0.06]
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    worst = 0.0
    for rank, (p, place) in enumerate(known):
        worst = max(worst, min(1.0, p * (len(known) - rank)))
        adjusted[place] = worst
    return adjusted


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
        return run.last_if_any(self.split, self.key) if run.finished else None

    def by_seed(self, group: Group) -> dict[int, float]:
        """Return the numbers of the runs that have ended, by seed."""
        values = ((run.config.seed, self.of(run)) for run in group.runs)
        return {seed: value for seed, value in values if value is not None}


ACCURACY = Measure("test accuracy", "test", "accuracy", 1, MARGIN)
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
    raw = [difference(values[ours], values[theirs]).p for ours, theirs in pairs]
    corrected = dict(zip(pairs, holm(raw), strict=True))
    if best is None and len(groups) > ALL_PAIRS:
        best = _best(values, measure)
    if best is not None:
        pairs = [(ours, best) for ours in range(len(groups)) if ours != best]
    found = []
    for ours, theirs in pairs:
        apart = difference(values[ours], values[theirs])
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
    means = [interval(list(each.values())).mean * measure.better for each in values]
    return max(range(len(means)), key=lambda i: -math.inf if math.isnan(means[i]) else means[i])
