"""The plan's runs, each trained once: those that have ended are read, the others are run."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from fedmom.core.errors import FedMomError
from fedmom.core.files import slug
from fedmom.data.federated import FederatedData
from fedmom.experiments import results
from fedmom.experiments.build import Experiment, Loaded, prepare
from fedmom.experiments.collection import Outcome, side_by_side
from fedmom.experiments.events import Event
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.results import Result
from fedmom.experiments.settings import RunConfig
from fedmom.reproduction import plan
from fedmom.reproduction.measures import Choice, best
from fedmom.reproduction.plan import LrGrid, PaperTask, Scale
from fedmom.reproduction.progress import Overall


class Cache:
    """The runs below a folder, found by their settings, whatever their folders are called."""

    def __init__(self, folder: Path, scale: Scale) -> None:
        self.folder = folder
        self._cost_of_sample = {task.data: task.cost for task in scale.tasks}
        self._names = {task.data: task.name.lower() for task in scale.tasks}
        self._loaded = Loaded()
        self._experiments: dict[RunConfig, Experiment] = {}
        self._results: dict[RunConfig, Result] = {}
        self._costs: dict[RunConfig, float] = {}
        self._paths: dict[RunConfig, Path] = {}
        for path in sorted(folder.glob("*/config.toml")):
            self._adopt(path.parent)

    def _adopt(self, path: Path) -> None:
        try:
            config = RunFolder.open(path).settings()
        except FedMomError:
            return  # of another version: not a run of the plan
        if config not in self._paths or _is_finished(path, config):
            self._paths[config] = path

    def experiment(self, config: RunConfig) -> Experiment:
        """Return a run's parts, its settings completed. Each dataset is loaded once."""
        if config not in self._experiments:
            self._experiments[config] = prepare(config, self._loaded[config.data])
        return self._experiments[config]

    def data(self, task: PaperTask) -> FederatedData:
        """Return a task's data."""
        return self._loaded[task.data]

    def path(self, config: RunConfig) -> Path:
        """Return the folder of a run, there or not yet."""
        complete = self.experiment(config).config
        return self._paths.get(complete, self.folder / self._name(config, complete))

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

    def choose(self, grid: LrGrid) -> float | None:
        """Return the best γ of a search once all of its runs have ended."""
        choice = self.choice(grid)
        return None if choice is None else choice.lr

    def choice(self, grid: LrGrid) -> Choice | None:
        """Return the best and the next best γ once all runs have ended."""
        ended = {
            lr: {s: run for s, c in seeds.items() if (run := self.result(c)) is not None}
            for lr, seeds in grid.runs.items()
        }
        whole = all(len(ended[lr]) == len(seeds) for lr, seeds in grid.runs.items())
        return best(ended) if whole else None

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
        if config.sampler != "uniform":
            parts.append(config.sampler)
        if config.clients_per_round != 2:
            parts.append(f"M{config.clients_per_round}")
        text = "-".join([*parts, f"seed{config.seed}"])
        return f"{slug(text, keep='-_.=', other='_')}-{digest}"


def complete(
    cache: Cache,
    scale: Scale,
    parts: Sequence[str],
    console: Console,
    runtime: str = "local",
) -> None:
    """Run all that the parts need and that has not ended.

    Later runs depend on what earlier ones show, so the plan is asked again until nothing is
    missing. The first seeds of everything come first: then there is something to look at.
    """
    with Overall(cache.cost, lambda config: cache.path(config).name, console) as overall:
        for most in (1, 3, None):
            while missing := _missing(cache, plan.wanted(scale, parts, cache.choose, most)):
                overall.expect([*missing, *_likely(cache, scale, parts)])
                _run(cache, missing, overall, runtime)


def missing_text(cache: Cache, scale: Scale, parts: Sequence[str]) -> str:
    """Say how much is still missing; nothing if all is there."""
    wanted = plan.wanted(scale, parts, cache.choose)
    ended = len(cache.results(wanted))
    if ended == len(wanted):
        return ""
    return f"Not finished: {ended} of at least {len(wanted)} runs have ended."


def _missing(cache: Cache, wanted: Sequence[RunConfig]) -> list[RunConfig]:
    """Return the runs that have not ended, the longest first, so that no core waits for one."""
    missing = [config for config in wanted if cache.result(config) is None]
    return sorted(missing, key=lambda c: -cache.cost(c) * c.rounds)


def _likely(cache: Cache, scale: Scale, parts: Sequence[str]) -> list[RunConfig]:
    """Return the runs that are likely to be missing later, for a guess at every γ still open."""

    def guess(grid: LrGrid) -> float | None:
        lrs = list(grid.runs)
        return cache.choose(grid) or (lrs[len(lrs) // 2] if lrs else None)

    return _missing(cache, plan.wanted(scale, parts, guess))


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
            return
        if result.stop and not result.diverged:
            failures.append(FedMomError(result.why))
            return
        if result.diverged:
            overall.diverged(by_path[path], result.why)
        cache.keep(by_path[path], result)

    side_by_side(experiments, [partial(_advance, overall, by_path)], ended, runtime=runtime)
    if failures:  # the others have ended by now, and are kept
        raise failures[0]


def _advance(overall: Overall, configs: Mapping[Path, RunConfig], event: Event) -> None:
    """Count a round, or those that were done before."""
    overall.advance(configs[event.path], 1 if event.record else event.round)


def _has_ended(path: Path, config: RunConfig) -> bool:
    kind, _ = RunFolder.open(path).stop()
    return kind == "diverged" or _is_finished(path, config)


def _is_finished(path: Path, config: RunConfig) -> bool:
    """Whether the checkpoint is that of the last round; the logs may be ahead of it."""
    saved = RunFolder.open(path).saved_round()
    return saved is not None and saved >= config.rounds
