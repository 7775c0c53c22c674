"""FedAvg against FedMom on a real task, predicted from what a short run of FedAvg shows."""

from dataclasses import dataclass, replace

from fedmom.algorithms import schedules
from fedmom.core.types import Params
from fedmom.experiments import build
from fedmom.experiments.build import Experiment
from fedmom.theory.budgets import Look, Tick
from fedmom.theory.estimate import walk
from fedmom.theory.matched import Matched, ShortRun, matched, plan_of, thinned_sizes
from fedmom.theory.momentum_map import ExpectedDuel, MomentumMap, duels, momentum_map
from fedmom.theory.spectrum import Spectrum, measure
from fedmom.training.subproblem import Subproblem

PER_ROUND = (1, 2, 5, 10, 20, 50)  # clients, in the map of a task
AROUND = (0.1, 0.25, 0.5, 1.0, 2.0)  # its horizons: the task's own, times these


# A net that has left the region of its quadratic does not come back as the quadratic would.
CEILING = 10.0


@dataclass(frozen=True, eq=False)
class Prediction:
    """What was measured at the model after ``round_`` rounds, and what follows from it."""

    round_: int
    spectrum: Spectrum
    run: ShortRun
    matched: Matched
    duel: ExpectedDuel


def predict(
    experiment: Experiment,
    *,
    short_run: int,
    lr: float | None = None,
    momentum: float = 0.9,
    lowest_loss: float = 0.0,
    look: Look | None = None,
    tick: Tick = lambda: None,
) -> list[Prediction]:
    """Predict from a task's first model, and from its model after a short run of FedAvg.

    Args:
        experiment: The task; its γ counts only as constant or decaying.
        short_run: Rounds of FedAvg from each of the two models.
        lr: Its constant γ; by default the task's first.
        momentum: FedMom's β.
        lowest_loss: f_inf.
        look: How much is looked at.
        tick: Called after every round and every product with a Hessian.

    Returns:
        Two predictions, that of the first model first.
    """
    look = look or Look()
    rate = schedules.at(experiment.work.lr, 0) if lr is None else lr
    plan_of(experiment, thinned_sizes(experiment.data.train.size))  # refuses before the run
    plain = experiment.config.model_copy(update={"lr": rate, "average": None})
    models: dict[int, Params] = {}
    for t, params in walk(build.prepare(plain, experiment.data), 2 * short_run):
        if t % short_run == 0:
            models[t] = params
        tick()
    sample = Subproblem(
        experiment.model,
        experiment.data,
        clients=look.clients,
        samples=look.samples,
        seed=experiment.config.seed,
    )
    losses = {t: float(sample.gradient(params)[0]) for t, params in models.items()}
    found = []
    for t in (0, short_run):
        spectrum = measure(experiment, models[t], look, tick)
        run = ShortRun(rate, short_run, losses[t], losses[t + short_run])
        match = matched(experiment, spectrum, run, lowest_loss=lowest_loss)
        rounds = [experiment.config.rounds]
        (duel,) = duels(match.clients, match.plan, rounds, momentum=momentum, ceiling=CEILING)
        found.append(Prediction(t, spectrum, run, match, duel))
    return found


def ticks(short_run: int, look: Look) -> int:
    """Return how often ``predict`` ticks."""
    return 2 * (short_run + look.products) + 1


def map_of_task(
    match: Matched, rounds: int, *, momentum: float = 0.9, tick: Tick = lambda: None
) -> tuple[MomentumMap, tuple[int, int]]:
    """Return the map over M and T around a task, and the task's own cell."""
    plan, count = match.plan, len(match.clients.sizes)
    sizes = sorted({m for m in (*PER_ROUND, plan.per_round) if m <= count})
    horizons = sorted({max(1, round(rounds * factor)) for factor in AROUND})
    cases = [(str(m), match.clients, replace(plan, per_round=m)) for m in sizes]
    found = momentum_map(cases, horizons, momentum=momentum, ceiling=CEILING, tick=tick)
    return found, (sizes.index(plan.per_round), horizons.index(rounds))
