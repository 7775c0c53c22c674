"""Differences paired over seeds: as tables, and in plain words."""

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
    Measure,
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
    """Return what a comparison ends with, in plain words.

    Args:
        families: What was compared; none with one seed.
        fastest: Who was fastest, a sentence, or nothing.
        rates: Every algorithm's lr.
    """
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
    shown = [[_label(pair, family), *_cells(pair, family)] for pair in family.pairs]
    first = "run" if family.best is not None else "pair"
    ours = family.measure
    place = "test-loss" if (ours.split, ours.key) == ("test", "loss") else ours.key
    return Grid(f"differences-{place}", title, (first, *COLUMNS), shown, _note(family))


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
    pairs_ = family.pairs
    seeds = sorted({pair.difference.interval.seeds for pair in pairs_})
    if all(pair.finding is Finding.TOO_FEW for pair in pairs_):
        return (
            f"{family.measure.name.capitalize()}: not enough seeds. {FEWEST} are the fewest,"
            " and 10 are better."
        )
    over = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    said = (
        _counted(family) if family.best is not None else "; ".join(_said(p, family) for p in pairs_)
    )
    return f"{family.measure.name.capitalize()} over {over} seeds: {said}."


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


def _label(pair: Pair, family: Family) -> str:
    return pair.ours if family.best is not None else f"{pair.ours} − {pair.theirs}"


def _cells(pair: Pair, family: Family) -> list[str]:
    found = pair.difference.interval
    low_high = NONE if found.half is None else f"{found.low:+.3f} to {found.high:+.3f}"
    finding = finding_text(pair.finding, family.measure.better)
    return [str(found.seeds), mean_text(pair), low_high, p_text(pair.p), finding]


def _note(family: Family) -> str:
    if family.measure == seed_statistics.LOSS:
        return "As above; lower is better."
    first = "the run" if family.best is not None else "the first of the pair"
    holm = (
        f", corrected by Holm's method for all {family.tested} pairs; each interval is that of its"
        " pair alone"
    )
    return (
        f"Ahead or behind: {first} is, with p below {1 - LEVEL:.2f}. p is that of the paired t"
        f" test{holm if family.tested > 1 else ''}.{_more(family.measure)}"
    )


def _more(measure: Measure) -> str:
    lower = " Lower is better." if measure.better < 0 else ""
    if measure.margin is None:
        return lower
    return f"{lower} Equal: the interval lies within ±{measure.margin:g}."


def _said(pair: Pair, family: Family) -> str:
    word = finding_text(pair.finding, family.measure.better)
    mean = pair.difference.interval.mean
    by = f" by {abs(mean):.3f}" if abs(mean) < float("inf") else ""
    if word == "ahead":
        return f"{pair.ours} is ahead of {pair.theirs}{by}"
    if word == "behind":
        return f"{pair.theirs} is ahead of {pair.ours}{by}"
    if pair.finding is Finding.EQUAL:
        return f"{pair.ours} and {pair.theirs} are {EQUAL}"
    if pair.finding is Finding.OPEN:
        return f"{pair.ours} against {pair.theirs} is {word}"
    return f"{word} for {pair.ours} against {pair.theirs}"


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
