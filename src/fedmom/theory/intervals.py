"""The constants from what was measured on some clients, with 90 % confidence intervals.

An interval is of the number that the same measurement, at the same models, would give on a large
population of which the drawn clients are a sample. It says nothing of other models. It contains
its estimate by construction: it reaches from the estimate up and down by the standard error that
1,000 bootstrap samples of the clients show, times the quantile of Student's t. The bootstrap's
own percentiles would not do: G² and the rest are largest values, ratios and squares of means,
whose bootstrap samples lie to one side of the estimate, all of them at times.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # scipy.stats has the same, and loads for a second

Floats = NDArray[np.float64]

BOOTSTRAPS = 1000
LEVEL = 0.9  # of every interval
SMALL = 0.1  # of what it is a part of: below this, G² varies by differences, not by factors


@dataclass(frozen=True)
class Estimate:
    """A number, and an interval that contains it; ``high`` is None if there is no upper end."""

    value: float
    low: float
    high: float | None


@dataclass(frozen=True)
class Measured:
    """What was seen; the last axis is the drawn clients, the first the models.

    Args:
        losses: f_k(w).
        products: <∇f_i(w), ∇f_j(w)>, with two axes of clients.
        variances: σ² of each client's batches, at some of the models.
        weights: p_k over the drawn clients; its sum is 1.
        share: The drawn part of all clients, in (0, 1].
    """

    losses: Floats
    products: Floats
    variances: Floats
    weights: Floats
    share: float = 1.0


def summarize(seen: Measured, seed: int) -> tuple[Estimate, Estimate, Estimate, Estimate]:
    """Return σ², G², B² and f(w_0) - f_inf, each with its interval.

    Args:
        seen: What was measured.
        seed: Of the bootstrap.

    Returns:
        The estimates. Intervals of σ², G² and B² reach as many times up as down (G² by less if
        it is small beside Σ p_k|∇f_k|²), that of the gap as far up as down; none reaches below
        0, that of B² not below 1.
    """
    size = len(seen.weights)
    draws = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), BOOTSTRAPS)
    samples = draws * seen.weights
    samples /= samples.sum(axis=1, keepdims=True)
    spread = _values(seen, samples, share=1.0)
    values = [float(v[0]) for v in _values(seen, seen.weights[None], seen.share)]
    # Clients of unequal weight count as fewer equal ones would; and a bootstrap sample of n
    # clients spreads by n - 1 of n.
    alike = 1 / float(np.sum(seen.weights**2))
    quantile = float(stdtrit(max(1.0, alike - 1), (1 + LEVEL) / 2))
    reach = quantile * np.sqrt(size / max(1, size - 1))
    variance, dissimilarity, similarity, gap = zip(values, spread, strict=True)
    clients_squares = np.diagonal(seen.products, axis1=1, axis2=2) @ seen.weights
    return (
        _by_factors(*variance, reach),
        _by_factors(*dissimilarity, reach, shift=SMALL * float(clients_squares.max())),
        _by_factors(*similarity, reach, least=1.0),
        _by_differences(*gap, reach),
    )


def fit(gradient_squares: Floats, mean_squares: Floats) -> tuple[Floats, Floats]:
    """Return G² and B² for |∇f|² and Σ p_k|∇f_k|² seen at some models, the last axis.

    B² is the slope of the straight line closest by least squares, at least 1; G² is the smallest
    that then covers all models.
    """
    x, y = gradient_squares, mean_squares
    apart = x - x.mean(axis=-1, keepdims=True)
    spread = np.sum(apart**2, axis=-1)
    slope = np.divide(
        np.sum(apart * y, axis=-1), spread, out=np.ones_like(spread), where=spread > 0
    )
    slope = np.maximum(1.0, slope)
    room = np.max(y - slope[..., None] * x, axis=-1)
    return np.maximum(0.0, room), slope


def _values(seen: Measured, weights: Floats, share: float) -> tuple[Floats, ...]:
    """Return σ², G², B² and the gap for rows of clients' weights."""
    own = np.diagonal(seen.products, axis1=1, axis2=2)  # |∇f_k|²
    squares = np.einsum("bi,mij,bj->bm", weights, seen.products, weights, optimize=True)
    if share < 1:
        squares = np.maximum(0.0, squares - (1 - share) * _excess(own, squares, weights))
    losses = weights @ seen.losses.T
    variances = np.max(weights @ seen.variances.T, axis=1)
    return variances, *fit(squares, weights @ own.T), losses[:, 0] - losses.min(axis=1)


def _excess(own: Floats, squares: Floats, weights: Floats) -> Floats:
    """Return how much longer, in the square, a mean over few clients is than that over many.

    It is the variance of the mean, which the spread of the clients tells. Without it |∇f|² would
    be too large and G² too small.
    """
    doubles = np.sum(weights**2, axis=1, keepdims=True)
    spread = weights**2 @ own.T - doubles * squares
    return np.divide(spread, 1 - doubles, out=np.zeros_like(spread), where=doubles < 1 - 1e-9)


def _by_factors(
    value: float, draws: Floats, reach: float, *, least: float = 0.0, shift: float = 0.0
) -> Estimate:
    """Return the interval of what varies by factors once a shift is added.

    A shift is for what may be 0. Then a factor means little, and a difference does.
    """
    if value + shift == 0:
        return Estimate(0.0, 0.0, float(draws.max()))
    shifted = np.maximum(draws + shift, 1e-9 * (value + shift))
    factor = float(np.exp(reach * np.std(np.log(shifted))))
    low, high = (value + shift) / factor - shift, (value + shift) * factor - shift
    # Rounding must not put the estimate outside.
    return Estimate(value, min(value, max(least, low)), max(value, high))


def _by_differences(value: float, draws: Floats, reach: float) -> Estimate:
    away = float(reach * np.std(draws))
    return Estimate(value, max(0.0, value - away), value + away)
