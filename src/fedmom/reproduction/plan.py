"""What the paper's experiments ask for: scales, grids of learning rates, and the runs of each part.

Nothing here runs or reads anything. The runs of a part may depend on a choice that earlier runs
decide (the best learning rate of a grid); that choice is an argument, and None until then.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedmom.experiments import settings
from fedmom.experiments.settings import RunConfig

PARTS = {  # with their headings
    "table1": "Table 1: settings",
    "table2": "Table 2: data",
    "fig2": "Figure 2: clients",
    "fig3": "Figure 3: direction",
    "fig4": "Figure 4: FedAvg and FedSGD",
    "fig5": "Figure 5: convergence",
    "fig6": "Figure 6: γ and H",
    "beyond": "Beyond the paper",
    "author": "The first author's code",
}
NAMES = {
    "fedsgd": "FedSGD",
    "fedavg": "FedAvg",
    "fedmom": "FedMom",
    "fedmom_zero_start": "FedMom, v₀ = 0",
}
METHODS = ("fedsgd", "fedavg", "fedmom")
RIVALS = ("fedavg", "fedmom")
# Learning rates that are tried, a factor of about three apart; a search covers neighbours.
LADDER = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True)
class PaperTask:
    """One of the two datasets, with its model, local work, learning rates and seeds."""

    name: str
    data: str
    settings: Mapping[str, Any]
    first_lrs: Mapping[str, tuple[float, ...]]  # where each method's search for its γ begins
    seeds: tuple[int, ...]  # of the runs that are reported
    tuning: tuple[int, ...]  # of the runs by which γ is chosen, and that are never reported
    lrs: tuple[float, ...] = ()  # γ over which FedAvg and FedMom are shown; none: not shown
    few: int = 0  # how many of the seeds the runs over H have
    fedsgd_share: float = 1  # of the rounds that FedSGD runs for
    cost: float = 1  # of a sample, relative to the other dataset: for the time that is left


@dataclass(frozen=True)
class Variant:
    """A setting to compare FedAvg and FedMom in."""

    name: str
    weighting: str = "population"
    sampler: str = "uniform"
    cosine: bool = False  # γ goes down to 0 along a cosine
    average: float | None = None  # of models, as --average
    clients: int = 2

    def settings(self, rounds: int, eval_every: int, lr: float) -> dict[str, Any]:
        """Return what the variant changes; more clients a round have fewer rounds, for equal work.

        Evaluations lie as close in work as they do in the paper's setting.
        """
        share = self.clients // 2
        rounds = max(1, rounds // share)
        return {
            "rounds": rounds,
            "eval-every": max(1, eval_every // share),
            "clients-per-round": self.clients,
            "weighting": self.weighting,
            "sampler": self.sampler,
            "lr": f"cosine:start={lr:g},rounds={rounds}" if self.cosine else lr,
            "average": self.average,
        }


PAPER = Variant("the paper's setting")
COHORT_COSINE = Variant("cohort weights, cosine γ", "cohort", cosine=True)
VARIANTS = (
    PAPER,
    Variant("cosine γ", cosine=True),
    Variant("averaged models", average=0.99),
    Variant("cohort weights", "cohort"),
    COHORT_COSINE,
    Variant("cohort weights, averaged models", "cohort", average=0.99),
    # Drawn in proportion to n_k and weighted alike: unbiased, as the paper's weights are.
    Variant("drawn by size", "uniform", "weighted"),
    Variant("drawn by size, cosine γ", "uniform", "weighted", cosine=True),
    Variant("drawn by size, averaged models", "uniform", "weighted", average=0.99),
    replace(COHORT_COSINE, name="cohort weights, cosine γ, M=10", clients=10),
    Variant("drawn by size, cosine γ, M=10", "uniform", "weighted", cosine=True, clients=10),
)
UNIFORM = Variant("equal weights", "uniform")
# The paper's equations, and the two deviations of its first author's code, alone and together.
AUTHOR = {
    "FedMom": ("fedmom", PAPER),
    "v₀ = 0": ("fedmom_zero_start", PAPER),
    "equal weights": ("fedmom", UNIFORM),
    "v₀ = 0, equal weights": ("fedmom_zero_start", UNIFORM),
}


# One method's runs over γ and tuning seeds, by which its γ is chosen.
LrGrid = Mapping[float, Mapping[int, RunConfig]]
Choose = Callable[[LrGrid], float | None]


@dataclass(frozen=True)
class Scale:
    """All of the plan's numbers."""

    name: str
    rounds: int
    eval_every: int
    femnist: PaperTask
    shakespeare: PaperTask
    epochs: tuple[float, ...]  # local work in Figure 6, multiples of an epoch
    variants: tuple[Variant, ...]
    window: int  # rounds over which inner products are averaged

    @property
    def tasks(self) -> tuple[PaperTask, PaperTask]:
        """Both datasets."""
        return self.femnist, self.shakespeare

    def on(self, femnist: str | None, shakespeare: str | None) -> "Scale":
        """Return the scale on the user's data, where given."""
        data = {"femnist": femnist, "shakespeare": shakespeare}
        given = {k: replace(getattr(self, k), data=path) for k, path in data.items() if path}
        return replace(self, **given)

    def run(
        self,
        task: PaperTask,
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
            **({} if epochs is None else {"local-epochs": epochs}),
        }
        from fedmom.experiments import defaults  # loads JAX, which `fedmom paper --help` need not

        return settings.parse(defaults.fitting({k: v for k, v in values.items() if v is not None}))

    def search(
        self, task: PaperTask, algorithm: str, choose: Choose, variant: Variant = PAPER
    ) -> LrGrid:
        """Return a method's runs over γ: the first ones, and more beyond a best at the end.

        The rule is the same for every method, so no grid is placed by hand after looking.
        """
        lrs = task.first_lrs.get(algorithm, ())
        while True:
            grid = {
                lr: {s: self.run(task, algorithm, lr, s, variant) for s in task.tuning}
                for lr in lrs
            }
            wider = _wider(lrs, choose(grid))
            if wider == lrs:
                return grid
            lrs = wider


def _wider(lrs: tuple[float, ...], best: float | None) -> tuple[float, ...]:
    """Return the learning rates with one more beyond the best, where that is the first or last."""
    if best is None or len(lrs) < 2 or not {lrs[0], lrs[-1]} <= set(LADDER):
        return lrs
    low = LADDER.index(lrs[0]) - (best == lrs[0])
    high = LADDER.index(lrs[-1]) + (best == lrs[-1])
    return LADDER[max(0, low) : high + 1]


@dataclass(frozen=True)
class Study:
    """The runs of searches, and those at the γ that they have found, as far as it is decided."""

    scale: Scale
    choose: Choose
    most: int | None  # of the reported seeds; None: all of them

    def after(
        self,
        task: PaperTask,
        searched: str,
        reported: Iterable[tuple[str, Variant]],
        variant: Variant = PAPER,
    ) -> list[RunConfig]:
        """Return the search for a method's γ, and the algorithms and variants to report at it."""
        grid = self.scale.search(task, searched, self.choose, variant)
        lr, seeds = self.choose(grid), task.seeds[: self.most]
        configs = [config for runs in grid.values() for config in runs.values()]
        if lr is not None:
            for algorithm, v in reported:
                configs += [self.scale.run(task, algorithm, lr, seed, v) for seed in seeds]
        return configs

    def equal(self, task: PaperTask, methods: Sequence[str]) -> list[RunConfig]:
        """Return methods at FedAvg's γ."""
        return self.after(task, "fedavg", [(method, PAPER) for method in methods])

    def own(
        self, task: PaperTask, methods: Sequence[str], variant: Variant = PAPER
    ) -> list[RunConfig]:
        """Return methods at their own γ."""
        return [run for m in methods for run in self.after(task, m, [(m, variant)], variant)]

    def sensitivity(self) -> Iterator[RunConfig]:
        """Yield FedAvg and FedMom over γ, and over local work at FedAvg's γ and their own."""
        task, scale = self.scale.femnist, self.scale
        seeds, few = task.seeds[: self.most], task.seeds[: task.few][: self.most]
        own = {m: self.choose(scale.search(task, m, self.choose)) for m in RIVALS}
        for m in RIVALS:
            yield from self.after(task, m, [])
            yield from (scale.run(task, m, lr, seed) for lr in task.lrs for seed in seeds)
            for lr in (own["fedavg"], own[m]):
                if lr is not None:
                    for epochs in scale.epochs:
                        yield from (scale.run(task, m, lr, s, epochs=epochs) for s in few)


NEEDS: dict[str, Callable[[Study], Iterable[RunConfig]]] = {
    "fig3": lambda s: [run for task in s.scale.tasks for run in s.equal(task, ["fedavg"])],
    "fig4": lambda s: s.equal(s.scale.femnist, ["fedsgd", "fedavg"]),
    "fig5": lambda s: [
        run for t in s.scale.tasks for run in (*s.equal(t, METHODS), *s.own(t, METHODS))
    ],
    "fig6": Study.sensitivity,
    "beyond": lambda s: [
        run for variant in s.scale.variants for run in s.own(s.scale.femnist, RIVALS, variant)
    ],
    "author": lambda s: s.after(s.scale.femnist, "fedmom", AUTHOR.values()),
}


def wanted(
    scale: Scale, parts: Sequence[str], choose: Choose, most: int | None = None
) -> list[RunConfig]:
    """Return the runs that the parts need, each once, as far as they are decided.

    Args:
        scale: The plan's numbers.
        parts: Which parts.
        choose: The best γ of a search, once its runs have ended.
        most: How many reported seeds at most; None: all of them.
    """
    study = Study(scale, choose, most)
    return list(dict.fromkeys(run for p in parts if p in NEEDS for run in NEEDS[p](study)))


FULL = Scale(
    name="full",
    rounds=1000,
    eval_every=50,
    femnist=PaperTask(
        name="FEMNIST",
        data="glyphs",
        settings={"model": "lenet5", "local-epochs": 1},
        first_lrs={
            "fedsgd": (0.03, 0.1, 0.3),
            "fedavg": (0.01, 0.03, 0.1),
            "fedmom": (0.001, 0.003, 0.01),
        },
        lrs=(0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
        seeds=tuple(range(10)),
        tuning=(100, 101),
        few=3,
    ),
    shakespeare=PaperTask(
        name="Shakespeare",
        data="shakespeare",
        # An epoch of a role of the paper's size is 373 steps on average, hours per run on two
        # cores.
        settings={"model": "char_lstm", "local-steps": 10, "eval-samples": 4000},
        # A full gradient of a role costs as much as 373 steps, where the others take ten: FedSGD
        # runs at the equal γ only, and for a twentieth of the rounds, which is twice the work. It
        # ends at the others' first evaluation, so that there is something to compare.
        first_lrs={"fedavg": (0.1, 0.3, 1.0), "fedmom": (0.01, 0.03, 0.1)},
        seeds=tuple(range(5)),
        tuning=(100,),
        fedsgd_share=0.05,
        cost=9,
    ),
    epochs=(0.25, 0.5, 1, 2),
    variants=VARIANTS,
    window=100,
)
_FEW = {"eval-samples": 500}
QUICK = Scale(
    name="quick",
    rounds=60,
    eval_every=4,
    femnist=replace(
        FULL.femnist,
        data="glyphs:writers=60,samples=60",
        settings={**FULL.femnist.settings, **_FEW},
        first_lrs={"fedsgd": (0.1, 0.3, 1.0), "fedavg": (0.03, 0.1), "fedmom": (0.01, 0.03)},
        lrs=(0.01, 0.03, 0.1),
        seeds=(0, 1, 2),
        tuning=(100,),
        few=1,
    ),
    shakespeare=replace(
        FULL.shakespeare,
        data="shakespeare:roles=40,samples=1000",
        settings={**FULL.shakespeare.settings, **_FEW},
        first_lrs={"fedavg": (0.3, 1.0), "fedmom": (0.1, 0.3)},
        seeds=(0, 1, 2),
        fedsgd_share=0.5,
    ),
    epochs=(0.5, 1, 2),
    variants=(PAPER, COHORT_COSINE),
    window=10,
)
SCALES = {scale.name: scale for scale in (QUICK, FULL)}
