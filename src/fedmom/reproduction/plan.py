"""What the paper's experiments ask for: scales, grids of step sizes, and the runs of each part.

Nothing here runs or reads anything. Which runs a part wants may depend on a choice that earlier
runs decide (the best step size of a grid); that choice is handed in, and is None until then.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedmom.experiments import build, settings
from fedmom.experiments.settings import RunConfig

PARTS = {
    "table1": "the settings of federated and of distributed optimization",
    "table2": "statistics of the data",
    "fig2": "how the clients' data differ",
    "fig3": "FedAvg's direction: <g, w - w*> over rounds",
    "fig4": "FedAvg and FedSGD: direction, loss, accuracy",
    "fig5": "FedSGD, FedAvg and FedMom on both datasets",
    "fig6": "FedAvg and FedMom over step sizes and local work",
    "beyond": "settings that the paper did not try",
    "author": "what the first author's code does differently",
}
NAMES = {
    "fedsgd": "FedSGD",
    "fedavg": "FedAvg",
    "fedmom": "FedMom",
    "fedmom_zero_start": "FedMom, v₀ = 0",
}
METHODS = ("fedsgd", "fedavg", "fedmom")
RIVALS = ("fedavg", "fedmom")


@dataclass(frozen=True)
class Task:
    """One of the two datasets, with its model, local work and step sizes."""

    name: str
    data: str
    settings: Mapping[str, Any]
    lrs: tuple[float, ...]  # γ, for FedAvg and for FedMom alike
    variant_lrs: tuple[float, ...]  # γ, for both, in other settings than the paper's
    fedsgd_lrs: tuple[float, ...]  # FedSGD's γ; none: FedSGD runs at the equal γ only
    grid_seeds: int | None  # seeds on which γ is chosen; None: all
    fedsgd_seeds: int | None
    fedsgd_share: float  # of the rounds that FedSGD runs for
    cost: float  # of a sample, relative to the other dataset: for the time that is left


@dataclass(frozen=True)
class Variant:
    """A setting to compare FedAvg and FedMom in."""

    name: str
    weighting: str = "population"
    decay: Literal["γ", "η"] | None = None  # what goes down to 0 along a cosine
    average: float | None = None  # of models, as --average
    clients: int = 2
    more_lrs: tuple[float, ...] = ()  # γ beyond the task's, where larger steps still train

    def settings(self, rounds: int, eval_every: int, lr: float) -> dict[str, Any]:
        """Return what the variant changes; more clients a round have fewer rounds, for equal work.

        Evaluations lie as close in work as they do in the paper's setting.
        """
        share = self.clients // 2
        rounds = max(1, rounds // share)
        values: dict[str, Any] = {
            "rounds": rounds,
            "eval-every": max(1, eval_every // share),
            "clients-per-round": self.clients,
            "weighting": self.weighting,
            "lr": f"cosine:start={lr:g},rounds={rounds}" if self.decay == "γ" else lr,
        }
        if self.decay == "η":
            values["server-lr"] = f"cosine:start=1,rounds={rounds}"
        if self.average is not None:
            values["average"] = self.average
        return values


PAPER = Variant("the paper's setting")
COHORT = Variant("cohort weights", "cohort")
COHORT_COSINE = Variant("cohort weights, cosine γ", "cohort", decay="γ")
COHORT_COSINE_ETA = Variant("cohort weights, cosine η", "cohort", decay="η")
COHORT_AVERAGE = Variant("cohort weights, averaged models", "cohort", average=0.99)
COHORT_COSINE_TEN = Variant(
    "cohort weights, cosine γ, M=10", "cohort", decay="γ", clients=10, more_lrs=(0.3,)
)
UNIFORM = Variant("equal weights", "uniform")
# The paper's equations beside the two deviations of its first author's code, alone and together.
AUTHOR = {
    "FedMom": ("fedmom", PAPER),
    "v₀ = 0": ("fedmom_zero_start", PAPER),
    "equal weights": ("fedmom", UNIFORM),
    "v₀ = 0, equal weights": ("fedmom_zero_start", UNIFORM),
}


@dataclass(frozen=True)
class LrGrid:
    """One method's runs over step sizes, by which its γ is chosen."""

    task: Task
    algorithm: str
    variant: Variant
    runs: Mapping[float, Mapping[int, RunConfig]]  # by γ, then by seed

    def configs(self) -> list[RunConfig]:
        """Return all runs of the grid."""
        return [config for seeds in self.runs.values() for config in seeds.values()]


Choose = Callable[[LrGrid], float | None]


@dataclass(frozen=True)
class Scale:
    """All of the plan's numbers."""

    name: str
    rounds: int
    eval_every: int
    seeds: tuple[int, ...]
    femnist: Task
    shakespeare: Task
    epochs: tuple[float, ...]  # local work in Figure 6, multiples of an epoch
    variants: tuple[Variant, ...]
    window: int  # rounds over which inner products are averaged

    @property
    def tasks(self) -> tuple[Task, Task]:
        """Both datasets."""
        return self.femnist, self.shakespeare

    def on(self, femnist: str | None, shakespeare: str | None) -> "Scale":
        """Return the scale on the user's data, where given."""
        return replace(
            self,
            femnist=replace(self.femnist, data=femnist or self.femnist.data),
            shakespeare=replace(self.shakespeare, data=shakespeare or self.shakespeare.data),
        )

    def run(
        self,
        task: Task,
        algorithm: str,
        lr: float,
        seed: int,
        variant: Variant = PAPER,
        epochs: float | None = None,
    ) -> RunConfig:
        """Return the settings of one run."""
        share = task.fedsgd_share if algorithm == "fedsgd" else 1
        values = {
            "data": task.data,
            "algorithm": algorithm,
            "seed": seed,
            **task.settings,
            **variant.settings(round(self.rounds * share), self.eval_every, lr),
        }
        if epochs is not None:
            values["local-epochs"] = epochs
        return settings.parse(build.fitting(values))

    def grid(
        self, task: Task, algorithm: str, seeds: Sequence[int], variant: Variant = PAPER
    ) -> LrGrid:
        """Return a method's grid of γ. Variants and FedSGD are tuned on the first seed."""
        fedsgd = algorithm == "fedsgd"
        count = 1 if fedsgd or variant != PAPER else task.grid_seeds
        lrs = task.lrs if variant == PAPER else task.variant_lrs + variant.more_lrs
        if fedsgd:
            lrs = task.fedsgd_lrs
        return LrGrid(
            task,
            algorithm,
            variant,
            {
                lr: {s: self.run(task, algorithm, lr, s, variant) for s in seeds[:count]}
                for lr in lrs
            },
        )

    def seeds_of(self, task: Task, algorithm: str, seeds: Sequence[int]) -> Sequence[int]:
        """Return the seeds of a method's runs at a chosen γ."""
        return seeds[: task.fedsgd_seeds] if algorithm == "fedsgd" else seeds

    def runs(
        self,
        task: Task,
        algorithm: str,
        lr: float,
        seeds: Sequence[int],
        variant: Variant = PAPER,
        epochs: float | None = None,
    ) -> list[RunConfig]:
        """Return a method's runs at one γ, one for each of its seeds."""
        own = self.seeds_of(task, algorithm, seeds)
        return [self.run(task, algorithm, lr, seed, variant, epochs) for seed in own]


def wanted(
    scale: Scale, parts: Sequence[str], seeds: Sequence[int], choose: Choose
) -> list[RunConfig]:
    """Return the runs that the parts need, each once, as far as they are decided."""
    runs = (run for part in parts if part in NEEDS for run in NEEDS[part](scale, seeds, choose))
    return list(dict.fromkeys(runs))


def _at_equal_lr(
    scale: Scale, task: Task, methods: Sequence[str], seeds: Sequence[int], choose: Choose
) -> Iterator[RunConfig]:
    grid = scale.grid(task, "fedavg", seeds)
    yield from grid.configs()
    lr = choose(grid)
    if lr is not None:
        for method in methods:
            yield from scale.runs(task, method, lr, seeds)


def _at_own_lr(
    scale: Scale,
    task: Task,
    methods: Sequence[str],
    seeds: Sequence[int],
    choose: Choose,
    variant: Variant = PAPER,
) -> Iterator[RunConfig]:
    for method in methods:
        grid = scale.grid(task, method, seeds, variant)
        yield from grid.configs()
        lr = choose(grid)
        if lr is not None:
            yield from scale.runs(task, method, lr, seeds, variant)


def _fig3(scale: Scale, seeds: Sequence[int], choose: Choose) -> Iterator[RunConfig]:
    for task in scale.tasks:
        yield from _at_equal_lr(scale, task, ["fedavg"], seeds, choose)


def _fig4(scale: Scale, seeds: Sequence[int], choose: Choose) -> Iterator[RunConfig]:
    return _at_equal_lr(scale, scale.femnist, ["fedsgd", "fedavg"], seeds, choose)


def _fig5(scale: Scale, seeds: Sequence[int], choose: Choose) -> Iterator[RunConfig]:
    for task in scale.tasks:
        yield from _at_equal_lr(scale, task, METHODS, seeds, choose)
        yield from _at_own_lr(scale, task, METHODS, seeds, choose)


def _fig6(scale: Scale, seeds: Sequence[int], choose: Choose) -> Iterator[RunConfig]:
    task = scale.femnist
    for method in RIVALS:
        yield from scale.grid(task, method, seeds).configs()
    equal = choose(scale.grid(task, "fedavg", seeds))
    for method in RIVALS:
        for lr in (equal, choose(scale.grid(task, method, seeds))):
            if lr is not None:
                for epochs in scale.epochs:
                    yield from scale.runs(task, method, lr, seeds, epochs=epochs)


def _beyond(scale: Scale, seeds: Sequence[int], choose: Choose) -> Iterator[RunConfig]:
    for variant in scale.variants:
        yield from _at_own_lr(scale, scale.femnist, RIVALS, seeds, choose, variant)


def _author(scale: Scale, seeds: Sequence[int], choose: Choose) -> Iterator[RunConfig]:
    grid = scale.grid(scale.femnist, "fedmom", seeds)
    yield from grid.configs()
    lr = choose(grid)
    if lr is not None:
        for algorithm, variant in AUTHOR.values():
            yield from scale.runs(scale.femnist, algorithm, lr, seeds, variant)


NEEDS: dict[str, Callable[[Scale, Sequence[int], Choose], Iterator[RunConfig]]] = {
    "fig3": _fig3,
    "fig4": _fig4,
    "fig5": _fig5,
    "fig6": _fig6,
    "beyond": _beyond,
    "author": _author,
}

FULL = Scale(
    name="full",
    rounds=2000,
    eval_every=100,
    seeds=(0, 1, 2),
    femnist=Task(
        name="FEMNIST",
        data="glyphs",
        settings={"model": "lenet5", "local-epochs": 1},
        lrs=(0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
        variant_lrs=(0.001, 0.003, 0.01, 0.03, 0.1),
        fedsgd_lrs=(0.03, 0.1, 0.3, 1),
        grid_seeds=None,
        fedsgd_seeds=None,
        fedsgd_share=1,
        cost=1,
    ),
    shakespeare=Task(
        name="Shakespeare",
        data="shakespeare",
        # An epoch of a role of the paper's size is about 330 steps, hours per run on two cores.
        settings={"model": "char_lstm", "local-steps": 10, "eval-samples": 4000},
        lrs=(0.01, 0.03, 0.1, 0.3, 1),
        variant_lrs=(),
        # A full gradient of a role costs thirty times the others' ten steps: FedSGD runs at the
        # equal γ only, once, and for a tenth of the rounds.
        fedsgd_lrs=(),
        grid_seeds=1,
        fedsgd_seeds=1,
        fedsgd_share=0.1,
        cost=9,
    ),
    epochs=(0.25, 0.5, 1, 2),
    variants=(
        PAPER,
        COHORT,
        COHORT_COSINE,
        COHORT_COSINE_ETA,
        COHORT_AVERAGE,
        COHORT_COSINE_TEN,
    ),
    window=100,
)
_FEW = {"eval-samples": 500}
QUICK = Scale(
    name="quick",
    rounds=60,
    eval_every=4,
    seeds=(0,),
    femnist=replace(
        FULL.femnist,
        data="glyphs:writers=60,samples=60",
        settings={**FULL.femnist.settings, **_FEW},
        lrs=(0.01, 0.03, 0.1),
        variant_lrs=(0.01, 0.03, 0.1),
        fedsgd_lrs=(0.1, 0.3, 1),
    ),
    shakespeare=replace(
        FULL.shakespeare,
        data="shakespeare:roles=40,samples=1000",
        settings={**FULL.shakespeare.settings, **_FEW},
        lrs=(0.1, 0.3, 1),
        fedsgd_share=0.5,
    ),
    epochs=(0.5, 1, 2),
    variants=(PAPER, COHORT_COSINE),
    window=10,
)
SCALES = {scale.name: scale for scale in (QUICK, FULL)}
