"""The weights that a round gives to clients, as random numbers: their means and mean products.

In a round client k's update counts ω_k, which is 0 for who was not drawn. All that the draw does
to the first and second moments of a linear recursion is in E ω_k and E ω_k ω_l.

- Uniform cohorts, population or equal weights: closed form, from the chances M/K of a client and
  M(M-1)/(K(K-1)) of a pair.
- Uniform cohorts, cohort weights n_k / Σ_S n: ratios. With 1/s² = ∫ t e^{-ts} dt the numbers
  e^{-t n_j} of a cohort multiply, and a sum over all cohorts of M is the coefficient of z^M in
  Π_j (1 + z e^{-t n_j}). One integral over t and one over the circle of z, both by the trapezoid
  rule, give all of them to about ten digits; no cohort is drawn.
- Clients drawn by size (the sampler ``weighted``), equal weights: the chance of a client is that of
  the sampler. That of a pair has no closed form. It is taken as D_k D_l, with D such that the
  pairs of each client add up to what they must; tests hold it against the sampler's own draws.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.types import WEIGHTINGS
from fedmom.theory.constants import Array

STEP = 0.35  # of log t: the trapezoid rule's error falls as e^{-π²/STEP}
NEGLIGIBLE = 1e-13
ROUNDS_OF_SCALING = 200
KNOWN_SAMPLERS = ("uniform", "weighted")


class WeightMoments(NamedTuple):
    """E ω_k, shape (K,), and E ω_k ω_l, shape (K, K)."""

    mean: Array
    product: Array


def weight_moments(
    sizes: ArrayLike, per_round: int, weighting: str = "population", sampler: str = "uniform"
) -> WeightMoments:
    """Return the moments of the weights of a round, before η.

    Args:
        sizes: n_k of every client.
        per_round: M, the clients of a round.
        weighting: ``population``, ``cohort`` or ``uniform``, as for ``fedmom.mean``.
        sampler: ``uniform``, or ``weighted``, which goes with ``uniform`` weights.

    Returns:
        The means and the mean products.

    Examples:
        >>> moments = weight_moments(np.array([1, 1, 2]), 2, "cohort")
        >>> bool(np.isclose(moments.mean.sum(), 1)), bool(np.isclose(moments.product.sum(), 1))
        (True, True)
    """
    counts = np.asarray(sizes, float)
    clients = len(counts)
    if not 1 <= per_round <= clients:
        raise FedMomError(
            f"clients-per-round {per_round} is not between 1 and the {clients} clients."
        )
    if weighting not in WEIGHTINGS:
        raise FedMomError(f"weighting {weighting!r} is none of {', '.join(WEIGHTINGS)}.")
    if sampler not in KNOWN_SAMPLERS:
        raise FedMomError(
            f"The moments of sampler {sampler!r} are not known here. Use"
            f" {' or '.join(KNOWN_SAMPLERS)}."
        )
    if sampler == "weighted":
        if weighting != "uniform":
            raise FedMomError(
                f"sampler weighted goes with uniform weights, not with {weighting} weights, which"
                " would count samples twice. Use weighting uniform."
            )
        return _by_size(counts, per_round)
    if weighting == "cohort":
        return _ratios(tuple(counts.tolist()), per_round)
    weights = (
        counts / counts.sum() if weighting == "population" else np.full(clients, 1 / per_round)
    )
    return _fixed(weights, per_round)


def _fixed(weights: Array, drawn: int) -> WeightMoments:
    """Weights that do not depend on who else is drawn, in a uniform cohort."""
    clients = len(weights)
    one = drawn / clients
    two = one * (drawn - 1) / max(clients - 1, 1)
    product = two * np.outer(weights, weights)
    np.fill_diagonal(product, one * weights**2)
    return WeightMoments(one * weights, product)


@lru_cache(maxsize=32)  # a search for constants asks for the same ones again and again
def _ratios(of_clients: tuple[float, ...], drawn: int) -> WeightMoments:
    """Weights n_k over the cohort's samples, in a uniform cohort.

    With x_j = e^{-t n_j} and π_j = ρ x_j / (1 + ρ x_j), a sum over cohorts is a chance that M
    clients come, each by itself with chance π_j; ρ is set so that M are expected, and the circle
    then needs few points, since numbers far from M have no chance.
    """
    clients, sizes = len(of_clients), np.array(of_clients)
    if drawn == clients:
        weights = sizes / sizes.sum()
        return WeightMoments(weights, np.outer(weights, weights))
    values, place, counts = np.unique(sizes / sizes.mean(), return_inverse=True, return_counts=True)
    ordered = np.sort(sizes / sizes.mean())
    ends = math.log(1e-14 / ordered[-drawn:].sum()), math.log(45 / ordered[:drawn].sum())
    t = np.exp(np.arange(ends[0], ends[1], STEP))
    chance, scale = _tilted(values, counts, drawn, t)
    points = min(clients + 1, drawn + math.ceil(12 * math.sqrt(drawn)) + 30) | 1
    turn = np.exp(2j * np.pi * np.arange(points // 2 + 1) / points)
    factor = 1 + chance[:, None] * (turn[:, None] - 1)  # t, point on the circle, size
    share = np.prod(factor**counts, axis=-1) * turn**-drawn / points
    share[:, 1:] *= 2  # the other half of the circle is the conjugate
    share *= (STEP * t * scale)[:, None]
    part = values * chance[:, None] * turn[:, None] / factor
    mean, square, pairs = _summed(share, part, t, values)
    product = pairs[np.ix_(place, place)]  # from sizes to the clients that have them
    np.fill_diagonal(product, square[place])
    return WeightMoments(mean[place], product)


def _tilted(values: Array, counts: NDArray[np.int64], drawn: int, t: Array) -> tuple[Array, Array]:
    """Return the chances π at every t, and what the sum over cohorts is scaled by."""
    clients = int(counts.sum())
    exponents = -np.outer(t, values)
    low, high = -exponents.max(axis=1) - 50, -exponents.min(axis=1) + 50
    for _ in range(100):
        middle = (low + high) / 2
        many = _logistic(middle[:, None] + exponents) @ counts > drawn
        low, high = np.where(many, low, middle), np.where(many, middle, high)
    log_odds = middle[:, None] + exponents
    ways = math.lgamma(clients + 1) - math.lgamma(drawn + 1) - math.lgamma(clients - drawn + 1)
    return _logistic(log_odds), np.exp(np.logaddexp(0, log_odds) @ counts - drawn * middle - ways)


def _logistic(x: Array) -> Array:
    return np.exp(-np.logaddexp(0, -x))


def _summed(share: Array, part: Array, t: Array, values: Array) -> tuple[Array, Array, Array]:
    """Add up the points that count: E ω_k, E ω_k², E ω_k ω_l by size."""
    size = np.abs(share) * np.abs(part).max(axis=-1)
    size *= np.maximum(1, t[:, None] * np.abs(part).max(axis=-1))
    kept = size > NEGLIGIBLE * size.max()
    terms, times = part[kept], np.broadcast_to(t[:, None], share.shape)[kept]
    once = share[kept][:, None] * terms
    mean = once.sum(axis=0).real
    square = values * (times[:, None] * once).sum(axis=0).real
    return mean, square, ((times[:, None] * once).T @ terms).real


def _by_size(sizes: Array, drawn: int) -> WeightMoments:
    """Equal weights of clients drawn in proportion to their samples."""
    chance = np.zeros(len(sizes))
    others, left = np.flatnonzero(sizes), drawn
    if len(others) < drawn:
        raise FedMomError(
            f"clients-per-round {drawn} is more than the {len(others)} clients with samples."
        )
    while left and (sure := sizes[others] * left >= sizes[others].sum() * (1 - 1e-12)).any():
        chance[others[sure]] = 1.0  # a client with more than n/M samples is always drawn
        others, left = others[~sure], left - int(sure.sum())
    if left:
        chance[others] = left * sizes[others] / sizes[others].sum()
    pairs = np.outer(chance, chance)  # right wherever one of the two is always drawn
    pairs[np.ix_(others, others)] = _pairs(chance[others], left)
    np.fill_diagonal(pairs, chance)
    return WeightMoments(chance / drawn, pairs / drawn**2)


def _pairs(chance: Array, drawn: int) -> Array:
    """Chances D_k D_l of pairs, such that Σ_{l≠k} D_k D_l = (m - 1) π_k."""
    if drawn < 2:
        return np.zeros((len(chance), len(chance)))
    part = chance * math.sqrt((drawn - 1) / drawn)
    for _ in range(ROUNDS_OF_SCALING):
        part = np.sqrt(part * (drawn - 1) * chance / (part.sum() - part))
    return np.outer(part, part)
