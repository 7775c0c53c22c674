"""FedAvg against FedMom on a real task, predicted from a short run of FedAvg.

The task is matched by quadratic clients with its spectra, sizes, local work, weights and draw,
on which the expected loss is known exactly:

- Steep directions, down to a thirtieth of the steepest: energies of the spectra as measured, each
  at the nearest of a few curvatures. The start is |∇f|_j / h_j away from the minimum, clients'
  optima are drawn with variance G²_j / h_j², and a batch's gradient has the noise σ²_j.
- Flat directions: Lanczos' method does not resolve them, and a net's have negative curvature, too.
  The loss that the steep ones leave, f(w) - f_inf less their share, is spread evenly over the
  logarithm of the curvature, from there down to a floor; what is left of G² and σ², in proportion
  to the curvature.
- The floor is the one free number. It is chosen so that the recursion, run as FedAvg's short run
  was, ends at the loss at which that run ended. FedMom has no part in this.
- Clients come in three kinds, by curvature, with the spread that was seen along the steepest
  direction. Sizes are the task's; the local steps are, in a few groups.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms import schedules
from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.experiments import build
from fedmom.experiments.build import Experiment
from fedmom.theory.constants import Array
from fedmom.theory.estimate import walk
from fedmom.theory.expected_loss import Recursion
from fedmom.theory.measurement_budget import SpectrumBudget, Tick
from fedmom.theory.momentum_map import PER_ROUND, ExpectedDuel, MomentumMap, duels, momentum_map
from fedmom.theory.quadratic import DECAYS, Plan, QuadraticClients, curvature_kinds
from fedmom.theory.spectrum import Energy, Spectrum, measure, sample_of

AROUND = (0.1, 0.25, 0.5, 1.0, 2.0)  # horizons of a task's map: its own, times these
# A net that has left the region of its quadratic does not come back as the quadratic would.
CEILING = 10.0
RESOLVED = 30  # the steepest curvature over the smallest that the spectra are trusted for
STEEP, FLAT = 5, 9  # curvatures of either kind
CLIENTS = 600  # at most: the draw of clients takes a table of all pairs
FLOOR = 1e-9  # relative to the steepest: no run is long enough to see it


@dataclass(frozen=True)
class ShortRun:
    """What FedAvg did from the model on: γ, rounds, and the loss before and after."""

    lr: float
    rounds: int
    first: float
    last: float


@dataclass(frozen=True, eq=False)
class MatchedTask:
    """A quadratic population that stands for a task, and how it is trained."""

    clients: QuadraticClients
    plan: Plan
    floor: float  # the smallest curvature
    steepest: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """What was measured at the model after ``round_`` rounds, and what follows from it."""

    round_: int
    spectrum: Spectrum
    run: ShortRun
    matched: MatchedTask
    duel: ExpectedDuel


def predict(
    experiment: Experiment,
    *,
    short_run: int,
    lr: float | None = None,
    momentum: float = 0.9,
    lowest_loss: float = 0.0,
    budget: SpectrumBudget | None = None,
    tick: Tick = lambda: None,
) -> list[Prediction]:
    """Predict from a task's first model, and from its model after a short run of FedAvg.

    Args:
        experiment: The task; its γ counts only as constant or decaying.
        short_run: Rounds of FedAvg from each of the two models.
        lr: Its constant γ; by default the task's first.
        momentum: FedMom's β.
        lowest_loss: f_inf.
        budget: How much is measured.
        tick: Called after every round and every product with a Hessian.

    Returns:
        Two predictions, that of the first model first.
    """
    budget = budget or SpectrumBudget()
    rate = schedules.at(experiment.work.lr, 0) if lr is None else lr
    plan_of(experiment, thinned_sizes(experiment.data.train.size))  # refuses before the run
    plain = experiment.config.model_copy(update={"lr": rate, "average": None})
    models: dict[int, Params] = {}
    for t, params in walk(build.prepare(plain, experiment.data), 2 * short_run):
        if t % short_run == 0:
            models[t] = params
        tick()
    sample = sample_of(experiment, budget.clients, budget.samples)
    losses = {t: float(sample.gradient(params)[0]) for t, params in models.items()}
    found = []
    for t in (0, short_run):
        spectrum = measure(experiment, models[t], budget, tick)
        run = ShortRun(rate, short_run, losses[t], losses[t + short_run])
        match = match_task(experiment, spectrum, run, lowest_loss=lowest_loss)
        rounds = [experiment.config.rounds]
        (duel,) = duels(match.clients, match.plan, rounds, momentum=momentum, ceiling=CEILING)
        found.append(Prediction(t, spectrum, run, match, duel))
    return found


def ticks(short_run: int, budget: SpectrumBudget) -> int:
    """Return how often ``predict`` ticks."""
    return 2 * (short_run + budget.products) + 1


def map_of_task(
    match: MatchedTask, rounds: int, *, momentum: float = 0.9, tick: Tick = lambda: None
) -> tuple[MomentumMap, tuple[int, int]]:
    """Return the map over M and T around a task, and the task's own cell."""
    plan, count = match.plan, len(match.clients.sizes)
    sizes = sorted({m for m in (*PER_ROUND, plan.per_round) if m <= count})
    horizons = sorted({max(1, round(rounds * factor)) for factor in AROUND})
    cases = [(str(m), match.clients, replace(plan, per_round=m)) for m in sizes]
    found = momentum_map(cases, horizons, momentum=momentum, ceiling=CEILING, tick=tick)
    return found, (sizes.index(plan.per_round), horizons.index(rounds))


def match_task(
    experiment: Experiment, spectrum: Spectrum, run: ShortRun, *, lowest_loss: float = 0.0
) -> MatchedTask:
    """Return the quadratic clients that stand for a task at one model.

    Args:
        experiment: The task.
        spectrum: What was measured at the model.
        run: What FedAvg did from there, with the task's own cohorts and weights and a constant γ.
        lowest_loss: f_inf. Cross-entropy has none below 0, and large models come near it.
    """
    if not run.first > lowest_loss:
        raise FedMomError(
            f"The lowest loss {lowest_loss:g} is not below the loss {run.first:.3g} at the model"
            " looked at. Use a smaller --lowest-loss."
        )
    sizes = thinned_sizes(experiment.data.train.size)
    plan = plan_of(experiment, sizes)
    like_run = replace(plan, decay="constant", average=None)
    steepest = float(spectrum.gradient.curvature.max())
    if not 0 < steepest < math.inf:
        raise FedMomError(
            f"The steepest curvature along the gradient is {steepest:g}, which no quadratic with a"
            " minimum has. Use a smaller --short-lr, or another --seed."
        )

    def clients(floor: float) -> QuadraticClients:
        return _population(spectrum, sizes, run.first - lowest_loss, floor)

    low, high = math.log(FLOOR * steepest), math.log(steepest / RESOLVED / 2)
    for _ in range(18):
        middle = (low + high) / 2
        recursion = Recursion(clients(math.exp(middle)), like_run)
        fast = recursion.after(run.lr, run.rounds)[0] < run.last - lowest_loss
        low, high = (low, middle) if fast else (middle, high)
    floor = math.exp((low + high) / 2)
    return MatchedTask(clients(floor), plan, floor, steepest)


def _population(
    spectrum: Spectrum, sizes: NDArray[np.int64], gap: float, floor: float
) -> QuadraticClients:
    top = float(spectrum.gradient.curvature.max())
    flat = np.geomspace(floor, top / RESOLVED, FLAT + 1)[:-1]
    steep = np.geomspace(top / RESOLVED, top, STEEP)
    curvature = np.concatenate([flat, steep])
    gradient, difference, noise = (
        _placed(energy, flat, steep)
        for energy in (spectrum.gradient, spectrum.difference, spectrum.noise)
    )
    squares = gradient / curvature**2
    squares[:FLAT] = 0
    share = float(curvature @ squares) / 2
    squares *= min(1.0, gap / share) if share > 0 else 1.0
    squares[:FLAT] = 2 * max(0.0, gap - share) / FLAT / flat
    kinds = curvature_kinds(sizes, spectrum.sharpness_spread)
    drawn = np.random.default_rng(0).normal(size=(len(sizes), len(curvature)))
    drawn -= (sizes * kinds / (sizes @ kinds)) @ drawn  # the minimum is at 0
    return QuadraticClients(
        sizes=sizes.astype(float),
        curvature=np.outer(kinds, curvature),
        optima=drawn * np.sqrt(difference) / curvature,
        noise=noise,
        start=np.sqrt(squares),
    )


def plan_of(experiment: Experiment, sizes: NDArray[np.int64], groups: int = 3) -> Plan:
    """Return how a run trains, in the terms of the recursion."""
    config, work = experiment.config, experiment.work
    if config.attack is not None:
        raise FedMomError(
            f"The map of momentum is about honest clients, not about attack {config.attack}. Leave"
            " it out."
        )
    if config.solver != "sgd" or config.aggregate != "mean" or config.prox:
        raise FedMomError(
            "The map of momentum is about plain SGD on clients and the mean of their updates; got"
            f" solver {config.solver}, aggregate {config.aggregate}, prox {config.prox:g}."
        )
    if config.pace.partition(":")[0] != "synchronous":
        raise FedMomError(
            f"The map of momentum is about rounds that wait for all clients, not about pace"
            f" {config.pace}. Use --pace synchronous."
        )
    if config.world is not None:
        raise FedMomError(
            f"The map of momentum is about clients that always reply, not about world"
            f" {config.world}. Leave it out."
        )
    decay = config.lr.partition(":")[0] if isinstance(config.lr, str) else "constant"
    if decay not in DECAYS:
        raise FedMomError(
            f"The map of momentum knows a constant γ and cosine, not lr {config.lr}. Use one of"
            " these."
        )
    epochs = None
    if work.shuffled and work.epochs is not None and not callable(work.epochs):
        epochs = round(work.epochs) if float(work.epochs).is_integer() else None
    steps = np.array([work.count(0, int(size)) for size in sizes])
    server_lr = config.server_lr if isinstance(config.server_lr, float) else None
    if server_lr == experiment.data.clients / config.clients_per_round:
        server_lr = None  # K/M, whatever K the population here has
    return Plan(
        per_round=min(config.clients_per_round, len(sizes)),
        steps=_few(steps, groups, epochs or 1),
        weighting=config.weighting,
        sampler=config.sampler.partition(":")[0],
        server_lr=server_lr,
        decay=decay,
        average=config.average,
        epochs=epochs,
    )


def thinned_sizes(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sizes of all clients, or 600 that are spread as those are."""
    sizes = np.sort(np.asarray(sizes)[np.asarray(sizes) > 0])
    if len(sizes) <= CLIENTS:
        return sizes
    places = (np.arange(CLIENTS) + 0.5) * len(sizes) / CLIENTS
    return sizes[places.astype(int)]


def _few(steps: NDArray[np.int64], groups: int, multiple: int) -> NDArray[np.int64]:
    """Return the steps with at most ``groups`` values: the means of groups of clients."""
    if len(np.unique(steps)) <= groups:
        return steps
    few = np.empty_like(steps)
    for part in np.array_split(np.argsort(steps, kind="stable"), groups):
        few[part] = max(1, round(steps[part].mean() / multiple)) * multiple
    return few


def _placed(energy: Energy, flat: Array, steep: Array) -> Array:
    """Return a spectrum's energies at the curvatures: the nearest, by ratio, or spread if flat."""
    resolved = energy.curvature >= steep[0]
    width = math.log(steep[-1] / steep[0]) / (len(steep) - 1)
    place = np.rint(np.log(np.maximum(energy.curvature, steep[0]) / steep[0]) / width).astype(int)
    place = np.minimum(place, len(steep) - 1)
    measured = np.bincount(place, weights=energy.energy * resolved, minlength=len(steep))
    rest = float(energy.energy[~resolved].sum())
    return np.concatenate([rest * flat / flat.sum(), measured])
