"""The results of the runs that have ended, gathered for figures, tables and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedmom.core.errors import FedMomError
from fedmom.experiments.results import Result
from fedmom.reproduction import directions, plan
from fedmom.reproduction.directions import Directions
from fedmom.reproduction.measures import Measures, measure
from fedmom.reproduction.plan import METHODS, PAPER, RIVALS, PaperTask, Scale, Variant
from fedmom.reproduction.runner import Cache

# By method, then by the choice of what is varied, such as γ.
RunsByChoice = Mapping[str, Mapping[float, Sequence[Result]]]


@dataclass(frozen=True)
class Entry:
    """A method in a contest, at its step size."""

    lr: float
    at_edge: bool  # γ is the first or last of its grid
    measures: Measures


@dataclass(frozen=True)
class Contest:
    """Methods that are compared in one setting."""

    where: str
    entries: Mapping[str, Entry]  # by algorithm

    @property
    def target(self) -> float:
        """The test accuracy that rounds are counted to."""
        return next(iter(self.entries.values())).measures.target


@dataclass(frozen=True)
class Findings:
    """Everything, by the task's name where it is of one task. What has not ended is left out."""

    scale: Scale
    equal: Mapping[str, Contest]
    own: Mapping[str, Contest]
    over_lr: Mapping[str, RunsByChoice]
    over_epochs: Mapping[str, RunsByChoice]  # by which γ the methods have
    directions: Mapping[str, Directions]
    beyond: Mapping[str, Contest]  # by variant
    author: Mapping[str, Measures]  # by label

    def at_same_lr(self, task: PaperTask) -> dict[float, Contest]:
        """FedAvg and FedMom at every γ of the grid at which both have ended."""
        curves = self.over_lr[task.name]
        both = [lr for lr in task.lrs if all(lr in curves.get(m, {}) for m in RIVALS)]
        return {
            lr: Contest(
                f"{task.name}, γ {lr:g}",
                {
                    m: Entry(lr, False, measures)
                    for m, measures in measure({m: curves[m][lr] for m in RIVALS}).items()
                },
            )
            for lr in both
        }


def gather(
    cache: Cache, scale: Scale, parts: Sequence[str], folder: Path, console: Console, replay: bool
) -> Findings:
    """Read what has ended; replay FedAvg's runs, where allowed, for those parts that ask for it."""
    equal = {task.name: _equal(cache, scale, task) for task in scale.tasks}
    own = {task.name: _own(cache, scale, task, METHODS, PAPER) for task in scale.tasks}
    beyond = {v.name: _own(cache, scale, scale.femnist, RIVALS, v) for v in scale.variants}
    known = {
        task.name: _directions(
            cache, scale, task, folder, console, replay and _asked(scale, task, parts)
        )
        for task in scale.tasks
    }
    return Findings(
        scale,
        {name: contest for name, contest in equal.items() if contest.entries},
        {name: contest for name, contest in own.items() if contest.entries},
        {task.name: _over_lr(cache, scale, task) for task in scale.tasks},
        _over_epochs(cache, scale),
        {name: products for name, products in known.items() if products},
        {name: contest for name, contest in beyond.items() if contest.entries},
        _author(cache, scale),
    )


def _asked(scale: Scale, task: PaperTask, parts: Sequence[str]) -> bool:
    return "fig3" in parts or ("fig4" in parts and task == scale.femnist)


def _equal(cache: Cache, scale: Scale, task: PaperTask) -> Contest:
    choice = cache.choice(scale.search(task, "fedavg", cache.choose))
    if choice is None:
        return Contest(task.name, {})
    runs = {m: cache.results(scale.runs(task, m, choice.lr, task.seeds)) for m in METHODS}
    return Contest(
        f"{task.name}, equal γ",
        {m: Entry(choice.lr, choice.at_edge, each) for m, each in measure(runs).items()},
    )


def _own(
    cache: Cache, scale: Scale, task: PaperTask, methods: Sequence[str], variant: Variant
) -> Contest:
    grids = {m: scale.search(task, m, cache.choose, variant) for m in methods}
    choices = {m: choice for m, grid in grids.items() if (choice := cache.choice(grid))}
    runs = {
        m: cache.results(scale.runs(task, m, choice.lr, task.seeds, variant))
        for m, choice in choices.items()
    }
    where = f"{task.name}, own best γ" if variant == PAPER else variant.name
    return Contest(
        where,
        {m: Entry(choices[m].lr, choices[m].at_edge, each) for m, each in measure(runs).items()},
    )


def _over_lr(cache: Cache, scale: Scale, task: PaperTask) -> RunsByChoice:
    def ended(method: str, lr: float) -> list[Result]:
        return cache.results(scale.runs(task, method, lr, task.seeds))

    return {m: {lr: runs for lr in task.lrs if (runs := ended(m, lr))} for m in RIVALS}


def _over_epochs(cache: Cache, scale: Scale) -> Mapping[str, RunsByChoice]:
    own = {m: cache.choice(scale.search(scale.femnist, m, cache.choose)) for m in RIVALS}
    chosen = {"equal γ": dict.fromkeys(RIVALS, own["fedavg"]), "own best γ": own}
    return {
        which: {m: _at_epochs(cache, scale, m, choice.lr) for m, choice in rates.items() if choice}
        for which, rates in chosen.items()
    }


def _at_epochs(
    cache: Cache, scale: Scale, method: str, lr: float
) -> Mapping[float, Sequence[Result]]:
    task = scale.femnist
    seeds = task.seeds[: task.few]
    runs = {
        epochs: cache.results(scale.runs(task, method, lr, seeds, epochs=epochs))
        for epochs in scale.epochs
    }
    return {epochs: ended for epochs, ended in runs.items() if ended}


def _directions(
    cache: Cache, scale: Scale, task: PaperTask, folder: Path, console: Console, replay: bool
) -> Directions | None:
    """FedAvg's first tuning seed at the equal γ, seen also from where the next best γ ended."""
    choice = cache.choice(scale.search(task, "fedavg", cache.choose))
    if choice is None:
        return None
    seed = task.tuning[0]  # whose runs have all step sizes
    config = scale.run(task, "fedavg", choice.lr, seed)
    run = cache.result(config)
    second = cache.result(scale.run(task, "fedavg", choice.second, seed)) if choice.second else None
    if run is None or run.diverged:
        return None
    other = second.path if second and not second.diverged else None
    if not replay:
        return directions.stored(folder, run.path, other)
    fedsgd = task == scale.femnist  # Figure 4 is of FEMNIST
    try:
        return directions.directions(
            folder, run.path, cache.experiment(config), other=other, fedsgd=fedsgd, console=console
        )
    except FedMomError as error:  # the other figures need not wait for this one
        console.print(f"note: {error}", style="yellow", highlight=False)
        return None


def _author(cache: Cache, scale: Scale) -> Mapping[str, Measures]:
    task = scale.femnist
    choice = cache.choice(scale.search(task, "fedmom", cache.choose))
    if choice is None:
        return {}
    return measure(
        {
            label: cache.results(scale.runs(task, algorithm, choice.lr, task.seeds, variant))
            for label, (algorithm, variant) in plan.AUTHOR.items()
        }
    )
