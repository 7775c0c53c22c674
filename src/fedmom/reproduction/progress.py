"""Progress over the whole plan: how many runs have ended, and how long the rest will take."""

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from fedmom.experiments.settings import RunConfig


class Overall:
    """A bar on a terminal, else a line for every run that ends.

    Runs differ in how long a round takes, so that work is counted in units of cost, and the time
    that is left follows from the work done since the start. (The bars of ``core.progress`` tell
    the time from the last half minute only.)

    Args:
        cost: About how much work a round of a run is.
        name: The name that a run is shown by.
        console: Where it is shown.
    """

    def __init__(
        self,
        cost: Callable[[RunConfig], float],
        name: Callable[[RunConfig], str],
        console: Console,
    ) -> None:
        self._cost, self._name, self._console = cost, name, console
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._done = 0.0  # work
        self._skipped = 0.0  # the part of it that was done before
        self._total = 0.0
        self._rounds: dict[RunConfig, int] = {}
        self._runs = 0
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, left="")

    def __enter__(self) -> "Overall":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def expect(self, runs: Sequence[RunConfig]) -> None:
        """Count the work that is left: runs that are missing, each counted once."""
        left = dict.fromkeys(runs)
        self._runs = len(self._rounds) + len(left)
        self._total = self._done + sum(self._cost(config) * config.rounds for config in left)

    def advance(self, config: RunConfig, rounds: int) -> None:
        """Count rounds of a run; the first call tells how many were done before."""
        with self._lock:  # runs tell of their rounds on threads of their own
            self._add(config, rounds, first=config not in self._rounds)

    def _add(self, config: RunConfig, rounds: int, first: bool) -> None:
        work = self._cost(config) * rounds
        self._rounds[config] = self._rounds.get(config, 0) + rounds
        self._done += work
        self._skipped += work if first else 0
        self._progress.update(
            self._task,
            description=self._count(),
            total=self._total,
            completed=self._done,
            left=self._left(),
        )
        if not first and self._rounds[config] == config.rounds:
            self._line(config, "done")

    def diverged(self, config: RunConfig, why: str) -> None:
        """Take the rest of a run off the work that is left."""
        with self._lock:
            self._total -= self._cost(config) * (config.rounds - self._rounds.get(config, 0))
            self._rounds[config] = config.rounds
            self._line(config, why)

    def _line(self, config: RunConfig, text: str) -> None:
        if not self._console.is_terminal:
            share = self._done / self._total if self._total else 1.0
            self._console.print(
                f"{self._count()}, {share:.0%} of the work{self._left()}:"
                f" {self._name(config)}: {text}",
                highlight=False,
            )

    def _count(self) -> str:
        ended = sum(done >= config.rounds for config, done in self._rounds.items())
        return f"{ended} of about {self._runs} runs"

    def _left(self) -> str:
        fresh, seconds = self._done - self._skipped, time.monotonic() - self._began
        if fresh <= 0:
            return ""
        minutes = round(max(0.0, self._total - self._done) / fresh * seconds / 60)
        hours = f"{minutes // 60} h " if minutes >= 60 else ""
        return f", about {hours}{minutes % 60} min left"
