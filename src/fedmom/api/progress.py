"""What a run shows while it goes on: a live bar on a terminal, plain lines elsewhere."""

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
)
from rich.text import Text

from fedmom.core.errors import FedMomError
from fedmom.core.progress import bars
from fedmom.core.types import LOWER_IS_BETTER
from fedmom.experiments.build import Experiment
from fedmom.experiments.results import Result, metrics_of
from fedmom.experiments.sweep import Outcome
from fedmom.training.loop import Record

LEAST_BAR, MOST_BAR = 5, 30  # columns
SHORT = {"accuracy": "acc"}


class RoundsPerSecond(ProgressColumn):
    """Rounds per second."""

    def render(self, task: Task) -> Text:
        """Return the rate, once there is one."""
        return Text(f"{task.speed:.1f} rounds/s" if task.speed else "compiling", "cyan")


class ProgressLine(ProgressColumn):
    """A run in one line, as wide as the terminal: what is least needed is left out first."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        """Return the line."""
        fields = task.fields
        rate = f"{task.speed:.1f} rounds/s" if task.speed else "compiling"
        return fitted_line(
            self._console.width - 1,
            task.description,
            (int(task.completed), int(task.total or 0)),
            _clock(task.time_remaining),
            [fields["loss"], fields["test"], fields["train"], rate],
        )


def fitted_line(
    width: int, name: str, done: tuple[int, int], left: str, numbers: Sequence[str]
) -> Text:
    """Return a progress line that fits a width: name, bar, round, time left, then numbers.

    Args:
        width: The columns there are.
        name: What runs; cut where there is little room.
        done: Rounds done, and all rounds.
        left: The time left.
        numbers: Texts, the most needed first; the last ones are left out where there is no room.

    Examples:
        >>> fitted_line(34, "fedavg", (5, 10), "0:09", ["loss 0.5", "acc 0.8"]).plain
        'fedavg ━━━━━━━━ 5/10 0:09 loss 0.5'
    """
    place = f"{done[0]}/{done[1]}"
    name = name if len(name) <= width // 4 else name[: width // 4 - 1] + "…"
    room = width - len(name) - len(place) - len(left) - LEAST_BAR - 3
    shown = []
    for text in filter(None, numbers):
        if len(text) + 1 > room:
            break
        shown.append(text)
        room -= len(text) + 1
    bar = min(LEAST_BAR + max(0, room), MOST_BAR)
    full = bar * done[0] // max(done[1], 1)
    return Text(" ").join(
        [
            Text(name, "bold"),
            Text.assemble(("━" * full, "bar.complete"), ("━" * (bar - full), "bar.back")),
            Text(place, "progress.download"),
            Text(left, "progress.remaining"),
            *(Text(text, "green" if "test" in text else "") for text in shown),
        ]
    )


def _clock(seconds: float | None) -> str:
    """Return a time as hours, minutes and seconds, in as few digits as it takes."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class LiveBar:
    """One line that moves: round, time left, loss, metrics, rate."""

    def __init__(self, console: Console, label: str) -> None:
        self._progress = Progress(ProgressLine(console), console=console)
        self._task = self._progress.add_task(label, total=None, loss="", train="", test="")

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
            self._progress.update(self._task, loss=f"loss {record.train_loss:.3f}")
        self._progress.advance(self._task)

    def evaluated(self, rows: list[dict[str, Any]]) -> None:
        """Show the newest evaluation."""
        shown: dict[str, Any] = {row["split"]: score(row) for row in rows}
        self._progress.update(self._task, **shown)


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
        _print_line(self._console, f"{place}  {summary(rows)}")


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
        _print_line(self._console, f"{place}  {_end(outcome)}")


def _print_line(console: Console, text: str) -> None:
    """Print one line, however long: a log is searched by line."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _end(outcome: Outcome) -> str:
    """Return the test metric that a run has ended with."""
    if not isinstance(outcome, Result):
        return "no result"
    value = outcome.last("test", outcome.metric)
    return f"no test {outcome.metric}" if value is None else f"test {outcome.metric} {value:.4f}"


def watch(console: Console, label: str) -> LiveBar | PlainLines:
    """Return a live bar for a terminal, plain lines for anything else."""
    return LiveBar(console, label) if console.is_terminal else PlainLines(console, label)


def score(row: Mapping[str, Any]) -> str:
    """Return the first metric of an evaluation, short enough for a line beside a bar."""
    name = next(iter(metrics_of(row)), "loss")
    return f"{row['split']} {SHORT.get(name, name)} {row[name]:.3f}"


def summary(rows: list[dict[str, Any]]) -> str:
    """Return an evaluation in a few words."""
    return "  ".join(
        " ".join([row["split"], *(f"{n} {row[n]:.4f}" for n in ("loss", *metrics_of(row)))])
        for row in rows
    )


def tensorboard(path: Path, experiment: Experiment) -> list["TensorBoard"]:
    """Return the writer of TensorBoard files in a run's folder, if its settings ask for it."""
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
