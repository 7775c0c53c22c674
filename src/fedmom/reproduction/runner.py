"""The plan's runs, each trained once: those that have ended are read, the others are run."""

import contextlib
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from fedmom import data as datasets
from fedmom.core.errors import FedMomError
from fedmom.core.files import inner_folder, slug
from fedmom.experiments import results
from fedmom.experiments.build import Experiment, prepare
from fedmom.experiments.collection import Outcome, side_by_side
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.results import Result
from fedmom.experiments.settings import RunConfig
from fedmom.reproduction import plan
from fedmom.reproduction.measures import Choice, best
from fedmom.reproduction.plan import PAPER, LrGrid, PaperTask, Scale, Variant


class Cache:
    """The runs below a folder, found by their settings, whatever their folders are called."""

    def __init__(self, folder: Path, scale: Scale) -> None:
        self.folder, self.scale = folder, scale
        self._tasks = {task.data: task for task in scale.tasks}
        self.load = functools.cache(datasets.load)
        self._experiments: dict[RunConfig, Experiment] = {}
        self._results: dict[RunConfig, Result] = {}
        self._paths: dict[RunConfig, Path] = {}
        for path in sorted(folder.glob("*/config.toml")):
            with contextlib.suppress(FedMomError):  # of another version: not a run of the plan
                config = RunFolder.open(inner_folder(path.parent)).settings()
                if config not in self._paths or _is_finished(path.parent, config):
                    self._paths[config] = path.parent

    def experiment(self, config: RunConfig) -> Experiment:
        """Return a run's parts, its settings completed. Each dataset is loaded once."""
        if config not in self._experiments:
            self._experiments[config] = prepare(config, self.load(config.data))
        return self._experiments[config]

    def path(self, config: RunConfig) -> Path:
        """Return the folder of a run, there or not yet."""
        complete = self.experiment(config).config
        return self._paths.get(complete, inner_folder(self.folder / self._name(config, complete)))

    def result(self, config: RunConfig) -> Result | None:
        """Return the result of a run that has ended, at its last round or by diverging."""
        if config not in self._results:
            complete = self.experiment(config).config
            path = self._paths.get(complete)
            if path is None or not _has_ended(path, complete):
                return None
            self._results[config] = results.read(path)
        return self._results[config]

    def keep(self, config: RunConfig, result: Result) -> None:
        """Remember the result of a run that has just ended."""
        self._results[config] = result

    def results(self, configs: Sequence[RunConfig]) -> list[Result]:
        """Return the results of those runs that have ended."""
        return [run for config in configs if (run := self.result(config)) is not None]

    def runs(
        self,
        task: PaperTask,
        algorithm: str,
        lr: float,
        seeds: Sequence[int],
        variant: Variant = PAPER,
        epochs: float | None = None,
    ) -> list[Result]:
        """Return the results of a method's runs at one γ that have ended."""
        run = self.scale.run
        return self.results([run(task, algorithm, lr, s, variant, epochs) for s in seeds])

    def choose(self, grid: LrGrid) -> float | None:
        """Return the best γ of a search once all of its runs have ended."""
        choice = self.choice(grid)
        return None if choice is None else choice.lr

    def choice(self, grid: LrGrid) -> Choice | None:
        """Return the best and the next best γ once all runs have ended."""
        ended = {
            lr: {s: run for s, c in seeds.items() if (run := self.result(c)) is not None}
            for lr, seeds in grid.items()
        }
        whole = all(len(ended[lr]) == len(seeds) for lr, seeds in grid.items())
        return best(ended) if whole else None

    def cost(self, config: RunConfig) -> float:
        """Return about how much work a round of a run is, in samples of the cheaper model."""
        experiment = self.experiment(config)
        size = float(np.mean(experiment.data.train.size))
        work = experiment.work
        samples = size if work.batch_size is None else work.count(0, int(size)) * work.batch_size
        return samples * experiment.config.clients_per_round * self._tasks[config.data].cost

    def _name(self, config: RunConfig, complete: RunConfig) -> str:
        """Return a name to read, made one of its kind by the settings' digest."""
        digest = hashlib.sha256(complete.toml().encode()).hexdigest()[:8]
        parts = [self._tasks[config.data].name.lower(), config.algorithm, f"lr{config.lr}"]
        parts += [] if config.local_epochs is None else [f"epochs{config.local_epochs}"]
        parts += [config.weighting] if config.weighting != "population" else []
        parts += [config.sampler] if config.sampler != "uniform" else []
        parts += [f"M{config.clients_per_round}"] if config.clients_per_round != 2 else []
        text = "-".join([*parts, f"seed{config.seed}"])
        return f"{slug(text, keep='-_.=', other='_')}-{digest}"


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
        self._done = self._skipped = self._total = 0.0  # work; skipped: done before
        self._rounds: dict[RunConfig, int] = {}
        self._runs = 0
        columns = TextColumn("[bold]{task.description}"), BarColumn(), TaskProgressColumn()
        left = TextColumn("{task.fields[left]}")
        self._progress = Progress(*columns, left, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=None, left="")

    def __enter__(self) -> "Overall":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def expect(self, runs: Sequence[RunConfig]) -> None:
        """Count the work that is left: runs that are missing, each counted once."""
        left = dict.fromkeys(runs)
        self._runs = len(self._rounds) + len(left)
        self._total = self._done + sum(self._cost(config) * config.rounds for config in left)

    def advance(self, config: RunConfig, rounds: int) -> None:
        """Count rounds of a run; the first call tells how many were done before."""
        work = self._cost(config) * rounds
        with self._lock:  # runs report from their own threads
            first = config not in self._rounds
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
        """Subtract the rest of a run from the work that is left."""
        with self._lock:
            self._total -= self._cost(config) * (config.rounds - self._rounds.get(config, 0))
            self._rounds[config] = config.rounds
            self._line(config, why)

    def _line(self, config: RunConfig, text: str) -> None:
        if not self._console.is_terminal:
            share = self._done / self._total if self._total else 1.0
            left = f", {left}" if (left := self._left()) else ""
            self._console.print(
                f"{self._count()}, {share:.0%} of the work{left}: {self._name(config)}: {text}",
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
        return f"about {hours}{minutes % 60} min left"


def complete(cache: Cache, parts: Sequence[str], console: Console, runtime: str = "local") -> None:
    """Run what the parts need and what has not ended.

    Later runs depend on the results of earlier ones, so the plan is asked again until nothing is
    missing. The first seeds of everything come first: then there is something to look at.
    """
    with Overall(cache.cost, lambda config: cache.path(config).name, console) as overall:
        for most in (1, 3, None):
            while missing := _missing(cache, plan.wanted(cache.scale, parts, cache.choose, most)):
                overall.expect([*missing, *_likely(cache, parts)])
                _run(cache, missing, overall, runtime)


def missing_text(cache: Cache, parts: Sequence[str]) -> str:
    """Say how much is still missing; return nothing if all runs have ended."""
    wanted = plan.wanted(cache.scale, parts, cache.choose)
    ended = len(cache.results(wanted))
    if ended == len(wanted):
        return ""
    return f"Not finished: {ended} of at least {len(wanted)} runs have ended."


def _missing(cache: Cache, wanted: Sequence[RunConfig]) -> list[RunConfig]:
    """Return the runs that have not ended, the longest first, so that no core waits for one."""
    missing = [config for config in wanted if cache.result(config) is None]
    return sorted(missing, key=lambda c: -cache.cost(c) * c.rounds)


def _likely(cache: Cache, parts: Sequence[str]) -> list[RunConfig]:
    """Return the runs that are likely to be missing later, for a guess at every γ still open."""

    def guess(grid: LrGrid) -> float | None:
        lrs = list(grid)
        return cache.choose(grid) or (lrs[len(lrs) // 2] if lrs else None)

    return _missing(cache, plan.wanted(cache.scale, parts, guess))


def _run(cache: Cache, configs: Sequence[RunConfig], overall: Overall, runtime: str) -> None:
    by_path = {cache.path(config): config for config in configs}
    experiments = {path: cache.experiment(config) for path, config in by_path.items()}
    for path, experiment in experiments.items():
        if not (path / "config.toml").exists():
            RunFolder.create(path, experiment.config)

    failures: list[FedMomError] = []

    def ended(path: Path, result: Outcome) -> None:
        if isinstance(result, FedMomError):
            failures.append(result)
        elif result.stop and not result.diverged:
            failures.append(FedMomError(result.why))
        else:
            if result.diverged:
                overall.diverged(by_path[path], result.why)
            cache.keep(by_path[path], result)

    # The first event of a run has the rounds that were done before.
    side_by_side(
        experiments,
        [lambda event: overall.advance(by_path[event.path], 1 if event.record else event.round)],
        ended,
        runtime=runtime,
    )
    if failures:  # the others have ended by now, and are kept
        raise failures[0]


def _has_ended(path: Path, config: RunConfig) -> bool:
    kind, _ = RunFolder.open(path).stop()
    return kind == "diverged" or _is_finished(path, config)


def _is_finished(path: Path, config: RunConfig) -> bool:
    """Whether the checkpoint is that of the last round; the logs may be ahead of it."""
    return (RunFolder.open(path).saved_round() or 0) >= config.rounds
