"""Curves of runs as figures: evaluations, rounds and diagnostics, seeds taken together."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedmom.experiments.results import Group, Points, Result
from fedmom.report.charts import Chart, Figure, Line

ROUND = "communication round"
POINTS = 300  # that a curve needs to look whole; longer ones are averaged over some rounds
Pick = Callable[[Result], Points]


class Panel(NamedTuple):
    """A chart of a figure: its title, the name of its y axis, and the curve it shows of a run."""

    title: str
    y: str
    points: Pick


def _evaluated(split: str, key: str) -> Pick:
    return lambda run: run.curve(split, key)


def _logged(key: str) -> Pick:
    return lambda run: run.logged(key)


def _diagnosed(name: str) -> Pick:
    return lambda run: run.diagnosed(name)


EVALUATIONS = (
    Panel("Training loss", "loss", _evaluated("train", "loss")),
    Panel("Test accuracy", "accuracy", _evaluated("test", "accuracy")),
    Panel(
        "Test accuracy, 10th percentile of clients", "accuracy", _evaluated("test", "accuracy_p10")
    ),
)
ROUNDS = (
    Panel("Local training loss of the cohort", "loss", _logged("train_loss")),
    Panel("Norm of the update", "norm", _logged("update_norm")),
)


def evaluations(groups: Sequence[Group]) -> Figure:
    """Return loss and accuracy over rounds, in the manner of the paper's Figure 5."""
    return figure("evaluations", groups, EVALUATIONS)


def rounds(groups: Sequence[Group]) -> Figure:
    """Return the cohorts' losses and the norms of the updates over rounds."""
    return figure("rounds", groups, ROUNDS)


def diagnostics(groups: Sequence[Group]) -> Figure | None:
    """Return the diagnostics that runs have logged, a chart each; None if there are none."""
    rows = (row for group in groups for run in group.runs for row in run.rounds)
    names = dict.fromkeys(name for row in rows for name in row.get("diagnostics") or ())
    panels = [Panel(name, "", _diagnosed(name)) for name in names]
    return figure("diagnostics", groups, panels) if panels else None


def figure(name: str, groups: Sequence[Group], panels: Sequence[Panel]) -> Figure:
    """Return a figure with a chart for every panel and a line for every group."""
    width = _width([panel.points(run) for panel in panels for g in groups for run in g.runs])
    charts = [
        Chart(panel.title, ROUND, panel.y, [line(g, panel.points, width) for g in groups])
        for panel in panels
    ]
    notes = []
    if any(len(group.runs) > 1 for group in groups):
        notes.append("Lines are means over seeds; bands reach from the least to the greatest.")
    if width > 1:
        notes.append(f"Every point is a mean over {width} rounds.")
    return Figure(name, "", charts, note=" ".join(notes))


def line(group: Group, points: Pick, width: int = 1) -> Line:
    """Return the mean over seeds with a band from the least to the greatest.

    Seeds that have not come as far as others are left out of the later points.

    Args:
        group: The runs.
        points: The curve of a run.
        width: Rounds that every point is a mean over.
    """
    at: dict[int, list[float]] = {}
    for run in group.runs:
        for block, values in _blocks(points(run), width).items():
            at.setdefault(block, []).append(statistics.fmean(values))
    blocks = sorted(at)
    several = len(group.runs) > 1
    return Line(
        group.label,
        [(b + 1) * width - (width - 1) / 2 for b in blocks],
        [statistics.fmean(at[b]) for b in blocks],
        [min(at[b]) for b in blocks] if several else None,
        [max(at[b]) for b in blocks] if several else None,
    )


def _width(curves: Sequence[Points]) -> int:
    """Return how many rounds a point must stand for, so that no curve has more than POINTS."""
    longest = max(curves, key=len, default=[])
    return -(-longest[-1][0] // POINTS) if len(longest) > POINTS else 1


def _blocks(points: Points, width: int) -> dict[int, list[float]]:
    """Return values by the block of ``width`` rounds that they fall in, the first from round 1."""
    blocks: dict[int, list[float]] = {}
    for round_, value in points:
        if math.isfinite(value):
            blocks.setdefault((round_ - 1) // width, []).append(value)
    return blocks
