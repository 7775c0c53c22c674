"""Logs of runs -> the numbers people compare: curves, tables, who was faster."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fedmom.charts import Grid, Line
from fedmom.runs import RunFolder

Points = list[tuple[int, float]]
COLUMNS = ("round", "train loss", "test accuracy", "p10", "p50", "p90")
TABLE_TITLE = "Last evaluation (p10 to p90: test accuracy over clients)"
OTHERS_NAMED = 5


@dataclass(frozen=True)
class Curves:
    """A run that is finished, stopped or still going on, ready to be shown."""

    label: str
    evals: list[dict[str, Any]]
    rounds: list[dict[str, Any]]
    stopped: str = ""  # why it ended early

    def of(self, split: str, key: str) -> tuple[list[int], list[float]]:
        """Return rounds and values of one curve."""
        rows = [r for r in self.evals if r["split"] == split]
        return [r["round"] for r in rows], [r[key] for r in rows]

    def last(self, split: str, key: str) -> float | None:
        """Return a number of the last evaluation, or None before the first."""
        return next((r[key] for r in reversed(self.evals) if r["split"] == split), None)

    def evaluated(self, split: str, key: str) -> Points:
        """Return a curve of the evaluations as points."""
        return list(zip(*self.of(split, key), strict=True))

    def logged(self, key: str) -> Points:
        """Return a curve of the rounds; a round without replies has no loss."""
        return [(r["round"], r[key]) for r in self.rounds if r[key] is not None]

    def diagnosed(self, name: str) -> Points:
        """Return the curve of a diagnostic, at the rounds that have it."""
        found = ((r["round"], (r.get("diagnostics") or {}).get(name)) for r in self.rounds)
        return [(round_, value) for round_, value in found if value is not None]

    @property
    def seconds(self) -> float:
        """The time that rounds took, without evaluations."""
        return sum(r["seconds"] for r in self.rounds)

    @property
    def megabytes(self) -> float:
        """What was sent, both ways."""
        return sum(r["bytes_up"] + r["bytes_down"] for r in self.rounds) / 1e6


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed, shown as one."""

    label: str
    runs: Sequence[Curves]

    def line(self, points: Callable[[Curves], Points], width: int = 1) -> Line:
        """Return the mean over seeds with a band from the least to the greatest.

        With a ``width``, points are means over so many rounds. Seeds that have not come as far
        as others are left out of the later points.
        """
        at: dict[int, list[float]] = {}
        for run in self.runs:
            for block, values in _blocks(points(run), width).items():
                at.setdefault(block, []).append(statistics.fmean(values))
        blocks = sorted(at)
        several = len(self.runs) > 1
        return Line(
            self.label,
            [(b + 1) * width - (width - 1) / 2 for b in blocks],
            [statistics.fmean(at[b]) for b in blocks],
            [min(at[b]) for b in blocks] if several else None,
            [max(at[b]) for b in blocks] if several else None,
        )

    def best(self) -> float:
        """Return the best test accuracy on the way that all seeds get to."""
        return min(max(r.of("test", "accuracy")[1], default=0.0) for r in self.runs)

    def rounds_to(self, accuracy: float) -> float | None:
        """Return the rounds to a test accuracy, a mean over seeds; None if one never gets there."""
        found = [rounds_to(run, accuracy) for run in self.runs]
        reached = [r for r in found if r is not None]
        return statistics.fmean(reached) if len(reached) == len(found) else None


def read(folder: Path, label: str, stopped: str = "") -> Curves:
    """Read a run's logs."""
    run = RunFolder.open(folder)
    return Curves(label, run.rows("evals.jsonl"), run.rows("rounds.jsonl"), stopped)


def alone(runs: Iterable[Curves]) -> list[Group]:
    """Return every run as a group of its own."""
    marked = ((r, f"{r.label} (stopped)" if r.stopped else r.label) for r in runs)
    return [Group(label, [run]) for run, label in marked]


def target(groups: Sequence[Group]) -> float:
    """Return the best test accuracy of the runner-up: what shows who was faster."""
    best = sorted((group.best() for group in groups), reverse=True)
    return best[min(1, len(best) - 1)]


def rounds_to(run: Curves, accuracy: float) -> int | None:
    """Return the first evaluated round with at least this test accuracy."""
    return next((r for r, a in run.evaluated("test", "accuracy") if a >= accuracy), None)


def verdict(groups: Sequence[Group], goal: float) -> str:
    """Say in a sentence who was faster; nothing if nobody got there."""
    found = ((g.label, g.rounds_to(goal)) for g in groups)
    reached = sorted(((r, label) for label, r in found if r is not None), key=lambda pair: pair[0])
    if not reached:
        return ""
    (rounds, fastest), *rest = reached
    names = [f"{label} {_short(r)}" for r, label in rest[:OTHERS_NAMED]]
    names += [f"{len(rest) - OTHERS_NAMED} more"] if len(rest) > OTHERS_NAMED else []
    return (
        f"Test accuracy {goal:.3f}: {fastest} took {_short(rounds)} rounds"
        f" ({', '.join(names) or 'no other did'})."
    )


def table(runs: Iterable[Curves]) -> Table:
    """Return a comparison as a table for the terminal."""
    groups = alone(runs)
    columns, rows = numbers(groups, target(groups))
    return shown(columns, rows, TABLE_TITLE)


def shown(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """Return rows as a table for the terminal: where it is narrow, names fold and numbers stay."""
    view = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=title, title_justify="left")
    view.add_column(columns[0], overflow="fold")
    for column in columns[1:]:
        view.add_column(column.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for row in rows:
        view.add_row(*row)
    return view


def grid(groups: Sequence[Group], goal: float) -> Grid:
    """Return a comparison as a table for a page."""
    several = any(len(g.runs) > 1 for g in groups)
    note = "Means over seeds; below them the least and the greatest." if several else ""
    return Grid("results", TABLE_TITLE, *numbers(groups, goal), note)


def numbers(groups: Sequence[Group], goal: float) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a comparison."""
    columns = ["run", *COLUMNS, f"rounds to {goal:.3f}", "MB sent", "time (s)"]
    return columns, [_row(group, goal) for group in groups]


def _row(group: Group, goal: float) -> list[str]:
    runs = group.runs
    accuracies = [f"accuracy{p}" for p in ("", "_p10", "_p50", "_p90")]
    return [
        group.label,
        _spread([run.last("test", "round") for run in runs], "{:.0f}"),
        _spread([run.last("train", "loss") for run in runs], "{:.3f}"),
        *(_spread([run.last("test", key) for run in runs], "{:.3f}") for key in accuracies),
        _reached([rounds_to(run, goal) for run in runs]),
        _spread([run.megabytes for run in runs], "{:.1f}"),
        _spread([run.seconds for run in runs], "{:.1f}"),
    ]


def _reached(rounds: Sequence[int | None]) -> str:
    there = [r for r in rounds if r is not None]
    if not there:
        return "never"
    missing = len(rounds) - len(there)
    return _spread(there, "{:.0f}") + (f"\n{missing} of {len(rounds)} never" if missing else "")


def _spread(values: Sequence[float | None], form: str) -> str:
    """Return the mean, and on a second line the range if it has one."""
    there = [v for v in values if v is not None and math.isfinite(v)]
    if not there:
        return "–"
    mean, low, high = (form.format(f(there)) for f in (statistics.fmean, min, max))
    return mean if low == high else f"{mean}\n{low} to {high}"


def _short(rounds: float) -> str:
    return f"{rounds:.1f}".removesuffix(".0")


def _blocks(points: Points, width: int) -> dict[int, list[float]]:
    """Return values by the block of ``width`` rounds that they fall in, the first from round 1."""
    found: dict[int, list[float]] = {}
    for round_, value in points:
        if math.isfinite(value):
            found.setdefault((round_ - 1) // width, []).append(value)
    return found
