"""The plan's runs, each trained once: what is there is read, what is missing is run."""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from fedmom import config as settings
from fedmom import runs, sweeps
from fedmom.config import Experiment, RunConfig
from fedmom.data import FederatedData
from fedmom.errors import FedMomError
from fedmom.paper import plan
from fedmom.paper.numbers import Choice, Run, best
from fedmom.paper.plan import LrGrid, Scale, Task
from fedmom.runs import RunFolder


class Cache:
    """The runs below a folder, found by their settings, whatever their folders are called."""

    def __init__(self, folder: Path, scale: Scale) -> None:
        self.folder = folder
        self._cost_of_sample = {task.data: task.cost for task in scale.tasks}
        self._names = {task.data: task.name.lower() for task in scale.tasks}
        self._loaded = sweeps.Loaded()
        self._experiments: dict[RunConfig, Experiment] = {}
        self._results: dict[RunConfig, Run] = {}
        self._costs: dict[RunConfig, float] = {}
        self._paths: dict[RunConfig, Path] = {}
        for path in sorted(folder.glob("*/config.toml")):
            self._adopt(path.parent)

    def _adopt(self, path: Path) -> None:
        try:
            config = RunFolder.open(path).settings()
        except FedMomError:
            return  # of another version: nothing that the plan asks for
        if config not in self._paths or _is_finished(path, config):
            self._paths[config] = path

    def experiment(self, config: RunConfig) -> Experiment:
        """Return a run's parts, its settings completed. Each dataset is loaded once."""
        if config not in self._experiments:
            self._experiments[config] = settings.prepare(config, self._loaded[config.data])
        return self._experiments[config]

    def data(self, task: Task) -> FederatedData:
        """Return a task's data."""
        return self._loaded[task.data]

    def path(self, config: RunConfig) -> Path:
        """Return the folder of a run, there or not yet."""
        complete = self.experiment(config).config
        return self._paths.get(complete, self.folder / self._name(config, complete))

    def result(self, config: RunConfig) -> Run | None:
        """Return a run that has ended, at its last round or by diverging."""
        if config not in self._results:
            run = _read(self.path(config), self.experiment(config).config)
            if run is None:
                return None
            self._results[config] = run
        return self._results[config]

    def results(self, configs: Sequence[RunConfig]) -> list[Run]:
        """Return those of the runs that have ended."""
        return [run for config in configs if (run := self.result(config)) is not None]

    def choose(self, grid: LrGrid) -> float | None:
        """Return the best γ of a grid once all of its runs have ended."""
        ended = all(self.result(config) for config in grid.configs())
        choice = self.choice(grid) if ended else None
        return None if choice is None else choice.lr

    def choice(self, grid: LrGrid) -> Choice | None:
        """Return the best γ by the seeds of the grid that have ended so far."""
        found = {
            lr: {s: run for s, c in seeds.items() if (run := self.result(c)) is not None}
            for lr, seeds in grid.runs.items()
        }
        return best(found)

    def cost(self, config: RunConfig) -> float:
        """Return about how much work a round of a run is, in samples of the cheaper model."""
        if config not in self._costs:
            self._costs[config] = self._cost(config)
        return self._costs[config]

    def _cost(self, config: RunConfig) -> float:
        experiment = self.experiment(config)
        size = float(np.mean(experiment.data.train.size))
        work = experiment.work
        samples = size if work.batch_size is None else work.count(0, int(size)) * work.batch_size
        return samples * experiment.config.clients_per_round * self._cost_of_sample[config.data]

    def _name(self, config: RunConfig, complete: RunConfig) -> str:
        """Return a name to read, made one of its kind by the settings' digest."""
        digest = hashlib.sha256(complete.toml().encode()).hexdigest()[:8]
        parts = [self._names[config.data], config.algorithm, f"lr{config.lr}"]
        if config.local_epochs is not None:
            parts.append(f"epochs{config.local_epochs}")
        if config.weighting != "population":
            parts.append(config.weighting)
        if config.clients_per_round != 2:
            parts.append(f"M{config.clients_per_round}")
        text = "-".join([*parts, f"seed{config.seed}"])
        return "".join(c if c.isalnum() or c in "-_.=" else "_" for c in text) + f"-{digest}"


def complete(cache: Cache, scale: Scale, parts: Sequence[str], console: Console) -> int:
    """Run all that the parts need and that is not there; return how many runs that was.

    Later runs depend on what earlier ones show, so the plan is asked again until nothing is
    missing. The first seed of everything comes first: then there is something to look at.
    """
    count = 0
    with _Overall(cache, scale, parts, console) as overall:
        for seeds in (scale.seeds[:1], scale.seeds):
            while missing := _missing(cache, plan.wanted(scale, parts, seeds, cache.choose)):
                overall.expect(missing)
                _run(cache, missing, overall)
                count += len(missing)
    return count


def missing_text(cache: Cache, scale: Scale, parts: Sequence[str]) -> str:
    """Say how much is still missing; nothing if all is there."""
    wanted = plan.wanted(scale, parts, scale.seeds, cache.choose)
    ended = len(cache.results(wanted))
    if ended == len(wanted):
        return ""
    return f"Not finished: {ended} of at least {len(wanted)} runs have ended."


def _missing(cache: Cache, wanted: Sequence[RunConfig]) -> list[RunConfig]:
    """Return what has not ended, the longest first, so that no core waits for the last one."""
    missing = [config for config in wanted if cache.result(config) is None]
    return sorted(missing, key=lambda c: -cache.cost(c) * c.rounds)


def _run(cache: Cache, configs: Sequence[RunConfig], overall: "_Overall") -> None:
    by_path = {cache.path(config): config for config in configs}
    for path, config in by_path.items():
        if not (path / "config.toml").exists():
            RunFolder.create(path, cache.experiment(config))
    sweeps.side_by_side(
        {path: cache.experiment(config) for path, config in by_path.items()},
        lambda path, rounds: overall.advance(by_path[path], rounds),
        lambda path, why: overall.diverged(by_path[path], _remember(path, why)),
    )


def _remember(path: Path, why: str) -> str:
    """Note that a run diverged, so that it is not tried again; other errors are the user's."""
    if "not finite" not in why:
        raise FedMomError(why)
    runs.write_atomic(path / "diverged.json", json.dumps({"why": why}).encode())
    return why


def _is_finished(path: Path, config: RunConfig) -> bool:
    try:
        pointer = json.loads((path / "checkpoint" / "checkpoint.json").read_bytes())
    except (OSError, ValueError):
        return False
    return bool(pointer["round"] >= config.rounds)


def _read(path: Path, config: RunConfig) -> Run | None:
    note = path / "diverged.json"
    diverged = json.loads(note.read_bytes())["why"] if note.exists() else ""
    if not diverged and not _is_finished(path, config):
        return None
    return Run(config, path, RunFolder.open(path).rows("evals.jsonl"), diverged)


@dataclass
class _Overall:
    """Progress over the whole plan: a bar on a terminal, else a line for every run that ends."""

    cache: Cache
    scale: Scale
    parts: Sequence[str]
    console: Console

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._done = 0.0  # work, in units of cost
        self._skipped = 0.0  # the part of it that was done before
        self._total = 0.0
        self._rounds: dict[RunConfig, int] = {}
        self._runs = 0
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, left="")

    def __enter__(self) -> "_Overall":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def expect(self, missing: Sequence[RunConfig]) -> None:
        """Count the work that is left: what is missing, and what is likely to be wanted then."""

        def guess(grid: LrGrid) -> float | None:
            lrs = list(grid.runs)
            return self.cache.choose(grid) or (lrs[len(lrs) // 2] if lrs else None)

        later = plan.wanted(self.scale, self.parts, self.scale.seeds, guess)
        left = dict.fromkeys([*missing, *(c for c in later if self.cache.result(c) is None)])
        self._runs = len(self._rounds) + len(left)
        self._total = self._done + sum(self.cache.cost(c) * c.rounds for c in left)

    def advance(self, config: RunConfig, rounds: int) -> None:
        """Count rounds of a run."""
        work = self.cache.cost(config) * rounds
        before = config not in self._rounds
        self._rounds[config] = self._rounds.get(config, 0) + rounds
        self._done += work
        self._skipped += work if before else 0
        self._progress.update(
            self._task,
            description=self._count(),
            total=self._total,
            completed=self._done,
            left=self._left(),
        )
        if not before and self._rounds[config] == config.rounds:
            self._line(config, "done")

    def diverged(self, config: RunConfig, why: str) -> None:
        """Take the rest of a run off what is left."""
        self._total -= self.cache.cost(config) * (config.rounds - self._rounds.get(config, 0))
        self._rounds[config] = config.rounds
        self._line(config, why)

    def _line(self, config: RunConfig, what: str) -> None:
        if not self.console.is_terminal:
            share = f"{self._done / self._total:.0%} of the work"
            name = self.cache.path(config).name
            self.console.print(
                f"{self._count()}, {share}{self._left()}: {name}: {what}", highlight=False
            )

    def _count(self) -> str:
        ended = sum(done >= config.rounds for config, done in list(self._rounds.items()))
        return f"{ended} of about {self._runs} runs"

    def _left(self) -> str:
        fresh, seconds = self._done - self._skipped, time.monotonic() - self._began
        if fresh <= 0:
            return ""
        minutes = round(max(0.0, self._total - self._done) / fresh * seconds / 60)
        hours = f"{minutes // 60} h " if minutes >= 60 else ""
        return f", about {hours}{minutes % 60} min left"
