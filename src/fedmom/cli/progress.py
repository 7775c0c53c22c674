"""What a run shows while it goes on: a live bar on a terminal, plain lines elsewhere."""

import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from fedmom.core.errors import FedMomError
from fedmom.core.progress import bars
from fedmom.core.types import LOWER_IS_BETTER
from fedmom.experiments.build import Experiment
from fedmom.experiments.results import Result, metrics_of
from fedmom.experiments.sweep import Outcome
from fedmom.training.loop import Record

SHORT = {"accuracy": "acc"}  # beside a bar


class RoundsPerSecond(ProgressColumn):
    """Rounds per second."""

    def render(self, task: Task) -> Text:
        """Return the rate, once there is one."""
        return Text(f"{task.speed:.1f} rounds/s" if task.speed else "compiling", "cyan")


class LiveBar:
    """One line that moves: round, rate, time left, loss, and the model's first metric."""

    def __init__(self, console: Console, label: str) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24 if console.width >= 110 else 8),
            MofNCompleteColumn(),
            RoundsPerSecond(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[train]}", markup=False),
            TextColumn("{task.fields[test]}", style="green", markup=False),
            console=console,
        )
        self._task = self._progress.add_task(label, total=None, train="", test="")

    def __enter__(self) -> "LiveBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, experiment: Experiment, round_: int) -> None:
        """Set the bar to where the run stands."""
        self._progress.update(self._task, total=experiment.config.rounds, completed=round_)

    def round(self, record: Record) -> None:
        """Move on by one round."""
        if record.train_loss is not None:
            self._progress.update(self._task, train=f"loss {record.train_loss:.3f}")
        self._progress.advance(self._task)

    def evaluated(self, rows: list[dict[str, Any]]) -> None:
        """Show the newest evaluation."""
        self._progress.update(self._task, test=short_summary(rows))


class PlainLines:
    """One line per evaluation, for logs and pipes."""

    def __init__(self, console: Console, label: str) -> None:
        self._console, self._label, self._rounds = console, label, 0

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to tidy up."""

    def begin(self, experiment: Experiment, _round: int) -> None:
        """Remember how long the run is."""
        self._rounds = experiment.config.rounds

    def round(self, record: Record) -> None:
        """Say nothing: a line per round is too many."""

    def evaluated(self, rows: list[dict[str, Any]]) -> None:
        """Print the evaluation."""
        place = f"{self._label} {rows[0]['round']}/{self._rounds}"
        self._console.print(f"{place}  {summary(rows)}", highlight=False, markup=False)


class ManyRuns:
    """A bar over the rounds of runs side by side; elsewhere than on a terminal, a line per run."""

    def __init__(self, console: Console, experiments: Mapping[Path, Experiment]) -> None:
        self._console, self._runs, self._ended = console, len(experiments), 0
        self._progress = bars(console, MofNCompleteColumn(), RoundsPerSecond())
        self._left = sum(e.config.rounds for e in experiments.values())
        self._task = self._progress.add_task(f"{self._runs} runs, rounds", total=self._left)
        self._begun: set[Path] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> "ManyRuns":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advanced(self, path: Path, rounds: int) -> None:
        """Move on. What a run has done before is first told: the bar is of what is left."""
        with self._lock:
            if path in self._begun:
                self._progress.advance(self._task, rounds)
                return
            self._begun.add(path)
            self._left -= rounds
            self._progress.update(self._task, total=self._left)

    def ended(self, path: Path, outcome: Outcome) -> None:
        """Print how a run ended, for logs and pipes."""
        self._ended += 1
        if self._console.is_terminal:
            return
        place = f"{self._ended}/{self._runs} {path.name}"
        self._console.print(f"{place}  {_end(outcome)}", highlight=False, markup=False)


def _end(outcome: Outcome) -> str:
    """Return the test metric that a run has ended with."""
    if not isinstance(outcome, Result):
        return "no result"
    value = outcome.last("test", outcome.metric)
    return f"no test {outcome.metric}" if value is None else f"test {outcome.metric} {value:.4f}"


def watch(console: Console, label: str) -> LiveBar | PlainLines:
    """Return what suits the place where output goes."""
    return LiveBar(console, label) if console.is_terminal else PlainLines(console, label)


def short_summary(rows: list[dict[str, Any]]) -> str:
    """Return the first metric of an evaluation, short enough for a line beside a bar."""
    names = [next(iter(metrics_of(row)), "loss") for row in rows]
    return "  ".join(
        f"{row['split']} {SHORT.get(name, name)} {row[name]:.3f}"
        for row, name in zip(rows, names, strict=True)
    )


def summary(rows: list[dict[str, Any]]) -> str:
    """Return an evaluation in a few words."""
    return "  ".join(
        " ".join([row["split"], *(f"{n} {row[n]:.4f}" for n in ("loss", *metrics_of(row)))])
        for row in rows
    )


def tensorboard(path: Path, experiment: Experiment) -> list["TensorBoard"]:
    """Return what writes TensorBoard files to a run's folder, if its settings ask for it."""
    return [TensorBoard(path)] if experiment.config.tensorboard else []


class TensorBoard:
    """The same numbers as TensorBoard event files, in the run's folder."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise FedMomError(
                "TensorBoard files need an extra: pip install 'fedmom[tensorboard]'."
            ) from None
        self._writer_at: Any = partial(SummaryWriter, str(folder / "tensorboard"))
        self._writer: Any = None

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def begin(self, _experiment: Experiment, round_: int) -> None:
        """Open the files; rounds after the checkpoint will be written again."""
        # With a suffix, or what began in the same second would be the same file.
        self._writer = self._writer_at(purge_step=round_ + 1, filename_suffix=f".{round_}")

    def round(self, record: Record) -> None:
        """Write the round's numbers."""
        for name in ("train_loss", "update_norm", "seconds", "bytes_up", "bytes_down"):
            value = getattr(record, name)
            if value is not None:
                self._writer.add_scalar(f"round/{name}", value, record.round)

    def evaluated(self, rows: list[dict[str, Any]]) -> None:
        """Write the evaluation's numbers, to disk."""
        for row in rows:
            for name in row.keys() - {"round", "split", LOWER_IS_BETTER}:
                self._writer.add_scalar(f"{row['split']}/{name}", row[name], row["round"])
        self._writer.flush()
