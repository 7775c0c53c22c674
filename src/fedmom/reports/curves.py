"""Curves of runs as figures: evaluations, rounds, metrics and diagnostics, averaged over seeds."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from fedmom.experiments.results import Group, Points, Result, ranked_by
from fedmom.experiments.seed_statistics import FEWEST, PERCENT, interval
from fedmom.reports.charts import Chart, Figure, Line

ROUND = "communication round"
POINTS = 300  # that a curve needs to look whole; longer ones are averaged over some rounds
Pick = Callable[[Result], Points]


class Panel(NamedTuple):
    """A chart of a figure.

    Args:
        title: Its title.
        y: The name of its y axis.
        points: The curve that it shows of a run.
        beside: What to compare it with, drawn dashed: its name, and its curve.
        ends: The curves that its band reaches from and to, instead of an interval over seeds.
    """

    title: str
    y: str
    points: Pick
    beside: tuple[str, Pick] | None = None
    ends: tuple[Pick, Pick] | None = None


def _evaluated(split: str, key: str) -> Pick:
    return lambda run: run.curve(split, key)


def _noted(key: str, name: str) -> Pick:
    return lambda run: run.noted(key, name)


LOSS = Panel("Training loss", "loss", _evaluated("train", "loss"))
ROUNDS = (
    Panel("Local training loss of the cohort", "loss", lambda run: run.logged("train_loss")),
    Panel("Norm of the update", "norm", lambda run: run.logged("update_norm")),
)


def evaluations(groups: Sequence[Group]) -> Figure:
    """Return loss and metrics over rounds, in the manner of the paper's Figure 5."""
    metric, better = ranked_by(groups)
    runs = [run for group in groups for run in group.runs]
    names = dict.fromkeys([metric, *(n for run in runs if run.evals for n in run.metrics)])
    panels = [Panel(f"Test {name}", name, _evaluated("test", name)) for name in names]
    if metric != "loss":  # and of the clients that are badly off
        worst = "p10" if better > 0 else "p90"
        title, key = f"Test {metric}, {worst} of clients", f"{metric}_{worst}"
        identical = "identical clients", _evaluated("test", f"{key}_identical")
        panels.append(Panel(title, metric, _evaluated("test", key), identical))
    return figure("evaluations", groups, [LOSS, *panels])


def rounds(groups: Sequence[Group]) -> Figure:
    """Return the cohorts' losses and the norms of the updates over rounds."""
    return figure("rounds", groups, ROUNDS)


def noted(key: str, groups: Sequence[Group]) -> Figure | None:
    """Return a chart for every number that rounds have under a key; None if there are none.

    Args:
        key: "metrics", the numbers that the method reports, or "diagnostics".
        groups: The runs. ``NAME/min`` and ``NAME/max`` are drawn as a band around ``NAME``.
    """
    rows = (row for group in groups for run in group.runs for row in run.rounds)
    names = dict.fromkeys(name for row in rows for name in row.get(key) or ())
    banded = {name for name in names if {f"{name}/min", f"{name}/max"} <= names.keys()}
    ends = {f"{name}/{end}" for name in banded for end in ("min", "max")}
    panels = []
    for name in names:
        if name in banded:
            band = _noted(key, f"{name}/min"), _noted(key, f"{name}/max")
            panels.append(Panel(f"{name} (band: min to max)", "", _noted(key, name), ends=band))
        elif name not in ends:
            panels.append(Panel(name, "", _noted(key, name)))
    return figure(key, groups, panels) if panels else None


def figure(name: str, groups: Sequence[Group], panels: Sequence[Panel]) -> Figure:
    """Return a figure with a chart for every panel and a line for every group."""
    width = _width([panel.points(run) for panel in panels for g in groups for run in g.runs])
    charts = [_chart(groups, panel, width) for panel in panels]
    notes = [bands_note(groups)] if any(len(group.runs) > 1 for group in groups) else []
    if width > 1:
        notes.append(f"Every point is a mean over {width} rounds.")
    return Figure(name, "", charts, note=" ".join(notes))


def bands_note(groups: Sequence[Group]) -> str:
    """Return what lines and bands are, for a figure of several seeds."""
    if max(len(group.runs) for group in groups) < FEWEST:
        return f"Lines are means over seeds; not enough seeds for bands, which need {FEWEST}."
    return f"Lines are means over seeds; bands are {PERCENT} intervals of the mean (Student's t)."


def line(group: Group, points: Pick, width: int = 1, ends: tuple[Pick, Pick] | None = None) -> Line:
    """Return the mean over seeds, with its interval as a band where seeds are enough for one.

    Seeds that have fewer rounds than others are left out of the later points.

    Args:
        group: The runs.
        points: The curve of a run.
        width: Rounds that every point is a mean over.
        ends: The curves that the band reaches from and to, instead of an interval.
    """
    at = _by_block(group, points, width)
    found = [interval(values) for values in at.values()]
    if ends is None:
        halves = [math.nan if each.half is None else each.half for each in found]
        low = [each.mean - half for each, half in zip(found, halves, strict=True)]
        high = [each.mean + half for each, half in zip(found, halves, strict=True)]
    else:
        low, high = (
            [statistics.fmean(end.get(block, [math.nan])) for block in at]
            for end in (_by_block(group, pick, width) for pick in ends)
        )
    banded = not all(map(math.isnan, low))
    return Line(
        group.label,
        [(block + 1) * width - (width - 1) / 2 for block in at],
        [each.mean for each in found],
        low if banded else None,
        high if banded else None,
    )


def _chart(groups: Sequence[Group], panel: Panel, width: int) -> Chart:
    lines = [line(group, panel.points, width, panel.ends) for group in groups]
    name, points = panel.beside or ("", lambda _: [])
    beside = [each for group in groups if (each := line(group, points, width)).x]
    title = f"{panel.title} (dashed: {name})" if beside else panel.title
    # The dashed ones come first: a legend takes the last line of a label.
    dashed = [replace(each, low=None, high=None, dashed=True) for each in beside]
    return Chart(title, ROUND, panel.y, [*dashed, *lines])


def _width(curves: Sequence[Points]) -> int:
    """Return how many rounds a point must stand for, so that no curve has more than POINTS."""
    longest = max(curves, key=len, default=[])
    return -(-longest[-1][0] // POINTS) if len(longest) > POINTS else 1


def _by_block(group: Group, points: Pick, width: int) -> dict[int, list[float]]:
    """Return each seed's mean in every block of ``width`` rounds, the first from round 1."""
    means: dict[int, list[float]] = {}
    for run in group.runs:
        blocks: dict[int, list[float]] = {}
        for round_, value in points(run):
            if math.isfinite(value):
                blocks.setdefault((round_ - 1) // width, []).append(value)
        for block, values in blocks.items():
            means.setdefault(block, []).append(statistics.fmean(values))
    return dict(sorted(means.items()))
