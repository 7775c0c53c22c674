"""How near the truth can come to the corrected bounds: a search on one-dimensional quadratics.

Client k has f_k(w) = h_k w²/2 - a_k w, with noise of variance σ² in every step. H local steps
of size γ from w move it by

    Δ_k = γ S_k (h_k w - a_k) + n_k   with   S_k = Σ_{j<H} q^j,   Var n_k = γ²σ² Σ_{j<H} q^{2j}

and q = 1 - γh_k, so that the server's step η Σ_{k∈S} p_k Δ_k is linear in w, with coefficients
that the draw of clients decides. The first two moments of w and of the server's buffer then
follow a linear recursion from round to round, and E|∇f(w_t)|² is exact: nothing is simulated.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedmom.theory.constants import Array, Constants, Setting
from fedmom.theory.theorems import CORRECTED_FEDMOM

LONGEST = 30.0  # of a horizon: beyond it a schedule is all but constant
DECAYS = ("constant", "inverse_sqrt", "cosine", "exponential")


@dataclass(frozen=True, eq=False)
class Case:
    """A population of one-dimensional quadratics, and how it is trained.

    Args:
        weights: p_k.
        curvatures: h_k; their mean must be above 0.
        slopes: a_k with Σ p_k a_k = 0, so that the minimum of f is w = 0.
        variance: σ².
        start: w_0.
        per_round: M.
        local_steps: H.
        server_lr: η.
        momentum: β.
        part: γ_0 as a part of the largest that the theorem allows, in (0, 1].
        excess: B² over its least value, above 1.
        decay: How γ_t falls, one of ``DECAYS``.
        horizon: Rounds in which it falls: to 1/√2 (inverse_sqrt), to 0 (cosine), to 1/e
            (exponential).
    """

    weights: Array
    curvatures: Array
    slopes: Array
    variance: float
    start: float
    per_round: int
    local_steps: int
    server_lr: float
    momentum: float
    part: float = 1.0
    excess: float = 2.0
    decay: str = "constant"
    horizon: float = 100.0

    @property
    def mean_curvature(self) -> float:
        """The second derivative of f."""
        return float(self.weights @ self.curvatures)

    @property
    def setting(self) -> Setting:
        """How it is trained, for the bounds."""
        largest = float(self.weights.max())
        rest = (self.local_steps, self.server_lr, self.momentum, largest)
        return Setting(len(self.weights), self.per_round, *rest)

    @property
    def constants(self) -> Constants:
        """The constants, exactly; G² is the least for this B².

        Σ p_k (h_k w - a_k)² - B²h̄²w² is a parabola in w: its top is Σ p_k a_k² + r²/(B²h̄² - Q)
        with Q = Σ p_k h_k² and r = Σ p_k h_k a_k.
        """
        square, mean = float(self.weights @ self.curvatures**2), self.mean_curvature
        tilt = float(self.weights @ (self.curvatures * self.slopes))
        room = (self.excess - 1) * square
        return Constants(
            smoothness=float(np.abs(self.curvatures).max()),
            variance=self.variance,
            gap=mean * self.start**2 / 2,
            dissimilarity=float(self.weights @ self.slopes**2) + tilt**2 / room,
            similarity=self.excess * square / mean**2,
        )

    def steps(self, rounds: int) -> Array:
        """Return γ_0 ... γ_{T-1}."""
        first = self.part * float(CORRECTED_FEDMOM.max_lr(self.constants, self.setting))
        t = np.arange(rounds)
        if self.decay == "inverse_sqrt":
            return first / np.sqrt(1 + t / self.horizon)
        if self.decay == "cosine":
            # A half-round short of the end, where it would be 0, it stays.
            turn = np.pi * np.minimum(t / self.horizon, 1 - 0.5 / max(rounds, self.horizon))
            return np.asarray(first * (1 + np.cos(turn)) / 2)
        if self.decay == "exponential":
            return first * np.exp(-t / self.horizon)
        return np.full(rounds, first)


def gradient_squares(case: Case, steps: Array) -> Array:
    """Return E|∇f(w_t)|² for t = 0 ... T-1, exactly.

    A round is d' = βd - G and w' = w + β²d - (1 + β)G, where d = v_t - v_{t-1} is the buffer and
    G = αw - b + n the server's step, whose α, b and n are independent of w and d.
    """
    beta = case.momentum
    long = 1 + beta
    w, d, ww, wd, dd = case.start, 0.0, case.start**2, 0.0, 0.0
    seen = []
    for slope, shift, slopes, both, shifts in zip(*_draw(case, steps), strict=True):
        seen.append(ww)
        g, gw, gd = slope * w - shift, slope * ww - shift * w, slope * wd - shift * d
        gg = slopes * ww - 2 * both * w + shifts
        w, d = w + beta**2 * d - long * g, beta * d - g
        ww, wd, dd = (
            ww + beta**4 * dd + long**2 * gg + 2 * (beta**2 * wd - long * (gw + beta**2 * gd)),
            beta * wd - gw + beta**3 * dd - (beta**2 + beta * long) * gd + long * gg,
            beta**2 * dd - 2 * beta * gd + gg,
        )
    return np.array(seen) * case.mean_curvature**2


def ratio(case: Case, rounds: int) -> float:
    """Return the largest part of the bound that is reached, over T = 1 ... rounds.

    What is held against the bound is Σ (γ_t/Γ_T) E|∇f(w_t)|², which is at least the minimum.
    """
    steps = case.steps(rounds)
    means = np.cumsum(steps * gradient_squares(case, steps)) / np.cumsum(steps)
    bounds = CORRECTED_FEDMOM.schedule_bounds(case.constants, case.setting, steps)
    return float(np.max(means[bounds > 0] / bounds[bounds > 0], initial=0.0))


def search(
    seed: int, *, restarts: int, climbs: int, rounds: int, decays: tuple[str, ...] = DECAYS
) -> tuple[float, Case]:
    """Look for the case that comes nearest to the bound: random restarts, each followed uphill.

    Args:
        seed: Of the search.
        restarts: How many random cases to begin from.
        climbs: Changes tried on each; those that come nearer are kept.
        rounds: T, at most.
        decays: The schedules to choose from, of ``DECAYS``.

    Returns:
        The largest ratio to the bound, and its case.
    """
    rng = np.random.default_rng(seed)
    best = (0.0, _random(rng, decays))
    for _ in range(restarts):
        case = _random(rng, decays)
        height, size = ratio(case, rounds), 0.5
        for _ in range(climbs):
            other = _changed(case, rng, size)
            reached = ratio(other, rounds)
            # The usual rule: longer changes after a success, shorter ones after failures.
            size = min(2.0, size * 1.5) if reached > height else max(0.01, size * 0.93)
            if reached > height:
                case, height = other, reached
        if height > best[0]:
            best = height, case
    return best


def _draw(case: Case, steps: Array) -> tuple[list[float], ...]:
    """Return E α, E b, E α², E αb and E b² + E n² of every round."""
    lr = steps[:, None]
    kept = 1 - lr * case.curvatures
    powers = [kept**j for j in range(case.local_steps)]
    moved = case.server_lr * case.weights * lr * np.sum(powers, axis=0)
    spread = (case.server_lr * case.weights * lr) ** 2 * np.sum(np.square(powers), axis=0)
    slopes, shifts = moved * case.curvatures, moved * case.slopes
    clients, drawn = len(case.weights), case.per_round
    one = drawn / clients
    two = one * (drawn - 1) / (clients - 1) if clients > 1 else 0.0

    def product(x: Array, y: Array) -> Array:
        alone = np.sum(x * y, axis=1)
        return one * alone + two * (x.sum(axis=1) * y.sum(axis=1) - alone)

    noise = one * case.variance * spread.sum(axis=1)
    rows = (
        *(one * slopes.sum(axis=1), one * shifts.sum(axis=1)),
        *(product(slopes, slopes), product(slopes, shifts), product(shifts, shifts) + noise),
    )
    return tuple(row.tolist() for row in rows)


def _random(rng: np.random.Generator, decays: tuple[str, ...]) -> Case:
    clients = int(rng.integers(1, 7))
    lowest = -1 if rng.random() < 0.5 else 0  # single clients need not be convex
    drawn = Case(
        weights=rng.dirichlet(np.full(clients, rng.choice([0.3, 1.0, 10.0]))),
        curvatures=rng.uniform(lowest, 1, clients),
        slopes=rng.normal(size=clients) * rng.choice([0.0, 0.1, 1.0]),
        variance=float(rng.choice([0.0, 0.1, 1.0])),
        start=float(rng.choice([0.0, 0.3, 3.0])),
        per_round=int(rng.integers(1, clients + 1)),
        local_steps=int(rng.integers(1, 13)),
        server_lr=float(np.exp(rng.uniform(-1, 3))),
        momentum=float(rng.choice([0.0, 0.5, 0.9])),
        excess=1 + float(np.exp(rng.uniform(-3, 1))),
        decay=str(rng.choice(list(decays))),
        horizon=float(np.exp(rng.uniform(0, np.log(LONGEST)))),
    )
    return _tidied(drawn)


def _changed(case: Case, rng: np.random.Generator, size: float) -> Case:
    """Return a case nearby: each number changes with a chance of one in three."""

    def moved(values: Array, scale: float = 1.0) -> Array:
        hit = rng.random(values.shape) < 1 / 3
        return values + hit * rng.normal(size=values.shape) * size * scale

    def scaled(value: float) -> float:
        return float(value * np.exp(moved(np.zeros(())))) if value else 0.0

    def counted(value: int, most: int) -> int:
        return int(np.clip(value + (rng.random() < 0.2) * rng.choice([-1, 1]), 1, most))

    return _tidied(
        replace(
            case,
            weights=case.weights * np.exp(moved(np.zeros_like(case.weights))),
            curvatures=moved(case.curvatures, 0.5),
            slopes=moved(case.slopes),
            variance=scaled(case.variance),
            start=scaled(case.start),
            per_round=counted(case.per_round, len(case.weights)),
            local_steps=counted(case.local_steps, 50),
            server_lr=scaled(case.server_lr),
            momentum=float(np.clip(moved(np.array(case.momentum), 0.3), 0, 0.99)),
            part=float(np.clip(scaled(case.part), 0.01, 1)),
            excess=1 + scaled(case.excess - 1),
            horizon=float(np.clip(scaled(case.horizon), 1, LONGEST)),
        )
    )


def _tidied(case: Case) -> Case:
    """Return the case with weights of sum 1, L = 1, f convex and its minimum at 0."""
    weights = np.maximum(case.weights, 1e-6)
    weights = weights / weights.sum()
    curvatures = case.curvatures / max(float(np.abs(case.curvatures).max()), 1e-9)
    mean = float(weights @ curvatures)
    if mean < 0.05:  # towards 1 for all clients, as far as it takes
        curvatures = curvatures + (0.05 - mean) / (1 - mean) * (1 - curvatures)
        curvatures = curvatures / np.abs(curvatures).max()
    slopes = case.slopes - weights @ case.slopes
    return replace(case, weights=weights, curvatures=curvatures, slopes=slopes)
