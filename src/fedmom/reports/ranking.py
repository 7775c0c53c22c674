"""The ranking of a sweep: seeds taken together, every row against the best, and as CSV."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedmom.core.files import write_atomic
from fedmom.experiments import seed_statistics
from fedmom.experiments.results import Group, RankedBy, ranked_by
from fedmom.experiments.seed_statistics import Interval, Pair, interval
from fedmom.reports import differences
from fedmom.reports.charts import Grid
from fedmom.reports.result_tables import mean_text, over_seeds_note

CHOSEN = (
    "The first row was selected on these runs, so its numbers are optimistic: report it on other"
    " seeds, such as fedmom compare --seed 100 --seeds 10 with its settings."
)


def csv_columns(metric: str) -> tuple[str, ...]:
    """Return the header of the file, for runs that are ranked by a metric."""
    of_test = f"test {metric}"
    return (
        *("runs", "seeds", "train loss", of_test, f"{of_test} low", f"{of_test} high"),
        *("difference", "difference low", "difference high", "p (Holm)", "finding"),
        *("best", "stopped"),
    )


@dataclass(frozen=True)
class _Rank:
    """A row: the runs that differ in their seed only, and their difference to the best row."""

    group: Group
    by: RankedBy
    losses: Sequence[float]
    metrics: Sequence[float]
    best: Sequence[float]  # metrics at any evaluation
    pair: Pair | None = None  # None: it is the best row itself, or the data are others

    @property
    def stopped(self) -> int:
        return sum(bool(run.stop) for run in self.group.runs)

    def order(self) -> tuple[bool, bool, float]:
        """What rows are sorted by: settings with which a run diverged come after the others."""
        diverged = any(run.diverged for run in self.group.runs)
        return not self.metrics, diverged, -self.by.better * interval(self.metrics or [0.0]).mean

    def texts(self, *, seeds: bool, stopped: bool) -> list[str]:
        """Return the cells of the table."""
        shown = [self.group.label, str(len(self.group.runs))]
        shown += [mean_text(self.losses).partition("\n")[0], mean_text(self.metrics, self.by.form)]
        shown += self._against_best() if seeds else []
        shown += [mean_text(self.best, self.by.form).partition("\n")[0]]
        return [*shown, *([str(self.stopped or "")] if stopped else [])]

    def values(self) -> list[object]:
        """Return the cells of the file, with all digits; None where there is no number."""
        found = self.pair.difference.interval if self.pair else interval([])
        return [
            *(self.group.label, len(self.group.runs), _bounds(interval(self.losses))[0]),
            *(*_bounds(interval(self.metrics)), *_bounds(found)),
            *((self.pair.p, self._finding(self.pair)) if self.pair else (None, None)),
            *(_bounds(interval(self.best))[0], self.stopped),
        ]

    def _against_best(self) -> list[str]:
        if self.pair is None:
            return ["", "best"]
        mean, half = differences.mean_text(self.pair), self.pair.difference.interval.half
        finding = self._finding(self.pair)
        for last in (" seeds", " ±"):  # in two lines, or names would have no room
            finding = finding.replace(last, f"\n{last.strip()}")
        if half is None:
            return [mean, finding]
        return [f"{mean}\n±{half:.3f}", f"{finding}\np {differences.p_text(self.pair.p)}"]

    def _finding(self, pair: Pair) -> str:
        return differences.finding_text(pair.finding, self.by.better)


def grid(groups: Sequence[Group]) -> Grid:
    """Return the table of a sweep, best first."""
    ranks = _ranking(groups)
    seeds, stopped = seed_statistics.comparable(groups), any(rank.stopped for rank in ranks)
    metric = ranked_by(groups).metric
    columns = [
        *("runs", "seeds", "train loss", f"test {metric}"),
        *(("vs. best", "finding") if seeds else ()),
        *("best so far", *(("stopped",) if stopped else ())),
    ]
    rows = [rank.texts(seeds=seeds, stopped=stopped) for rank in ranks]
    return Grid("sweep", f"Best first, by test {metric}", columns, rows, _note(groups))


def write(path: Path, groups: Sequence[Group]) -> Path:
    """Write the ranking as CSV, with all digits; return its path."""
    file = io.StringIO()
    rows = [rank.values() for rank in _ranking(groups)]
    csv.writer(file).writerows([csv_columns(ranked_by(groups).metric), *rows])
    write_atomic(path, file.getvalue().encode())
    return path


def _ranking(groups: Sequence[Group]) -> list[_Rank]:
    by = ranked_by(groups)
    ranks = sorted((_rank(group, by) for group in groups), key=_Rank.order)
    if not seed_statistics.same_data(groups):
        return ranks
    measure = seed_statistics.ranking_measure(groups)
    family = seed_statistics.family([rank.group for rank in ranks], measure, best=0)
    return [replace(r, pair=p) for r, p in zip(ranks, [None, *family.pairs], strict=True)]


def _rank(group: Group, by: RankedBy) -> _Rank:
    losses = (run.last("train", "loss") for run in group.steady)
    metrics = (run.last("test", by.metric) for run in group.steady)
    return _Rank(
        group,
        by,
        [value for value in losses if value is not None],
        [value for value in metrics if value is not None],
        [run.best() for run in group.steady if run.curve("test", by.metric)],
    )


def _bounds(found: Interval) -> tuple[float | None, float | None, float | None]:
    """Return the mean and the interval of numbers, where there are any and seeds enough."""
    mean = None if math.isnan(found.mean) else found.mean
    return (mean, found.low, found.high) if found.half is not None else (mean, None, None)


def _note(groups: Sequence[Group]) -> str:
    over_seeds = over_seeds_note(groups)
    if len(groups) == 1 or not seed_statistics.same_data(groups):
        return over_seeds
    if not over_seeds:
        return f"One seed is not evidence: add --grid 'seed=0 1 2 3 4'. {CHOSEN}"
    tested = len(groups) * (len(groups) - 1) // 2
    return (
        f"{over_seeds} Differences to the first row are paired by seed, with p corrected by Holm's"
        f" method for all {tested} pairs of rows. {CHOSEN}"
    )
