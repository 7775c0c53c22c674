"""The results of the runs that have ended, gathered for figures, tables and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedmom.core.errors import FedMomError
from fedmom.experiments.results import Result
from fedmom.reproduction import directions, plan
from fedmom.reproduction.directions import Directions
from fedmom.reproduction.measures import Choice, Contest, Duel, Measures, duels, measure
from fedmom.reproduction.plan import METHODS, PAPER, RIVALS, PaperTask, Scale, Variant
from fedmom.reproduction.runner import Cache

# By method, then by the choice of what is varied, such as γ.
RunsByChoice = Mapping[str, Mapping[float, Sequence[Result]]]


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

    def at_same_lr(self, task: PaperTask) -> dict[float, Duel]:
        """Return FedMom against FedAvg at every γ of the grid at which both have ended."""
        curves, found = self.over_lr[task.name], {}
        for lr in task.lrs:
            runs = {m: curves.get(m, {}).get(lr, ()) for m in RIVALS}
            if all(runs.values()):
                choices = dict.fromkeys(RIVALS, Choice(lr, None, at_edge=False))
                found[lr] = Contest(f"{task.name}, γ {lr:g}", choices, measure(runs))
        return dict(zip(found, duels([*found.values()]), strict=True))


def gather(
    cache: Cache, parts: Sequence[str], folder: Path, console: Console, replay: bool
) -> Findings:
    """Read what has ended; replay FedAvg's runs, where allowed, for those parts that ask for it."""
    scale, femnist = cache.scale, cache.scale.femnist
    equal, own, over_lr, aims, beyond = {}, {}, {}, {}, {}
    for task in scale.tasks:
        choices = _choices(cache, task, METHODS)
        at_fedavgs = dict.fromkeys(METHODS, choices["fedavg"]) if "fedavg" in choices else {}
        equal[task.name] = _at(cache, f"{task.name}, equal γ", task, at_fedavgs)
        own[task.name] = _at(cache, f"{task.name}, own best γ", task, choices)
        over_lr[task.name] = {
            m: _by_choice({lr: cache.runs(task, m, lr, task.seeds) for lr in task.lrs})
            for m in RIVALS
        }
        asked = "fig3" in parts or ("fig4" in parts and task == femnist)
        if choice := choices.get("fedavg"):
            aims[task.name] = _directions(cache, task, choice, folder, console, replay and asked)
    for variant in scale.variants:
        choices = _choices(cache, femnist, RIVALS, variant)
        beyond[variant.name] = _at(cache, variant.name, femnist, choices, variant)
    return Findings(
        scale,
        _ended(equal),
        _ended(own),
        over_lr,
        _over_epochs(cache),
        {name: found for name, found in aims.items() if found},
        _ended(beyond),
        _author(cache),
    )


def _choices(
    cache: Cache, task: PaperTask, methods: Sequence[str], variant: Variant = PAPER
) -> dict[str, Choice]:
    """Return the best γ of each method whose search has ended."""
    searches = {m: cache.scale.search(task, m, cache.choose, variant) for m in methods}
    return {m: choice for m, grid in searches.items() if (choice := cache.choice(grid))}


def _at(
    cache: Cache,
    where: str,
    task: PaperTask,
    choices: Mapping[str, Choice],
    variant: Variant = PAPER,
) -> Contest:
    """Return methods, each at a γ that was chosen for it."""
    runs = {m: cache.runs(task, m, c.lr, task.seeds, variant) for m, c in choices.items()}
    return Contest(where, choices, measure(runs))


def _ended(contests: Mapping[str, Contest]) -> dict[str, Contest]:
    return {name: contest for name, contest in contests.items() if contest.measures}


def _by_choice(runs: Mapping[float, Sequence[Result]]) -> dict[float, Sequence[Result]]:
    """Return the choices of which some runs have ended."""
    return {choice: ended for choice, ended in runs.items() if ended}


def _over_epochs(cache: Cache) -> Mapping[str, RunsByChoice]:
    scale, task = cache.scale, cache.scale.femnist
    own = _choices(cache, task, RIVALS)
    chosen = {"equal γ": dict.fromkeys(RIVALS, own.get("fedavg")), "own best γ": own}
    seeds = task.seeds[: task.few]
    return {
        which: {
            m: _by_choice(
                {e: cache.runs(task, m, choice.lr, seeds, epochs=e) for e in scale.epochs}
            )
            for m, choice in rates.items()
            if choice
        }
        for which, rates in chosen.items()
    }


def _directions(
    cache: Cache, task: PaperTask, choice: Choice, folder: Path, console: Console, replay: bool
) -> Directions | None:
    """FedAvg's first tuning seed at the equal γ, seen also from where the next best γ ended."""
    seed = task.tuning[0]  # whose runs have all learning rates
    config = cache.scale.run(task, "fedavg", choice.lr, seed)
    run = cache.result(config)
    second = cache.runs(task, "fedavg", choice.second, [seed]) if choice.second else []
    if run is None or run.diverged:
        return None
    other = second[0].path if second and not second[0].diverged else None
    known = directions.stored(folder, run.path, other)
    if known is not None or not replay:
        return known
    fedsgd = task == cache.scale.femnist  # Figure 4 is of FEMNIST
    parts = cache.experiment(config)
    try:
        made = directions.replay(run.path, parts, other=other, fedsgd=fedsgd, console=console)
    except FedMomError as error:  # the other figures need not wait for this one
        console.print(f"note: {error}", style="yellow", highlight=False)
        return None
    directions.store(folder, run.path, made)
    return made


def _author(cache: Cache) -> Mapping[str, Measures]:
    task = cache.scale.femnist
    own = _choices(cache, task, ["fedmom"])
    runs = {
        label: cache.runs(task, algorithm, choice.lr, task.seeds, variant)
        for choice in own.values()
        for label, (algorithm, variant) in plan.AUTHOR.items()
    }
    return measure(runs)
