"""When does momentum win? FedAvg and FedMom on quadratic clients at their own best γ, as a map.

The best γ is found in the same way for both: a grid, then two finer ones around its lowest dips. As
a function of γ, FedMom's loss after few rounds has many dips, which are narrow where curvatures are
nearly equal. All γ of a grid go through the rounds together, which one search after another for the
least (a golden section) could not do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.validation import Between
from fedmom.reports.charts import Chart, Figure, Heat
from fedmom.theory.constants import Array, Rounds
from fedmom.theory.expected_loss import CEILING, Recursion
from fedmom.theory.measurement_budget import Tick
from fedmom.theory.quadratic import Plan, QuadraticClients, random_clients

PER_DECADE = 80  # γ of the first grid
DIPS = 8  # that are looked at
FINER = 8  # γ of a finer grid, around a dip
TIMES = 2  # finer grids
TIE = 1.1  # losses closer than this factor are a tie
PER_ROUND = (1, 2, 5, 10, 20, 50)  # clients, the rows of a map
HORIZONS = (50, 200, 1000, 3000)  # of the general map
PANELS = ((30, 0.3), (3000, 0.3), (3000, 0.05))  # its condition number, spread of optima and noise
MOMENTA = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
Ceiling = Annotated[float, Between(1, 1e15)]
FULL = 3.0  # the factor of the deepest shade
NOTE = (
    "Numbers: FedAvg's expected excess loss over FedMom's, each at its own best γ."
    " Blue, above 1: FedMom ahead. Orange, below 1: FedAvg ahead."
)


@dataclass(frozen=True)
class Best:
    """A method at its best γ: γ (γ_0 where it decays) and the expected excess loss after T."""

    lr: float
    loss: float
    momentum: float = 0.0


@dataclass(frozen=True)
class ExpectedDuel:
    """FedAvg and FedMom after T rounds, each at its own best γ."""

    rounds: int
    fedavg: Best
    fedmom: Best

    @property
    def ratio(self) -> float:
        """FedAvg's expected excess loss over FedMom's: above 1, FedMom is ahead."""
        return self.fedavg.loss / self.fedmom.loss

    @property
    def verdict(self) -> str:
        """Who is ahead, in words; less than 10 % is a tie."""
        if self.ratio > TIE:
            return f"FedMom ahead by {self.ratio:.2f}"
        if self.ratio < 1 / TIE:
            return f"FedAvg ahead by {1 / self.ratio:.2f}"
        return "a tie"


@checked
def best_lr(
    clients: QuadraticClients, plan: Plan, rounds: Rounds, *, momentum: float = 0.0
) -> Best:
    """Return the γ with the least expected excess loss after T rounds.

    Args:
        clients: The population.
        plan: How it is trained.
        rounds: T.
        momentum: β; 0 is FedAvg.

    Returns:
        γ, to about 3 %, and the loss there.

    Examples:
        >>> from fedmom.theory.quadratic import random_clients
        >>> best = best_lr(random_clients(clients=20, dimension=3), Plan(per_round=2), rounds=50)
        >>> 0.01 < best.lr < 2
        True
    """
    return _search(Recursion(clients, plan), [rounds], [momentum])[0][0]


@checked
def duels(
    clients: QuadraticClients,
    plan: Plan,
    rounds: Sequence[Rounds],
    *,
    momentum: float = 0.9,
    ceiling: Ceiling = CEILING,
) -> list[ExpectedDuel]:
    """Compare FedAvg and FedMom at each method's best γ, for every horizon T.

    Args:
        clients: The population.
        plan: How it is trained.
        rounds: The horizons; each has best γ of its own.
        momentum: FedMom's β.
        ceiling: A γ at which the loss rises above this multiple of the first does not count.

    Returns:
        One comparison for every horizon.

    Examples:
        >>> from fedmom.theory.quadratic import random_clients
        >>> alike = random_clients(clients=20, dimension=9, condition=1000, spread=0.0, noise=0.0)
        >>> duels(alike, Plan(per_round=20), [100])[0].ratio > 2  # only conditioning is in the way
        True
    """
    found = _search(Recursion(clients, plan, ceiling=ceiling), rounds, [0.0, momentum])
    return [ExpectedDuel(t, *pair) for t, pair in zip(rounds, found, strict=True)]


@checked
def best_momentum(
    clients: QuadraticClients, plan: Plan, rounds: Rounds, *, ceiling: Ceiling = CEILING
) -> Best:
    """Return the β of 0, 0.5, 0.8, 0.9, 0.95 and 0.99 that is best at its own best γ.

    Args:
        clients: The population.
        plan: How it is trained.
        rounds: T.
        ceiling: As for ``duels``.

    Returns:
        β, with its γ and loss.

    Examples:
        >>> from fedmom.theory.quadratic import random_clients
        >>> alike = random_clients(clients=9, dimension=9, condition=1000, spread=0.0, noise=0.0)
        >>> best_momentum(alike, Plan(per_round=9), 200).momentum >= 0.9
        True
    """
    (found,) = _search(Recursion(clients, plan, ceiling=ceiling), [rounds], MOMENTA)
    return min(found, key=lambda best: best.loss)


@dataclass(frozen=True)
class MomentumMap:
    """Comparisons over a table: ``rows`` of one quantity, and the horizons T as columns."""

    rows: Sequence[str]
    rounds: Sequence[int]
    duels: Sequence[Sequence[ExpectedDuel]]

    @property
    def ratios(self) -> Array:
        """FedAvg's loss over FedMom's, row by row."""
        return np.array([[duel.ratio for duel in row] for row in self.duels])


def momentum_map(
    cases: Sequence[tuple[str, QuadraticClients, Plan]],
    rounds: Sequence[Rounds],
    *,
    momentum: float = 0.9,
    ceiling: float = CEILING,
    tick: Tick = lambda: None,
) -> MomentumMap:
    """Compare the two methods for every case and every horizon.

    Args:
        cases: A name, a population and a plan for every row.
        rounds: The horizons, for the columns.
        momentum: FedMom's β.
        ceiling: As for ``duels``.
        tick: Called after every row.

    Returns:
        The table.

    Examples:
        >>> from fedmom.theory.quadratic import random_clients
        >>> population = random_clients(clients=20, dimension=3)
        >>> cases = [(f"M={m}", population, Plan(per_round=m)) for m in (1, 20)]
        >>> momentum_map(cases, [10, 100]).ratios.shape
        (2, 2)
    """
    rows = []
    for _, clients, plan in cases:
        rows.append(duels(clients, plan, rounds, momentum=momentum, ceiling=ceiling))
        tick()
    return MomentumMap([name for name, *_ in cases], list(rounds), rows)


def general_maps(
    momentum: float, tick: Tick = lambda: None
) -> list[tuple[int, float, MomentumMap]]:
    """Return the maps of random populations: condition number, spread and map of each.

    ``tick`` is called after each of the rows, one per panel and number of clients.
    """
    panels = []
    for condition, spread in PANELS:
        clients = random_clients(condition=condition, spread=spread, noise=spread)
        cases = [(str(m), clients, Plan(per_round=m, steps=10)) for m in PER_ROUND]
        found = momentum_map(cases, HORIZONS, momentum=momentum, tick=tick)
        panels.append((condition, spread, found))
    return panels


def figure(
    panels: Sequence[tuple[str, MomentumMap]],
    *,
    title: str = "Blue: FedMom ahead. Orange: FedAvg.",
    task: tuple[int, int] | None = None,
) -> Figure:
    """Draw maps.

    Args:
        panels: A title and a map for each.
        title: That of the whole.
        task: The cell of the user's own task, as (row, column), framed in every map.

    Returns:
        A figure for ``fedmom.reports.drawing``.

    Examples:
        >>> from fedmom.theory.quadratic import Plan, random_clients
        >>> cases = [("2", random_clients(clients=9, dimension=2), Plan(per_round=2))]
        >>> figure([("few", momentum_map(cases, [10]))]).charts[0].title
        'few'
    """
    charts = [_chart(name, found, task) for name, found in panels]
    mark = " The frame: your task." if task is not None else ""
    return Figure(name="momentum", title=title, charts=charts, note=NOTE + mark)


def _chart(title: str, found: MomentumMap, task: tuple[int, int] | None) -> Chart:
    shades = np.clip(np.log(found.ratios) / np.log(FULL), -1, 1)
    heat = Heat(
        label="ratio",
        rows=found.rows,
        columns=[f"{t:,}" for t in found.rounds],
        shades=shades.tolist(),
        texts=[[_short(ratio) for ratio in row] for row in found.ratios],
        framed=[] if task is None else [task],
    )
    return Chart(title=title, x="rounds T", y="clients per round M", marks=[heat])


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"


def _search(
    recursion: Recursion, rounds: Sequence[int], momenta: Sequence[float]
) -> list[list[Best]]:
    """Return the best γ of every horizon and β."""
    if not len(rounds) or min(rounds) < 1:
        raise FedMomError("rounds: give one or several numbers of at least 1.")
    pairs = [(t, beta) for t in rounds for beta in momenta]
    grid = _grid(recursion, max(rounds))
    lrs = np.tile(grid, (len(pairs), 1))
    found = _dips(lrs, _losses(recursion, pairs, lrs))
    width = 10 ** (1 / PER_DECADE)
    for _ in range(TIMES):
        around = np.geomspace(1 / width, width, FINER)
        lrs = (found[:, :, :1] * around).reshape(len(pairs), -1)
        losses = _losses(recursion, pairs, lrs).reshape(*found.shape[:2], FINER)
        finer = np.stack([lrs.reshape(losses.shape), losses], axis=-1)
        found = _least(np.concatenate([found[:, :, None], finer], axis=2))
        width = width ** (2 / (FINER - 1))
    best = [
        Best(float(lr), float(loss), beta)
        for (lr, loss), (_, beta) in zip(_least(found), pairs, strict=True)
    ]
    return [best[i : i + len(momenta)] for i in range(0, len(best), len(momenta))]


def _losses(recursion: Recursion, pairs: Sequence[tuple[int, float]], lrs: Array) -> Array:
    """Return the losses of every pair of a horizon and a β at its own γ."""
    rounds, momenta = (np.repeat(each, lrs.shape[1]) for each in zip(*pairs, strict=True))
    return recursion.after(lrs.ravel(), rounds, momentum=momenta).reshape(lrs.shape)


def _dips(lrs: Array, losses: Array) -> Array:
    """Return the lowest dips of every row: (row, DIPS, 2), γ and loss; the rest is as it was."""
    ends = np.pad(losses, [(0, 0), (1, 1)], constant_values=np.inf)
    is_dip = (losses <= ends[:, :-2]) & (losses <= ends[:, 2:])
    order = np.argsort(np.where(is_dip, losses, np.inf), axis=1)[:, :DIPS]
    return np.stack([np.take_along_axis(each, order, axis=1) for each in (lrs, losses)], axis=-1)


def _least(found: Array) -> Array:
    """Return those of γ and loss (..., n, 2) with the least loss, (..., 2)."""
    place = np.argmin(found[..., 1], axis=-1)[..., None, None]
    return np.take_along_axis(found, place, axis=-2)[..., 0, :]


def _grid(recursion: Recursion, rounds: int) -> Array:
    """Return γ from where a run hardly moves to where local steps diverge."""
    steepest = float(np.max(recursion.clients.curvature))
    top = 4 / (steepest * float(np.mean(recursion.plan.rates(rounds))))
    steps = float(np.mean(recursion.plan.steps))
    bottom = 1e-2 / (steepest * steps * np.sqrt(rounds))
    count = int(np.ceil(PER_DECADE * np.log10(top / bottom))) + 1
    return top * 10.0 ** (-np.arange(count)[::-1] / PER_DECADE)
