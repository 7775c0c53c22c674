"""Two methods in one setting, compared seed by seed, and families of such comparisons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedmom.experiments.seed_statistics import MARGIN, Difference, Finding, difference, holm
from fedmom.reproduction.findings import Contest
from fedmom.reproduction.measures import Measures, Values, measure
from fedmom.reproduction.plan import NAMES

Pair = tuple[str, str, str, Measures, Measures]  # where, two algorithms, and their measures
COMPARED = ("accuracy", "loss", "area", "rounds")


@dataclass(frozen=True)
class MeasuredDifference:
    """One measure of a duel: the difference over seeds, and what may be said of it."""

    difference: Difference
    adjusted: float | None  # the p-value, corrected for the family
    finding: Finding

    def text(self, digits: int = 3) -> str:
        """Return the difference with its interval and corrected p-value."""
        shown = self.difference.interval.text(digits, sign=True)
        return shown if self.adjusted is None else f"{shown}, p {self.adjusted:.2g}"


@dataclass(frozen=True)
class MeasuredDuel:
    """Two methods: their measures, and the first less the second."""

    where: str
    ours: str  # algorithms
    theirs: str
    a: Measures
    b: Measures
    found: Mapping[str, MeasuredDifference]  # by measure

    def is_(self, measure: str, finding: Finding) -> bool:
        """Whether this is what a measure shows."""
        return self.found[measure].finding == finding

    @property
    def seeds(self) -> int:
        """How many seeds both have."""
        return self.found["accuracy"].difference.interval.seeds

    def text(self) -> str:
        """Return all measures in words."""
        names = f"{NAMES[self.ours]} against {NAMES[self.theirs]}"
        parts = [
            f"{name} {_mean(getattr(self.a, name))} vs {_mean(getattr(self.b, name))},"
            f" difference {self.found[name].text()}"
            for name in ("accuracy", "loss", "area")
        ]
        rounds = f"{self.a.rounds_text()} vs {self.b.rounds_text()}"
        target = f"median rounds to {self.a.target:.3f} {rounds}"
        p = self.found["rounds"].adjusted
        target += "" if p is None else f", p {p:.2g}"
        return f"{names}: {'; '.join([*parts, target])}; seeds {self.seeds}"


def duels(pairs: Sequence[tuple[Contest, str, str]]) -> list[MeasuredDuel]:
    """Compare two methods in several contests, as one family.

    P-values are corrected over the contests by Holm's method, measure by measure. Only the
    rounds that both methods have count, with a target of the two alone.

    Args:
        pairs: Contests with two algorithms each. Left out are those that have not both, or no
            evaluation of both in these rounds.
    """
    there = [pair for pair in pairs if {pair[1], pair[2]} <= pair[0].entries.keys()]
    sides = [side for pair in there if (side := _sides(*pair)) is not None]
    found = {name: _family(name, [(a, b) for *_, a, b in sides]) for name in COMPARED}
    return [
        MeasuredDuel(*side, found={name: found[name][place] for name in COMPARED})
        for place, side in enumerate(sides)
    ]


def _family(name: str, pairs: Sequence[tuple[Measures, Measures]]) -> list[MeasuredDifference]:
    """Return what one measure shows in every contest."""
    margin = MARGIN if name == "accuracy" else None
    apart = [difference(getattr(a, name).of_seeds, getattr(b, name).of_seeds) for a, b in pairs]
    adjusted = holm([each.p for each in apart])
    return [
        MeasuredDifference(each, p, each.finding(p, margin))
        for each, p in zip(apart, adjusted, strict=True)
    ]


def _sides(contest: Contest, ours: str, theirs: str) -> Pair | None:
    measured = [contest.entries[m].measures for m in (ours, theirs)]
    length = min(side.length for side in measured)
    where = contest.where
    if any(side.length > length for side in measured):
        where += f", first {length} rounds"
    runs = {
        m: [run.until(length) for run in side.runs]
        for m, side in zip((ours, theirs), measured, strict=True)
    }
    each = [run for side in runs.values() for run in side]
    if not all(run.diverged or run.evals[-1]["round"] > 0 for run in each):
        return None
    a, b = measure(runs).values()
    return where, ours, theirs, a, b


def _mean(values: Values) -> str:
    return f"{values.mean:.3f}"
