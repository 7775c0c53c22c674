"""A sweep: its ranking, seeds taken together, as table and CSV; and its page with a heat map."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedmom.core.files import write_atomic
from fedmom.experiments import seed_statistics
from fedmom.experiments.results import (
    SWEEP_LIST,
    Group,
    RankedBy,
    Result,
    common_settings,
    group_by_name,
    ranked_by,
)
from fedmom.experiments.seed_statistics import Interval, Pair, interval
from fedmom.reports import differences, run_page
from fedmom.reports.charts import Chart, Figure, Grid, Heat
from fedmom.reports.html import Section, Words
from fedmom.reports.result_tables import mean_text, over_seeds_note, unranked_note
from fedmom.reports.run_page import Overview

CHOSEN = (
    "The first row was selected on these runs, so its numbers are optimistic: report it on other"
    " seeds, such as fedmom compare --seed 100 --seeds 10 with its settings."
)
FILE_COLUMNS = (  # of the CSV; {} is the metric that runs are ranked by
    *("runs", "seeds", "train loss", "test {}", "test {} low", "test {} high"),
    *("difference", "difference low", "difference high", "p (Holm)", "finding"),
    *("best", "stopped"),
)


@dataclass(frozen=True)
class _Rank:
    """A row: the runs that differ in their seed only, and their difference to the best row."""

    group: Group
    by: RankedBy
    pair: Pair | None = None  # None: it is the best row itself, or the data are others

    @property
    def losses(self) -> list[float]:
        return _ends(self.group.steady, "train", "loss")

    @property
    def metrics(self) -> list[float]:
        return _ends(self.group.steady, "test", self.by.metric)

    @property
    def best(self) -> list[float]:
        """Metrics at any evaluation."""
        return [run.best() for run in self.group.steady if run.curve("test", self.by.metric)]

    @property
    def stopped(self) -> int:
        return sum(bool(run.stop) for run in self.group.runs)

    def order(self) -> tuple[bool, bool, float]:
        """What rows are sorted by: settings with which a run diverged come after the others."""
        diverged = any(run.diverged for run in self.group.runs)
        mean = interval(self.metrics).mean
        return math.isnan(mean), diverged, 0.0 if math.isnan(mean) else -self.by.better * mean

    def texts(self, *, seeds: bool, stopped: bool) -> list[str]:
        """Return the cells of the table."""
        shown = [self.group.label, str(len(self.group.runs))]
        shown += [mean_text(self.losses).partition("\n")[0], mean_text(self.metrics, self.by.form)]
        shown += self._against_best() if seeds else []
        shown += [mean_text(self.best, self.by.form).partition("\n")[0]]
        return [*shown, *([str(self.stopped or "")] if stopped else [])]

    def values(self) -> list[object]:
        """Return the cells of the file, with all digits; None where there is no number."""
        loss, best = (_bounds(interval(values))[0] for values in (self.losses, self.best))
        found = self.pair.difference.interval if self.pair else interval([])
        said = (self.pair.p, self._finding(self.pair)) if self.pair else (None, None)
        means = *_bounds(interval(self.metrics)), *_bounds(found)
        return [self.group.label, len(self.group.runs), loss, *means, *said, best, self.stopped]

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


def ranking(groups: Sequence[Group]) -> Grid:
    """Return the table of a sweep, best first."""
    ranks = _ranked(groups)
    seeds, stopped = seed_statistics.comparable(groups), any(rank.stopped for rank in ranks)
    metric = ranked_by(groups).metric
    note = " ".join(filter(None, (_note(groups), unranked_note(groups))))
    columns = [
        *("runs", "seeds", "train loss", f"test {metric}"),
        *(("vs. best", "finding") if seeds else ()),
        *("best so far", *(("stopped",) if stopped else ())),
    ]
    rows = [rank.texts(seeds=seeds, stopped=stopped) for rank in ranks]
    return Grid("sweep", f"Best first, by test {metric}", columns, rows, note)


def write_ranking(path: Path, groups: Sequence[Group]) -> Path:
    """Write the ranking as CSV, with all digits; return its path."""
    file = io.StringIO()
    columns = [name.format(ranked_by(groups).metric) for name in FILE_COLUMNS]
    csv.writer(file).writerows([columns, *(rank.values() for rank in _ranked(groups))])
    write_atomic(path, file.getvalue().encode())
    return path


def _ranked(groups: Sequence[Group]) -> list[_Rank]:
    by = ranked_by(groups)
    ranks = sorted((_Rank(group, by) for group in groups), key=_Rank.order)
    if not seed_statistics.same_data(groups):
        return ranks
    measure = seed_statistics.ranking_measure(groups)
    family = seed_statistics.family([rank.group for rank in ranks], measure, best=0)
    return [replace(r, pair=p) for r, p in zip(ranks, [None, *family.pairs], strict=True)]


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


def overview(groups: Sequence[Group], goal: float | None = None) -> Overview:
    """Return the page of a sweep.

    Args:
        groups: Its runs, seeds taken together.
        goal: The value of the test metric to count rounds to; by default the runner-up's best.
    """
    view = run_page.overview([run for group in groups for run in group.runs], goal)
    early = Words("\n\n".join(run_page.stopped_early(groups)))
    grid = heat_maps(groups)
    sections = [
        Section("Ranking", [early, ranking(groups)]),
        *([Section("Grid", [grid])] if grid else []),
        *view.sections[1:],  # the ranking has the numbers already
    ]
    return replace(view, sections=sections)


def of_folders(
    folders: Sequence[Path], found: Sequence[Result], goal: float | None = None
) -> Overview:
    """Return the page about folders; a single sweep has its own kind of page.

    Args:
        folders: The folders.
        found: The runs in them, read.
        goal: As for ``overview``.
    """
    if len(folders) == 1 and (folders[0] / SWEEP_LIST).exists():
        return overview(group_by_name({run.path.name: run for run in found}), goal)
    return run_page.overview(found, goal)


def heat_maps(groups: Sequence[Group]) -> Figure | None:
    """Return the end of every run of a grid as shades; None if nothing is varied.

    The setting with the most values is across; all others together are down.

    Args:
        groups: The runs of the sweep, seeds taken together.
    """
    settings = [group.runs[0].settings() for group in groups]
    varied = common_settings(settings)[1]
    if not varied:
        return None
    across = max(varied, key=lambda name: len({each.get(name) for each in settings}))
    down = _telling([name for name in varied if name != across], settings)
    rows = list(dict.fromkeys(_row(each, down) for each in settings))
    columns = sorted({each.get(across, "–") for each in settings}, key=_order)
    charts = []
    metric = groups[0].runs[0].metric
    whole = [[run for run in group.runs if not run.diverged] for group in groups]
    places = [(_row(each, down), each.get(across, "–")) for each in settings]
    measures = (("train", "loss", "Training loss"), ("test", metric, f"Test {metric}"))
    for split, key, title in measures:
        means = [interval(_ends(runs, split, key)).mean for runs in whole]
        cells = dict(zip(places, means, strict=True))
        if all(map(math.isnan, cells.values())):
            continue
        shades = [[cells.get((row, column), math.nan) for column in columns] for row in rows]
        charts.append(Chart(title, across, "", [Heat(title, rows, columns, shades)]))
    note = "After the last evaluation, means over seeds. Empty cells were not run, or diverged."
    return Figure("grid", "Where the runs ended", charts, columns=2, note=note) if charts else None


def _telling(names: list[str], settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Leave out settings that follow from the others, such as an algorithm's own momentum."""
    kept = list(names)
    for name in reversed(names):
        others = [other for other in kept if other != name]
        with_, without = (len({_row(each, some) for each in settings}) for some in (kept, others))
        kept = others if with_ == without else kept
    return kept


def _row(settings: Mapping[str, str], names: Sequence[str]) -> str:
    parts = (
        settings.get(name, "–") if name == "algorithm" else f"{name} {settings.get(name, '–')}"
        for name in names
    )
    return ", ".join(parts) or "all"


def _order(text: str) -> tuple[float, str]:
    """Numbers by size, then texts by letter."""
    try:
        return float(text), text
    except ValueError:
        return math.inf, text


def _ends(runs: Sequence[Result], split: str, key: str) -> list[float]:
    values = (run.last(split, key) for run in runs)
    return [value for value in values if value is not None]
