"""Results of runs as tables: for the terminal, for a page, and the ranking of a sweep."""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from fedmom.core.files import write_atomic
from fedmom.experiments.results import Group
from fedmom.report.charts import Grid

COLUMNS = ("round", "train loss", "test accuracy", "p10", "p50", "p90")
TITLE = "Last evaluation (p10 to p90: test accuracy over clients)"
SWEEP_COLUMNS = ("runs", "seeds", "train loss", "test accuracy", "spread", "best", "stopped")
NONE = "–"  # stands where there is no number
OTHERS_NAMED = 5


def verdict(groups: Sequence[Group], goal: float) -> str:
    """Say in a sentence who was fastest to a test accuracy; nothing if nobody got there."""
    rounds = ((group.rounds_to(goal), group.label) for group in groups)
    reached = [(r, label) for r, label in rounds if r is not None]
    if not reached:
        return ""
    (fewest, fastest), *rest = sorted(reached, key=lambda pair: pair[0])
    names = [f"{label} {_short(r)}" for r, label in rest[:OTHERS_NAMED]]
    names += [f"{len(rest) - OTHERS_NAMED} more"] if len(rest) > OTHERS_NAMED else []
    return (
        f"Test accuracy {goal:.3f}: {fastest} took {_short(fewest)} rounds"
        f" ({', '.join(names) or 'no other did'})."
    )


def numbers(groups: Sequence[Group], goal: float) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a comparison, with the rounds to a test accuracy."""
    columns = ["run", *COLUMNS, f"rounds to {goal:.3f}", "MB sent", "time (s)"]
    return columns, [_row(group, goal) for group in groups]


def grid(groups: Sequence[Group], goal: float) -> Grid:
    """Return a comparison as a table for a page."""
    several = any(len(group.runs) > 1 for group in groups)
    note = "Means over seeds; below them the least and the greatest." if several else ""
    return Grid("results", TITLE, *numbers(groups, goal), note)


def table(groups: Sequence[Group], goal: float) -> Table:
    """Return a comparison as a table for the terminal."""
    return rich_table(*numbers(groups, goal), TITLE)


def rich_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None
) -> Table:
    """Return rows as a table for the terminal: where it is narrow, names fold and numbers stay."""
    view = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=title, title_justify="left")
    view.add_column(columns[0], overflow="fold")
    for column in columns[1:]:
        view.add_column(column.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for row in rows:
        view.add_row(*map(Text, row))  # a name may hold brackets, which are no markup here
    return view


def sweep_table(groups: Sequence[Group]) -> tuple[Sequence[str], list[list[str]]]:
    """Return the columns and rows of a sweep, best first, seeds taken together."""
    return SWEEP_COLUMNS, [rank.texts() for rank in _ranking(groups)]


def write_sweep(path: Path, groups: Sequence[Group]) -> Path:
    """Write the same table as CSV, with all digits; return its path."""
    file = io.StringIO()
    csv.writer(file).writerows([SWEEP_COLUMNS, *_ranking(groups)])
    write_atomic(path, file.getvalue().encode())
    return path


class _Rank(NamedTuple):
    """A row of a sweep's table: means over seeds, of those that were evaluated."""

    label: str
    seeds: int
    loss: float | None
    accuracy: float | None
    spread: float | None  # standard deviation of the accuracy
    best: float | None  # accuracy on the way
    stopped: int

    def texts(self) -> list[str]:
        values = (self.loss, self.accuracy, self.spread, self.best)
        shown = [NONE if value is None else f"{value:.3f}" for value in values]
        return [self.label, str(self.seeds), *shown, str(self.stopped or "")]


def _ranking(groups: Sequence[Group]) -> list[_Rank]:
    ranks = [_rank(group) for group in groups]
    return sorted(ranks, key=lambda r: math.inf if r.accuracy is None else -r.accuracy)


def _rank(group: Group) -> _Rank:
    losses = _known(run.last("train", "loss") for run in group.runs)
    accuracies = _known(run.last("test", "accuracy") for run in group.runs)
    best = [run.best_accuracy() for run in group.runs if run.curve("test", "accuracy")]
    return _Rank(
        group.label,
        len(group.runs),
        statistics.fmean(losses) if losses else None,
        statistics.fmean(accuracies) if accuracies else None,
        statistics.pstdev(accuracies) if accuracies else None,
        statistics.fmean(best) if best else None,
        sum(bool(run.stop) for run in group.runs),
    )


def _row(group: Group, goal: float) -> list[str]:
    runs = group.runs
    accuracies = [f"accuracy{p}" for p in ("", "_p10", "_p50", "_p90")]
    return [
        group.label,
        _spread([run.last("test", "round") for run in runs], "{:.0f}"),
        _spread([run.last("train", "loss") for run in runs], "{:.3f}"),
        *(_spread([run.last("test", key) for run in runs], "{:.3f}") for key in accuracies),
        _reached([run.rounds_to(goal) for run in runs]),
        _spread([run.megabytes for run in runs], "{:.1f}"),
        _spread([run.seconds for run in runs], "{:.1f}"),
    ]


def _reached(rounds: Sequence[int | None]) -> str:
    there = _known(rounds)
    if not there:
        return "never"
    missing = len(rounds) - len(there)
    return _spread(there, "{:.0f}") + (f"\n{missing} of {len(rounds)} never" if missing else "")


def _spread(values: Sequence[float | None], form: str) -> str:
    """Return the mean, and on a second line the range if it has one."""
    finite = [value for value in _known(values) if math.isfinite(value)]
    if not finite:
        return NONE
    mean, low, high = (form.format(f(finite)) for f in (statistics.fmean, min, max))
    return mean if low == high else f"{mean}\n{low} to {high}"


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _short(rounds: float) -> str:
    return f"{rounds:.1f}".removesuffix(".0")
