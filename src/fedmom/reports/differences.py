"""Differences paired over seeds: as tables, and in plain words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedmom.experiments import seed_statistics
from fedmom.experiments.results import Group
from fedmom.experiments.seed_statistics import (
    FEWEST,
    LEVEL,
    MARGIN,
    PERCENT,
    Family,
    Finding,
    Pair,
)
from fedmom.reports.charts import Grid
from fedmom.reports.result_tables import NONE

COLUMNS = ("seeds", "difference", f"interval ({PERCENT})", "p (Holm)", "finding")
RECORD = ("measure", "run", "other", "seeds", "difference", "low", "high", "p", "finding")
SMALLEST = 0.001  # p-values below it are shown as such
EQUAL = f"equal within ±{MARGIN:g}"
LR = "The runs have {}: tune lr for each algorithm before you conclude (docs/runs.md)."
ONE_SEED = "One seed is not evidence: use --seeds 10 for confidence intervals."


def families(groups: Sequence[Group]) -> list[Family]:
    """Return the comparisons of test metric and training loss; none if there are no seeds."""
    if not seed_statistics.comparable(groups):
        return []
    return [
        seed_statistics.family(groups, measure)
        for measure in (seed_statistics.ranking_measure(groups), seed_statistics.LOSS)
    ]


def sentences(
    families: Sequence[Family], fastest: str, rates: Mapping[str, float | str]
) -> list[str]:
    """Return what a comparison ends with: findings, who was fastest, and the learning rates."""
    found = [sentence(family) for family in families] or [ONE_SEED]
    return [text for text in (*found, fastest, LR.format(rates_text(rates))) if text]


def rates_text(rates: Mapping[str, float | str]) -> str:
    """Return learning rates in a few words: one for all, or one per algorithm.

    Examples:
        >>> rates_text({"fedavg": 0.1, "fedmom": 0.1}), rates_text({"fedavg": 0.1, "fedmom": 0.01})
        ('lr 0.1', 'lr 0.1 (fedavg), 0.01 (fedmom)')
    """
    if len(set(rates.values())) == 1:
        return f"lr {next(iter(rates.values()))}"
    return "lr " + ", ".join(f"{lr} ({algorithm})" for algorithm, lr in rates.items())


def grid(family: Family) -> Grid:
    """Return the differences as a table."""
    name = family.measure.name
    title = f"{name.capitalize()}: differences paired by seed"
    if family.best is not None:
        title += f", vs. {family.best} (best mean)"
    first = "run" if family.best is not None else "pair"
    rows = []
    for pair, (_, ours, theirs, seeds, _, low, high, p, finding) in zip(
        family.pairs, records(family), strict=True
    ):
        which = ours if family.best is not None else f"{ours} − {theirs}"
        ends = NONE if low is None else f"{low:+.3f} to {high:+.3f}"
        rows.append([which, str(seeds), mean_text(pair), ends, p_text(p), finding])
    ours = family.measure
    place = "test-loss" if (ours.split, ours.key) == ("test", "loss") else ours.key
    return Grid(f"differences-{place}", title, (first, *COLUMNS), rows, _note(family))


def records(family: Family) -> list[tuple[Any, ...]]:
    """Return the differences as numbers, in the order of ``RECORD``."""
    found = []
    for pair in family.pairs:
        apart, finding = pair.difference.interval, finding_text(pair.finding, family.measure.better)
        ends = (None, None) if apart.half is None else (apart.low, apart.high)
        numbers = (apart.seeds, apart.mean, *ends, pair.p)
        found.append((family.measure.name, pair.ours, pair.theirs, *numbers, finding))
    return found


def sentence(family: Family) -> str:
    """Say in plain words what the differences show."""
    name = family.measure.name.capitalize()
    if all(pair.finding is Finding.TOO_FEW for pair in family.pairs):
        return f"{name}: not enough seeds. {FEWEST} are the fewest, and 10 are better."
    seeds = [pair.difference.interval.seeds for pair in family.pairs]
    over = " to ".join(map(str, sorted({min(seeds), max(seeds)})))
    said = "; ".join(_said(p, family) for p in family.pairs)
    return f"{name} over {over} seeds: {_counted(family) if family.best is not None else said}."


def finding_text(finding: Finding, better: int) -> str:
    """Return a finding in the words of tables: who is ahead, not what is higher."""
    words = {Finding.HIGHER: "ahead", Finding.LOWER: "behind", Finding.EQUAL: EQUAL}
    if better < 0:
        words |= {Finding.HIGHER: "behind", Finding.LOWER: "ahead"}
    return words.get(finding, str(finding))


def mean_text(pair: Pair) -> str:
    """Return the mean difference with its sign, without the interval."""
    return pair.difference.interval.text(sign=True).partition(" ")[0]


def p_text(p: float | None) -> str:
    """Return a p-value to three digits after the point."""
    if p is None:
        return NONE
    return f"<{SMALLEST}" if p < SMALLEST else f"{p:.3f}"


def _note(family: Family) -> str:
    if family.measure == seed_statistics.LOSS:
        return "As above; lower is better."
    first = "the run" if family.best is not None else "the first of the pair"
    holm = (
        f", corrected by Holm's method for all {family.tested} pairs; each interval is that of its"
        " pair alone"
    )
    lower = " Lower is better." if family.measure.better < 0 else ""
    margin = family.measure.margin
    equal = "" if margin is None else f" Equal: the interval lies within ±{margin:g}."
    return (
        f"Ahead or behind: {first} is, with p below {1 - LEVEL:.2f}. p is that of the paired t"
        f" test{holm if family.tested > 1 else ''}.{lower}{equal}"
    )


def _said(pair: Pair, family: Family) -> str:
    word, ours, theirs = finding_text(pair.finding, family.measure.better), pair.ours, pair.theirs
    mean = abs(pair.difference.interval.mean)
    by = f" by {mean:.3f}" if mean < math.inf else ""
    texts = {
        "ahead": f"{ours} is ahead of {theirs}{by}",
        "behind": f"{theirs} is ahead of {ours}{by}",
        EQUAL: f"{ours} and {theirs} are {EQUAL}",
        str(Finding.OPEN): f"{ours} against {theirs} is {word}",
    }
    return texts.get(word, f"{word} for {ours} against {theirs}")


def _counted(family: Family) -> str:
    """Say how many of the others the best one is ahead of: a clause each would be too many."""
    words = [finding_text(pair.finding, family.measure.better) for pair in family.pairs]
    clauses = {
        "behind": "ahead of {}",
        "ahead": "behind {}",
        EQUAL: f"{EQUAL} to {{}}",
        str(Finding.OPEN): "not settled against {}",
        str(Finding.TOO_FEW): "without enough seeds against {}",
    }
    parts = [form.format(words.count(word)) for word, form in clauses.items() if word in words]
    return f"{family.best} has the best mean; of the {len(words)} others, it is {', '.join(parts)}"
