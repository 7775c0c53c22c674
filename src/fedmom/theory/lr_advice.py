"""Advice on a learning rate, and the check of one against the corrected theorem.

Advice is what experiments found best, which γ to try next, and the proven γ.

Best learning rates lie far above what the theorems allow, so experiments decide. Of the estimated
constants only L is of use here. On a quadratic with curvature L, SGD moves away from the minimum
for γ > 2/L; a loss whose curvature changes may still train a little above. So a grid begins one
step above 2/L and goes down from there.
"""

import shlex
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
import optax
from rich.progress import Progress

from fedmom.algorithms import named as algorithms
from fedmom.algorithms import schedules
from fedmom.core.errors import FedMomError
from fedmom.experiments import build, results, seed_statistics
from fedmom.experiments.build import Experiment
from fedmom.experiments.results import Group, Result
from fedmom.experiments.seed_statistics import Finding
from fedmom.experiments.settings import DEFAULT_STEPS, RunConfig, kebab
from fedmom.reports.charts import Chart, Figure, Line
from fedmom.theory.constants import Array, Constants, Setting
from fedmom.theory.estimate import estimate_task, spaced, walk
from fedmom.theory.measurement_budget import EstimateBudget
from fedmom.theory.theorems import CORRECTED_FEDAVG, CORRECTED_FEDMOM, Theorem
from fedmom.training.subproblem import Subproblem

SPACING = 3.0  # between neighbours: a best γ is seldom sharper than that
COUNT = 4  # one of them above 2/L
SHARED = (
    *("data", "model", "algorithm", "rounds", "clients_per_round", "batch_size"),
    *("local_steps", "local_epochs", "server_lr", "momentum"),
)
ALIKE = {"lr": 1.0, "seed": 0, "runtime": "local", "tensorboard": False}  # may differ in a grid
GAP = 1.2 * SPACING  # neighbours farther apart than this have room for one between
SHORT_RUN = 50  # rounds, along which constants are estimated
ROUNDING = 1e-6  # relative: schedules are computed with floats of 32 bits
LOOKS = 25  # at |∇f(w_t)|², along a run that is drawn


@dataclass(frozen=True)
class BestLr:
    """The learning rate with the best last test accuracy, as a mean over its seeds.

    Args:
        config: The settings of the best runs.
        accuracies: The accuracy of every γ tried, all else the same, smallest γ first.
        seeds: The number of seeds of the best γ.
        diverged: Every γ, all else the same, of which all runs diverged.
        findings: How the accuracy of every other γ compares with the best, paired by seed, with
            Holm's correction for all pairs.
    """

    config: RunConfig
    accuracies: dict[float, float]
    seeds: int
    diverged: tuple[float, ...] = ()
    findings: Mapping[float, Finding] = field(default_factory=dict)

    @property
    def lr(self) -> float:
        """The best γ."""
        return max(self.accuracies, key=self.accuracies.__getitem__)

    @property
    def accuracy(self) -> float:
        """Its test accuracy."""
        return self.accuracies[self.lr]

    @property
    def neighbours(self) -> tuple[float | None, float | None]:
        """The nearest γ tried below and above, those that diverged among them."""
        others = {*self.accuracies, *self.diverged}
        below = max((lr for lr in others if lr < self.lr), default=None)
        return below, min((lr for lr in others if lr > self.lr), default=None)

    def is_settled(self, lr: float) -> bool:
        """Return whether another γ is known to be worse, or as good as the best."""
        return lr in self.diverged or self.findings.get(lr) in (Finding.LOWER, Finding.EQUAL)


def found_best(folder: Path, data: str, model: str, algorithm: str) -> BestLr | None:
    """Look through all finished runs below a folder with this data, model and algorithm.

    Only runs with as many rounds as the longest are compared, and only those with a constant γ,
    SGD on clients, uniform cohorts and population weights. Runs that were stopped are left out.
    """
    runs = [
        run
        for path in sorted(folder.rglob("config.toml"))
        if (run := _readable(path.parent)) is not None
        and (run.config.data, run.config.model, run.config.algorithm) == (data, model, algorithm)
        and _covered(run.config)
    ]
    lasts = [(run, _last_accuracy(run)) for run in runs]
    rounds = max((run.config.rounds for run, last in lasts if last is not None), default=None)
    families: dict[RunConfig, list[Result]] = {}  # by all settings other than γ and seed
    for run, last in lasts:
        if run.config.rounds == rounds and (last is not None or run.diverged):
            families.setdefault(run.config.model_copy(update=ALIKE), []).append(run)
    found = [
        _best_of(family, runs)
        for family, runs in families.items()
        if any(not run.diverged for run in runs)
    ]
    return max(found, key=lambda best: best.accuracy, default=None)


def _best_of(family: RunConfig, runs: list[Result]) -> BestLr:
    lrs = sorted({float(run.config.lr) for run in runs})
    groups = [Group(f"{lr:g}", [run for run in runs if run.config.lr == lr]) for lr in lrs]
    seeds = [
        [a for run in group.runs if (a := _last_accuracy(run)) is not None] for group in groups
    ]
    means = {lr: statistics.fmean(each) for lr, each in zip(lrs, seeds, strict=True) if each}
    best = max(means, key=means.__getitem__)
    place = lrs.index(best)
    pairs = seed_statistics.family(groups, seed_statistics.ACCURACY, place).pairs
    return BestLr(
        config=family.model_copy(update={"lr": best}),
        accuracies=means,
        seeds=len(seeds[place]),
        diverged=tuple(lr for lr in lrs if lr not in means),
        findings=dict(
            zip([lr for lr in lrs if lr != best], [pair.finding for pair in pairs], strict=True)
        ),
    )


def _readable(path: Path) -> Result | None:
    """Return the run in a folder; None if it cannot be read."""
    try:
        return results.read(path)
    except FedMomError:
        return None


def _last_accuracy(run: Result) -> float | None:
    """Return the test accuracy after the last round, of a run that got there."""
    return next((a for t, a in run.curve("test", "accuracy") if t == run.config.rounds), None)


def _covered(config: RunConfig) -> bool:
    """Return whether it is a plain run: SGD, a constant γ, population weights, uniform cohorts."""
    parts = (config.solver, config.aggregate, config.sampler, config.pace, config.weighting)
    plain = parts == ("sgd", "mean", "uniform", "synchronous", "population")
    bare = config.average is None and config.attack is None and config.world is None
    return plain and bare and not isinstance(config.lr, str)


def first_grid(smoothness: float, momentum: float = 0.0) -> list[float]:
    """Return the γ of a grid to begin with, smallest first.

    Args:
        smoothness: L.
        momentum: β. FedMom's updates add up to 1/(1-β) of one, so its γ is (1-β) of FedAvg's.

    Returns:
        γ from 3·(1-β)·2/L down, each a third of the next, with two digits.
    """
    top = SPACING * (1 - momentum) * 2 / smoothness
    return [_rounded(top / SPACING**i) for i in reversed(range(COUNT))]


def next_lrs(best: BestLr) -> list[float]:
    """Return the γ to try next; none if the best has near neighbours."""
    below, above = best.neighbours
    found = []
    for other, beyond in ((below, best.lr / SPACING), (above, best.lr * SPACING)):
        if other is None:
            found.append(beyond)
        elif max(other / best.lr, best.lr / other) > GAP:
            found.append((best.lr * other) ** 0.5)
    return [_rounded(lr) for lr in found]


def verdict(best: BestLr) -> str:
    """Say where among the γ tried the best one lies."""
    below, above = best.neighbours
    if below is None and above is None:
        return "no other γ was tried, so nothing says that it is a good one"
    if below is None:
        return "it is the smallest γ tried, so the best may be smaller"
    if above is None:
        return "it is the largest γ tried, so the best may be larger"
    if next_lrs(best):
        return f"it lies between {below:g} and {above:g}, far apart"
    place = f"it lies between {below:g} and {above:g}"
    if open_ := " and ".join(f"{lr:g}" for lr in (below, above) if not best.is_settled(lr)):
        return f"{place}, and is not settled against {open_}: run more seeds before you choose"
    return f"{place}, which are worse or as good: there is no need to try others"


def sweep_command(config: RunConfig, clients: int, lrs: list[float], out: str) -> str:
    """Return a `fedmom sweep` of these γ, ready to paste.

    Args:
        config: What all runs share, complete.
        clients: K.
        lrs: The grid of γ; each is run with three seeds.
        out: The folder of the sweep.

    Returns:
        One line for a shell.
    """
    words = ["fedmom", "sweep"]
    usual = {
        "clients_per_round": RunConfig.model_fields["clients_per_round"].default,
        "batch_size": RunConfig.model_fields["batch_size"].default,
        "local_steps": DEFAULT_STEPS,
        "server_lr": clients / config.clients_per_round,
        "momentum": algorithms.default_of(config.algorithm, "momentum"),
    }
    for name in SHARED:
        value = getattr(config, name)
        if value is not None and value != usual.get(name):
            words += [f"--{kebab(name)}", str(value)]
    grid = " ".join(f"{lr:g}" for lr in lrs)
    return shlex.join([*words, "--grid", f"lr={grid}", "--grid", "seed=0 1 2", "--out", out])


def differences(best: RunConfig, task: RunConfig) -> list[str]:
    """Return the settings in which the best runs differ from the task, as texts."""
    names = [name for name in SHARED if name not in ("data", "model", "algorithm", "rounds")]
    if best.algorithm != task.algorithm:
        names.remove("momentum")  # only one of the two has it
    pairs = [(name, getattr(best, name), getattr(task, name)) for name in names]
    return [f"{kebab(name)} {b} (here {t})" for name, b, t in pairs if b != t]


def _rounded(lr: float) -> float:
    return float(f"{lr:.2g}")


def measured_gradients(
    experiment: Experiment, proven: float, rounds: int, bar: Progress
) -> list[Line]:
    """Return |∇f(w_t)|² along a run with the task's γ, and along one with the proven γ."""
    rates = [experiment.config.lr, *([proven] if proven > 0 else [])]
    sample = Subproblem(experiment.model, experiment.data, clients=50, samples=16)
    looks = spaced(rounds, LOOKS)
    task = bar.add_task("bound against run", total=len(rates) * (rounds + 1))
    lines = []
    for rate in rates:
        again = build.prepare(experiment.config.model_copy(update={"lr": rate}), experiment.data)
        squares = []
        for t, params in walk(again, rounds):
            if t in looks:
                squares.append(float(optax.tree.norm(sample.gradient(params)[1])) ** 2)
            bar.advance(task)
        label = f"{rate:.3g}" if isinstance(rate, float) else rate
        lines.append(Line(f"measured, γ = {label}", looks, squares))
    return lines


def bound_figure(
    experiment: Experiment,
    constants: Constants,
    proven: float,
    measured: list[Line],
) -> Figure:
    """Return a figure of the corrected bound at the proven γ, and what was measured."""
    counts = np.unique(np.linspace(1, int(measured[0].x[-1]), 100).astype(int))
    lines = list(measured)
    if proven > 0:
        setting, theorem = setting_of(experiment), theorem_of(experiment)
        bound = np.asarray(theorem.bound(constants, setting, proven, counts))
        label = f"corrected bound, γ = {proven:.3g}"
        lines.append(Line(label, counts.tolist(), bound.tolist(), dashed=True))
    config = experiment.config
    title = f"{config.algorithm}, {config.model} on {experiment.data.name}"
    chart = Chart(title, x="rounds", y="|∇f(w_t)|²", marks=lines, log_y=True)
    note = (
        "The bound is on the mean of |∇f(w_t)|² over the rounds so far. |∇f|² is that of a"
        " sample of clients. Estimates are local, and the bound is loose."
    )
    return Figure("advise", "Bound and measured gradient", (chart,), columns=1, note=note)


def checked_lr(experiment: Experiment, bar: Progress) -> str:
    """Return whether γ meets the condition of the corrected theorem, as a sentence with numbers.

    The constants are estimated along the run's first rounds, as ``fedmom theory estimate`` does.

    Args:
        experiment: The run.
        bar: Shows the progress of the estimates.
    """
    if reason := not_covered(experiment):
        return f"The corrected theorem does not apply to this run: {reason}."
    config = experiment.config
    rounds = min(config.rounds, SHORT_RUN)
    found = estimate_task(experiment, EstimateBudget(), rounds, bar)
    setting, lr = setting_of(experiment), float(_rates(experiment).max())
    largest = float(theorem_of(experiment).max_lr(found.constants(), setting))
    momentum = f" β = {setting.momentum:g}," if config.algorithm == "fedmom" else ""
    used = (
        f"L = {found.smoothness.value:.3g} and B² = {found.similarity.value:.3g}, estimated along"
        f" the first {rounds} rounds, and H = {setting.local_steps}, η = {setting.server_lr:g},"
        f"{momentum} K = {setting.clients}, M = {setting.per_round}"
    )
    if lr > largest:
        return (
            f"lr {lr:g} is above {largest:.2g}, the largest for which the corrected theorem bounds"
            f" this run ({used}). The bounds are loose, and it may well converge: docs/theory.md."
        )
    return (
        f"lr {lr:g} may be covered: it is at most {largest:.2g}, the largest that the corrected"
        f" theorem allows for the constants that were seen ({used}). Elsewhere they may be larger,"
        " so this is not a guarantee."
    )


def not_covered(experiment: Experiment) -> str:
    """Return what of a run the corrected theorem excludes, whatever the constants; empty: nothing.

    Args:
        experiment: The run.
    """
    config = experiment.config
    if config.algorithm not in ("fedsgd", "fedavg", "fedmom"):
        return f"it is about fedsgd, fedavg and fedmom, not {config.algorithm}"
    if config.attack is not None:
        return f"it is about honest clients, not attack {config.attack}"
    needed = {"solver": "sgd", "prox": 0, "weighting": "population", "aggregate": "mean"}
    needed |= {"sampler": "uniform", "pace": "synchronous", "average": None}
    needed |= {"bad_replies": "stop", "world": None}  # without some replies, the mean is another
    for name, value in needed.items():
        if (given := getattr(config, name)) != value:
            wanted = f"no {name}" if value is None else f"{kebab(name)} {value}"
            return f"it needs {wanted}, not {given}"
    if isinstance(config.server_lr, str):
        return f"it needs a constant server-lr, not {config.server_lr}"
    return _not_covered_on_clients(experiment)


def _not_covered_on_clients(experiment: Experiment) -> str:
    config, work, sizes = experiment.config, experiment.work, experiment.data.train.size
    if experiment.model.state is not None:
        return "the model has state that is not trained, such as batch norm's"
    if experiment.model.adapted is not None:
        return "a part of the model's parameters is frozen"
    if work.shuffled:
        return "it needs batches drawn at random, not shuffled epochs"
    if callable(work.steps) or callable(work.epochs):
        return "it needs the same number of local steps in every round"
    fewest, most = (work.count(0, int(n)) for n in (sizes[sizes > 0].min(), sizes.max()))
    if fewest < most:
        return f"it needs the same local steps for all clients, not {fewest:,} to {most:,}"
    rates = _rates(experiment)
    if config.momentum and (rates > np.minimum.accumulate(rates) * (1 + ROUNDING)).any():
        return f"with momentum, it needs an lr that never rises, not {config.lr}"
    return ""


def _rates(experiment: Experiment) -> Array:
    """Return γ_t of every round."""
    lr = experiment.work.lr
    if not callable(lr):
        return np.full(1, float(lr))
    return np.asarray(jax.vmap(lr)(np.arange(experiment.config.rounds)), float)


def theorem_of(experiment: Experiment) -> Theorem:
    """Return the corrected theorem about a run's algorithm."""
    return CORRECTED_FEDMOM if experiment.config.algorithm == "fedmom" else CORRECTED_FEDAVG


def setting_of(experiment: Experiment) -> Setting:
    """Return a run in the terms of the theorems: η where it is largest, H of the mean client.

    β is FedMom's: the run's, or the default if it has none. Theorems about FedAvg ignore it.
    """
    config, sizes = experiment.config, experiment.data.train.size
    eta = schedules.parse(config.server_lr)
    default: float = algorithms.default_of("fedmom", "momentum")
    return Setting(
        clients=experiment.data.clients,
        per_round=config.clients_per_round,
        local_steps=experiment.work.count(0, round(sizes.mean())),
        server_lr=max(schedules.at(eta, t) for t in (0, config.rounds - 1)),
        momentum=default if config.momentum is None else config.momentum,
        largest_weight=float(sizes.max() / sizes.sum()),
    )
