"""The page of a sweep: the ranking, the grid as a heat map, and the curves."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedmom.experiments.results import SWEEP_LIST, Group, Result, common_settings, group_by_name
from fedmom.reports import ranking, run_page
from fedmom.reports.charts import Chart, Figure, Heat
from fedmom.reports.html import Section, Words
from fedmom.reports.run_page import Overview


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
        Section("Ranking", [early, ranking.grid(groups)]),
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
    measures = (("train", "loss", "Training loss"), ("test", metric, f"Test {metric}"))
    for split, key, title in measures:
        cells = {
            (_row(each, down), each.get(across, "–")): _mean(group.steady, split, key)
            for each, group in zip(settings, groups, strict=True)
        }
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
        if len({_row(each, others) for each in settings}) == len(
            {_row(each, kept) for each in settings}
        ):
            kept = others
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


def _mean(runs: Sequence[Result], split: str, key: str) -> float:
    ends = (run.last(split, key) for run in runs if not run.diverged)
    values = [value for value in ends if value is not None]
    return statistics.fmean(values) if values else math.nan
