"""What is expected of FedAvg and FedMom on quadratic clients, exactly and without a simulation.

H local steps turn w into w - Δ_k with Δ_k = a_k (w - c_k) + n_k, a_k = 1 - (1 - γ h_k)^H. The
server sees G = η Σ ω_k Δ_k = α w - b + n, with w and c_k measured from the minimum of f, and takes
FedMom's step (``fedmom.fedmom``)

    d' = β d - G,    w' = w + β d' - G = w + β² d - (1 + β) G.

The cohort and the noise of a round are independent of (w, d), so the means of w, d, w², wd and d²
after a round follow from those before it and from the means of α, b, α², αb, b² and n². β = 0 is
FedAvg. The average of the models that ``fedmom.averaged`` keeps is s / (1 - decay^t) with
s' = decay s + (1 - decay) w' and s_0 = 0, so that it adds the means of s, s², sw and sd.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.validation import check_memory
from fedmom.theory.cohort_weights import weight_moments
from fedmom.theory.constants import Array, Rounds, numbers, positive
from fedmom.theory.quadratic import Plan, QuadraticClients

CEILING = 1e8  # times the first loss: beyond it a run has diverged
AT_ONCE = 4_000_000  # numbers held while the moments of many γ are computed


class RoundMoments(NamedTuple):
    """Means over the draw and the noise of G = α w - b + n; arrays of (γ, coordinate)."""

    a: Array
    b: Array
    aa: Array
    ab: Array
    bb: Array
    nn: Array


def _gathered(x: Array, left: Array, steps: Array, epochs: int | None) -> Array:
    """Return the variance of Σ_j q^j n_j over H steps, q = 1 - x, for noise of variance 1.

    Batches drawn with replacement: Σ q^{2j}. The noise of the L batches of a shuffled epoch adds up
    to 0, so any two have covariance -1/L where each has variance 1 - 1/L: Σ q^{2j} - (Σ q^j)²/L.
    """
    if epochs is None:
        return _geometric(x * (2 - x), left**2, steps)
    batches = steps / epochs
    once = left if epochs == 1 else (1 - x) ** batches
    squares = _geometric(x * (2 - x), once**2, batches)
    total = _geometric(x, once, batches)
    return (squares - total**2 / batches) * _geometric(1 - once**2, left**2, np.asarray(epochs))


def _geometric(step: Array, power: Array, count: Array) -> Array:
    """Return Σ_{j<n} r^j for 1 - r = ``step`` and r^n = ``power``."""
    flat = np.abs(step) < 1e-12
    return np.where(flat, count, (1 - power) / np.where(flat, 1, step))


class Moments(NamedTuple):
    """Means of the model w (from the minimum), the velocity d, the sum s, and their products."""

    w: Array
    d: Array
    s: Array
    ww: Array
    wd: Array
    dd: Array
    sw: Array
    sd: Array
    ss: Array


PLAIN = [Moments._fields.index(name) for name in ("w", "d", "ww", "wd", "dd")]


@checked
def expected_excess(
    clients: QuadraticClients,
    plan: Plan,
    lr: ArrayLike,
    rounds: Rounds,
    *,
    momentum: ArrayLike = 0.0,
) -> Array:
    """Return E f(w_t) - f(w*) after t = 0 ... T rounds, for every γ.

    Args:
        clients: The population.
        plan: How it is trained.
        lr: γ, or γ_0 where it decays; one or many.
        rounds: T.
        momentum: β, one or as many as γ; 0 is FedAvg.

    Returns:
        Shape (T + 1, number of γ); infinite from where the loss is above 1e8
        times the first.

    Examples:
        >>> clients = QuadraticClients([1, 1], [1.0], [[-1.0], [1.0]], [0.0], [2.0])
        >>> expected_excess(clients, Plan(per_round=1), 0.5, rounds=2)[:, 0].tolist()
        [2.0, 0.625, 0.28125]
    """
    return Recursion(clients, plan).curve(lr, rounds, momentum=momentum)


class Recursion:
    """The recursion of a population and a plan, with what does not depend on γ computed once.

    Clients with the same curvature, noise and steps are taken together: g groups of them. For
    G = Σ_g a_g (Ω_g w - C_g) + n with Ω_g = η Σ ω_k and C_g = η Σ ω_k (c_k - w*) over the clients
    of a group, it holds E Ω, E C, E ΩΩ, E ΩC and E CC, and the sums of η² E ω_k².
    """

    def __init__(self, clients: QuadraticClients, plan: Plan, *, ceiling: float = CEILING) -> None:
        self.clients, self.plan, self.ceiling = clients, plan, ceiling
        self._away = clients.start - clients.minimizer
        self._half = clients.mean_curvature / 2
        count, dimension = clients.curvature.shape
        check_memory(f"The map of {count:,} clients", 8 * 3 * count**2, "Use fewer clients.")
        eta = plan.eta(count)
        weights = weight_moments(clients.sizes, plan.per_round, plan.weighting, plan.sampler)
        steps = np.broadcast_to(np.asarray(plan.steps, float), (count,))
        rows = np.concatenate([steps[:, None], clients.curvature, clients.noise], axis=1)
        kinds, place = np.unique(rows, axis=0, return_inverse=True)
        self._steps, self._curvature, self._noise = np.split(kinds, [1, 1 + dimension], axis=1)
        member = np.zeros((count, len(kinds)))
        member[np.arange(count), place.ravel()] = 1
        optima = clients.optima - clients.minimizer
        product = eta**2 * weights.product
        # Sums over the clients of a group, left and right, with c_k where it stands: oc and cc.
        right = np.stack([(product * optima[:, i]) @ member for i in range(dimension)])
        left = optima.T[:, :, None] * member
        self._o = eta * weights.mean @ member  # (g,)
        self._c = eta * member.T @ (weights.mean[:, None] * optima)  # (g, d)
        self._oo = member.T @ product @ member  # (g, g)
        self._oc = member.T @ right  # (d, g, g)
        self._cc = np.swapaxes(left, 1, 2) @ right  # (d, g, g)
        self._squares = np.diag(product) @ member  # (g,)

    def moments(self, lr: Array) -> RoundMoments:
        """Return the moments of a round for every γ, arrays of (γ, d)."""
        x = lr[:, None, None] * self._curvature
        left = (1 - x) ** self._steps
        a = 1 - left
        noise = _gathered(x, left, self._steps, self.plan.epochs)
        noise = self._noise * lr[:, None, None] ** 2 * noise
        by_coordinate = np.ascontiguousarray(np.moveaxis(a, -1, 0))  # (d, γ, g)
        aa, ab, bb = (
            np.einsum("drg,drg->rd", by_coordinate @ table, by_coordinate)
            for table in (self._oo, self._oc, self._cc)
        )
        mean, shift = np.einsum("rgd,g->rd", a, self._o), np.einsum("rgd,gd->rd", a, self._c)
        return RoundMoments(mean, shift, aa, ab, bb, np.einsum("rgd,g->rd", noise, self._squares))

    def curve(self, lr: ArrayLike, rounds: int, *, momentum: ArrayLike = 0.0) -> Array:
        """Return the losses after every round, as ``expected_excess`` does.

        From where the loss is above ``ceiling`` times the first it is infinite: what comes back
        from beyond 1e8 has lost its digits.
        """
        rates, beta = _checked(lr, momentum)
        now = self._first(len(rates))
        losses = np.empty((rounds + 1, len(rates)))
        losses[0] = now.ww @ self._half
        with np.errstate(over="ignore", invalid="ignore"):
            for t, round_ in enumerate(self._rounds(rates, rounds), 1):
                now = after_round(now, round_, beta, self.plan.average)
                losses[t] = self._loss(now, t)
            gone = ~(losses <= self.ceiling * losses[0])
        return np.where(np.logical_or.accumulate(gone, axis=0), np.inf, losses)

    def after(self, lr: ArrayLike, rounds: ArrayLike, *, momentum: ArrayLike = 0.0) -> Array:
        """Return the losses after T rounds only, where every γ may have a T of its own.

        A constant γ has the same linear map in every round: its powers are squared together.
        """
        rates, beta = _checked(lr, momentum)
        counts = np.broadcast_to(np.asarray(rounds, int), rates.shape)
        if self.plan.decay == "constant":
            return self._by_squaring(rates, beta, counts)
        found = np.empty(len(rates))
        for count in np.unique(counts):
            own = counts == count
            found[own] = self.curve(rates[own], int(count), momentum=beta[own, 0])[-1]
        return found

    def _by_squaring(self, lr: Array, beta: Array, counts: NDArray[np.int64]) -> Array:
        round_ = self.moments(lr)
        used = PLAIN if self.plan.average is None else list(range(len(Moments._fields)))
        now = np.stack([*self._first(len(lr)), np.ones_like(round_.a)])[[*used, -1]]
        vector = np.moveaxis(now, 0, -1)[..., None]
        power = _matrix(round_, beta, self.plan.average, used)
        with np.errstate(over="ignore", invalid="ignore"):
            for bit in range(int(counts.max()).bit_length()):
                own = (counts >> bit) & 1 == 1
                vector[own] = power[own] @ vector[own]
                power = power @ power
            whole = np.zeros((len(Moments._fields), *round_.a.shape))
            whole[used] = np.moveaxis(vector[..., :-1, 0], -1, 0)
            losses = self._loss(Moments(*whole), counts)
            first = self._half @ self._away**2
            return np.where(losses <= self.ceiling * first, losses, np.inf)

    def _loss(self, now: Moments, rounds: int | NDArray[np.int64]) -> Array:
        decay = self.plan.average
        if decay is None:
            return now.ww @ self._half
        return (now.ss @ self._half) / (1 - decay**rounds) ** 2

    def _first(self, rates: int) -> Moments:
        w = np.tile(self._away, (rates, 1))
        none = np.zeros_like(w)
        return Moments(w, none, none, w**2, none, none, none, none, none)

    def _rounds(self, lr: Array, rounds: int) -> Iterator[RoundMoments]:
        """Yield the moments of every round; those of a constant γ are computed once."""
        if self.plan.decay == "constant":
            yield from itertools.repeat(self.moments(lr), rounds)
            return
        shares = self.plan.rates(rounds)
        many = max(1, AT_ONCE // (len(lr) * self._curvature.size))
        for first in range(0, rounds, many):
            part = shares[first : first + many]
            flat = self.moments(np.outer(part, lr).ravel())
            shaped = [each.reshape(len(part), len(lr), -1) for each in flat]
            for t in range(len(part)):
                yield RoundMoments(*(each[t] for each in shaped))


def after_round(now: Moments, g: RoundMoments, beta: Array, decay: float | None = None) -> Moments:
    """Return the moments after a round: linear in those before it."""
    mean = g.a * now.w - g.b
    square = g.aa * now.ww - 2 * g.ab * now.w + g.bb + g.nn
    with_w = g.a * now.ww - g.b * now.w
    with_d = g.a * now.wd - g.b * now.d
    beta2, more = beta**2, 1 + beta
    # w' = e - (1 + β) G with e = w + β² d, what the model would be without the round's update.
    ed = now.wd + beta2 * now.dd
    ee = now.ww + beta2 * (now.wd + ed)
    with_e = with_w + beta2 * with_d
    after = now._replace(
        w=now.w + beta2 * now.d - more * mean,
        d=beta * now.d - mean,
        ww=ee - 2 * more * with_e + more**2 * square,
        wd=beta * ed - with_e - beta * more * with_d + more * square,
        dd=beta2 * now.dd - 2 * beta * with_d + square,
    )
    if decay is None:
        return after
    # s' = decay s + (1 - decay) w'.
    with_g, new = g.a * now.sw - g.b * now.s, 1 - decay
    with_w = now.sw + beta2 * now.sd - more * with_g
    with_d = beta * now.sd - with_g
    return after._replace(
        s=decay * now.s + new * after.w,
        sw=decay * with_w + new * after.ww,
        sd=decay * with_d + new * after.wd,
        ss=decay**2 * now.ss + 2 * decay * new * with_w + new**2 * after.ww,
    )


def _matrix(g: RoundMoments, beta: Array, decay: float | None, used: list[int]) -> Array:
    """Return a round's map of the used moments and 1, shape (γ, d, n + 1, n + 1).

    Its columns are what a round makes of each moment alone: the map is that of ``after_round``.
    """
    size = len(used)
    alone = np.zeros((len(Moments._fields), size + 1, *g.a.shape))
    alone[used, range(size)] = 1
    matrix = np.zeros((*g.a.shape, size + 1, size + 1))
    matrix[..., -1, -1] = 1
    images = after_round(Moments(*alone), g, beta, decay)
    for row, field in enumerate(used):
        matrix[..., row, :] = np.moveaxis(images[field], 0, -1)
    matrix[..., :-1, :-1] -= matrix[..., :-1, -1:]
    return matrix


def _checked(lr: ArrayLike, momentum: ArrayLike) -> tuple[Array, Array]:
    """Return γ, shape (n,), and β, shape (n, 1)."""
    steps, given = np.atleast_1d(positive(lr, "lr")), np.atleast_1d(numbers(momentum, "momentum"))
    if steps.ndim > 1 or given.ndim > 1 or len({len(steps), len(given), 1}) > 2:
        raise FedMomError(
            f"lr has shape {steps.shape}, and momentum {given.shape}. Give one of each, or lists"
            " of the same length."
        )
    rates, betas = np.broadcast_arrays(steps, given)
    if not ((betas >= 0) & (betas < 1)).all():
        raise FedMomError(f"momentum contains {betas.max():g}. It must be at least 0 and below 1.")
    return rates, betas[:, None]
