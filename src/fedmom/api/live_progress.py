"""Runs with what they show while under way: live bars on a terminal, plain lines elsewhere."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TaskID
from rich.text import Text

from fedmom.core.compilation import keep_programs
from fedmom.core.errors import FedMomError
from fedmom.core.types import Say
from fedmom.experiments.build import Experiment
from fedmom.experiments.collection import Outcome, side_by_side
from fedmom.experiments.execute import execute, warn
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.observers import (
    Event,
    Observers,
    RisingLoss,
    warn_if_rejected,
    warn_if_risen,
)
from fedmom.experiments.results import Result, metrics_of

if TYPE_CHECKING:
    from fedmom.api.runs import Run, Runs

LEAST_BAR, MOST_BAR = 5, 30  # columns
MOST_SHOWN = 8  # runs that have a line each
SHORT = {"accuracy": "acc"}


def finish(
    run: "Run", console: Console, *, callbacks: Observers = (), say: Say = warn, **how: Any
) -> Result:
    """Run until the last round; ``how`` are more arguments of ``execute``.

    Raises:
        DivergedError: A value is NaN or infinite. The folder holds all rounds before.
        BadReplyError: A reply could not be used.
    """
    keep_programs()
    config = run.experiment.config
    _say_what_is_slow([run], say)
    with RunProgress(console, {run.path: run.experiment}, {run.path: config.algorithm}) as shown:
        observers: Observers = [shown, RisingLoss(config, say), *callbacks]
        result = execute(RunFolder.open(run.path), run.experiment, observers, say=say, **how)
    warn_if_rejected({result.label: result}, say)
    if result.error:
        raise result.error
    warn_if_risen({result.label: result}, say)
    return result


def finish_all(
    runs: "Runs", console: Console, *, callbacks: Observers = (), say: Say = warn, **how: Any
) -> tuple[dict[str, Result], dict[str, FedMomError]]:
    """Run side by side until the last round; a run that fails does not stop the others.

    Returns:
        The results, and the errors of runs that could not be run at all.
    """
    keep_programs()
    by_path = {run.path: run.experiment for run in runs.values()}
    _say_what_is_slow(runs.values(), say)
    with RunProgress(console, by_path) as shown:
        found = side_by_side(by_path, [shown, *callbacks], shown.ended, say=say, **how)
    results = {path.name: each for path, each in found.items() if isinstance(each, Result)}
    errors = {path.name: each for path, each in found.items() if isinstance(each, FedMomError)}
    for name, result in results.items():
        if result.error:
            say(f"{name} stopped: {result.why}")
    warn_if_rejected(results, say)
    warn_if_risen(results, say)
    return results, errors


def _say_what_is_slow(runs: "Iterable[Run]", say: Say) -> None:
    """Say before new runs, once for each net, what of it will be slow."""
    new = (run.experiment for run in runs if RunFolder.open(run.path).is_new())
    by_model = {id(experiment.model): experiment for experiment in new}
    for text in dict.fromkeys(text for each in by_model.values() for text in each.slow_parts):
        say(text)


class ProgressLine(ProgressColumn):
    """A run in one line, as wide as the terminal: what is least needed is left out first."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        """Return the line."""
        fields = task.fields
        waiting = "" if task.finished else "compiling"
        rate = f"{task.speed:.1f} rounds/s" if task.speed else waiting
        numbers = [fields.get("loss", ""), fields.get("test", ""), fields.get("train", "")]
        return fitted_line(
            self._console.width - 1,
            task.description,
            (int(task.completed), int(task.total or 0)),
            _clock(task.time_remaining),
            [*numbers, rate],
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


class RunProgress:
    """An observer of runs that shows them: a line that moves for each, or lines of text.

    Of many runs, only all rounds together are shown. In a pipe, evaluations are printed, and how
    each of several runs ends.

    Args:
        console: Where they are shown.
        runs: The runs, by their folder.
        labels: What they are called; by default as their folders.
    """

    def __init__(
        self,
        console: Console,
        runs: Mapping[Path, Experiment],
        labels: Mapping[Path, str] | None = None,
    ) -> None:
        self._console, self._is_live = console, console.is_terminal
        self._rounds = {path: each.config.rounds for path, each in runs.items()}
        self._labels = {path: path.name for path in runs} | dict(labels or {})
        self._progress = Progress(ProgressLine(console), console=console, disable=not self._is_live)
        self._lock, self._begun, self._ended = threading.Lock(), set[Path](), 0
        self._lines: dict[Path, TaskID] = {}
        if len(runs) <= MOST_SHOWN:
            self._lines = {
                path: self._progress.add_task(self._labels[path], total=rounds)
                for path, rounds in self._rounds.items()
            }
        self._left = sum(self._rounds.values())
        self._all: TaskID | None = None
        if len(runs) > 1:
            self._all = self._progress.add_task(f"{len(runs)} runs, rounds", total=self._left)

    def __enter__(self) -> "RunProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Show a round, or where a run starts: the bar of all runs is of what is left."""
        line = self._lines.get(event.path)
        shown: dict[str, Any] = {split: _score(split, row) for split, row in event.evals.items()}
        if event.record and event.record.train_loss is not None:
            shown["loss"] = f"loss {event.record.train_loss:.3f}"
        with self._lock:
            first = event.path not in self._begun
            self._begun.add(event.path)
            if line is not None:
                move = self._progress.reset if first else self._progress.update
                move(line, completed=event.round, **shown)
            if self._all is not None and first:
                self._left -= event.round
                self._progress.update(self._all, total=self._left)
            elif self._all is not None:
                self._progress.advance(self._all)
        if event.evals and line is not None and not self._is_live:
            place = f"{self._labels[event.path]} {event.round}/{self._rounds[event.path]}"
            self._print(f"{place}  {_summary(event.evals)}")

    def ended(self, path: Path, outcome: Outcome) -> None:
        """Print how one of several runs has ended, for logs and pipes."""
        self._ended += 1
        if not self._is_live:
            self._print(f"{self._ended}/{len(self._rounds)} {path.name}  {_end(outcome)}")

    def _print(self, text: str) -> None:
        """Print one line, however long: a log is searched by line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def _end(outcome: Outcome) -> str:
    """Return the test metric that a run has ended with."""
    if not isinstance(outcome, Result):
        return "no result"
    value = outcome.last_if_any("test", outcome.metric)
    return f"no test {outcome.metric}" if value is None else f"test {outcome.metric} {value:.4f}"


def _score(split: str, row: Mapping[str, Any]) -> str:
    """Return the first metric of an evaluation, short enough for a line with a bar."""
    name = next(iter(metrics_of(row)), "loss")
    return f"{split} {SHORT.get(name, name)} {row[name]:.3f}"


def _summary(evals: Mapping[str, Mapping[str, Any]]) -> str:
    """Return an evaluation in a few words."""
    return "  ".join(
        " ".join([split, *(f"{n} {row[n]:.4f}" for n in ("loss", *metrics_of(row)))])
        for split, row in evals.items()
    )
