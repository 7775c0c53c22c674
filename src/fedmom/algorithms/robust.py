"""Robust rules: aggregates that a bounded number of arbitrary replies cannot move far.

Each is a function of a matrix with one reply per row, as in its paper. A row of weight 0 does not
count, and may hold anything.
"""

from functools import lru_cache
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from fedmom.algorithms.base import Reported, Rule
from fedmom.algorithms.local_work import check_positive
from fedmom.algorithms.matrices import TINY, as_matrix, mean_of, norms_of, squared_distances
from fedmom.algorithms.rules import weigh_by
from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.types import Params, Weighting
from fedmom.core.validation import MOST, Between

Number = Annotated[int, Between(0, MOST)]
Iterations = Annotated[int, Between(1, 1000)]


@checked
def krum(weighting: Weighting = "uniform", *, attackers: Number = 1) -> Rule:
    """The reply with the nearest neighbours (Blanchard et al. 2017).

    A reply's score is the sum of its squared distances to its n - f - 2 nearest others. Of replies
    with equal scores, it is the mean.

    Args:
        weighting: ``uniform`` or ``cohort``; weights count among equal scores only.
        attackers: f, the most replies of a round that may be hostile; a round needs 2f + 3 replies.

    Returns:
        A rule that needs every reply.

    Examples:
        >>> rows = {"w": jnp.array([[1.0], [1.1], [1.2], [1.4], [100.0]])}
        >>> round(float(krum(attackers=1).each(rows, jnp.ones(5), ())[0]["w"][0]), 3)
        1.1
    """
    return _krum("krum", weighting, attackers, 1)


@checked
def multi_krum(
    weighting: Weighting = "uniform", *, attackers: Number = 1, keep: Iterations | None = None
) -> Rule:
    """The mean of the replies that Krum scores best (Blanchard et al. 2017).

    Args:
        weighting: ``uniform`` or ``cohort``, of the mean.
        attackers: f, the most replies of a round that may be hostile; a round needs 2f + 3 replies.
        keep: m, how many replies are averaged; by default n - f.

    Returns:
        A rule that needs every reply.

    Examples:
        >>> rows = {"w": jnp.array([[1.0], [2.0], [3.0], [4.0], [100.0]])}
        >>> multi_krum(attackers=1).each(rows, jnp.ones(5), ())[0]["w"].tolist()
        [2.5]
    """
    return _krum("multi_krum", weighting, attackers, keep)


@checked
@lru_cache  # equal rules are one object, so that runs share compiled programs
def geometric_median(
    weighting: Weighting = "uniform", *, iterations: Iterations = 32, smoothing: float = 1e-6
) -> Rule:
    """The point with the least sum of distances to the replies, by smoothed Weiszfeld steps.

    The aggregate of RFA (Pillutla et al. 2022): z' = Σ b_k x_k / Σ b_k, with
    b_k = a_k / max(smoothing, |x_k - z|), from z = 0.

    Args:
        weighting: ``uniform``, or ``cohort``, where a client that claims many samples counts more.
        iterations: How many steps.
        smoothing: The least distance that is divided by, greater than 0.

    Returns:
        A rule that needs every reply.

    Examples:
        >>> rows = {"w": jnp.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [1e6, 1e6]])}
        >>> found = geometric_median().each(rows, jnp.array([1.0, 1.0, 2.0, 1.0]), ())[0]["w"]
        >>> [round(x, 2) for x in found.tolist()]
        [0.5, 0.5]
    """
    _check_weighting("geometric_median", weighting)
    check_positive("geometric_median: smoothing", smoothing)

    def each(rows: Params, weights: jax.Array, state: Any) -> tuple[Params, Any, Reported]:
        flat, whole = as_matrix(rows, weights)

        def step(_: Any, z: jax.Array) -> jax.Array:
            return mean_of(flat, weights / jnp.maximum(norms_of(flat - z), smoothing))

        return whole(jax.lax.fori_loop(0, iterations, step, jnp.zeros_like(flat[0]))), state, {}

    return Rule(weigh_by(weighting), each=each, name="geometric_median")


@checked
@lru_cache
def centered_clipping(
    weighting: Weighting = "uniform", *, radius: float | None = None, iterations: Iterations = 1
) -> Rule:
    """The last aggregate, plus the mean of what replies add to it, clipped to a radius.

    From the aggregate v of the round before (0 in the first), v' = v + mean of
    (x_k - v) min(1, radius / |x_k - v|) (Karimireddy et al. 2021). No reply moves it by more than
    its weight times the radius, and hostile ones cannot add up over rounds unseen: v is the
    server's momentary estimate, kept in checkpoints.

    Args:
        weighting: ``uniform``, or ``cohort``, where a client that claims many samples counts more.
        radius: τ, greater than 0; by default the median of the round's |x_k - v|.
        iterations: How often the step is taken in a round.

    Returns:
        A rule that needs every reply and keeps v; it reports the share of clipped replies.

    Examples:
        >>> rule = centered_clipping(radius=1.0)
        >>> rows = {"w": jnp.array([[0.5], [100.0]])}
        >>> v, state, metrics = rule.each(rows, jnp.ones(2), rule.init({"w": jnp.zeros(1)}))
        >>> v["w"].tolist(), float(metrics["share"])
        ([0.75], 0.5)
    """
    _check_weighting("centered_clipping", weighting)
    if radius is not None:
        check_positive("centered_clipping: radius", radius)

    def init(form: Params) -> Params:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), form)

    def each(rows: Params, weights: jax.Array, state: Params) -> tuple[Params, Any, Reported]:
        flat, whole = as_matrix(rows, weights)
        v = as_matrix(jax.tree.map(lambda leaf: leaf[None], state), jnp.ones(1))[0][0]
        share = _share_above(flat - v, weights, radius)

        def step(_: Any, v: jax.Array) -> jax.Array:
            return v + mean_of(_clipped(flat - v, weights, radius), weights)

        v = whole(jax.lax.fori_loop(0, iterations, step, v))
        return v, v, {"share": share}

    return Rule(weigh_by(weighting), each=each, init=init, name="centered_clipping")


@checked
@lru_cache
def norm_bound(weighting: Weighting = "uniform", *, norm: float | None = None) -> Rule:
    """The mean of the replies, each scaled down to a norm on the server (Sun et al. 2019).

    Args:
        weighting: ``uniform``, or ``cohort``, where a client that claims many samples counts more.
        norm: The largest norm that a reply keeps, greater than 0; by default the median of the
            round's norms.

    Returns:
        A rule that needs every reply; it reports the share of those that were scaled down.

    Examples:
        >>> rows = {"w": jnp.array([[0.5], [100.0]])}
        >>> norm_bound(norm=1.0).each(rows, jnp.ones(2), ())[0]["w"].tolist()
        [0.75]
    """
    _check_weighting("norm_bound", weighting)
    if norm is not None:
        check_positive("norm_bound: norm", norm)

    def each(rows: Params, weights: jax.Array, state: Any) -> tuple[Params, Any, Reported]:
        flat, whole = as_matrix(rows, weights)
        share = _share_above(flat, weights, norm)
        return whole(mean_of(_clipped(flat, weights, norm), weights)), state, {"share": share}

    return Rule(weigh_by(weighting), each=each, name="norm_bound")


def _bound(lengths: jax.Array, weights: jax.Array, given: float | None) -> Any:
    """Return the bound that is given, or the lower median of the lengths of the round."""
    if given is not None:
        return given
    order = jnp.argsort(jnp.where(weights > 0, lengths, jnp.inf))
    below = jnp.cumsum(weights[order])
    return lengths[order][jnp.argmax(below >= below[-1] / 2 * (1 - 1e-6))]


def _clipped(flat: jax.Array, weights: jax.Array, bound: float | None) -> jax.Array:
    """Return rows scaled down to a norm, where theirs is larger."""
    lengths = norms_of(flat)
    most = _bound(lengths, weights, bound)
    return flat * jnp.minimum(1, most / jnp.maximum(lengths, TINY))[:, None]


def _share_above(flat: jax.Array, weights: jax.Array, bound: float | None) -> jax.Array:
    lengths = norms_of(flat)
    above = lengths > _bound(lengths, weights, bound)
    return jnp.sum(jnp.where(above, weights, 0)) / jnp.maximum(jnp.sum(weights), TINY)


@lru_cache
def _krum(name: str, weighting: Weighting, attackers: int, keep: int | None) -> Rule:
    _check_weighting(name, weighting)

    def each(rows: Params, weights: jax.Array, state: Any) -> tuple[Params, Any, Reported]:
        flat, whole = as_matrix(rows, weights)
        counts = weights > 0
        n = jnp.sum(counts)
        others = ~jnp.eye(len(flat), dtype=bool) & counts
        distances = jnp.sort(jnp.where(others, squared_distances(flat), jnp.inf), axis=1)
        nearest = jnp.arange(len(flat)) < jnp.maximum(n - attackers - 2, 1)
        scores = jnp.where(counts, jnp.sum(jnp.where(nearest, distances, 0), axis=1), jnp.inf)
        kept = jnp.clip(n - attackers if keep is None else keep, 1, len(flat))
        best = scores <= jnp.sort(scores)[kept - 1]
        return whole(mean_of(flat, jnp.where(best, weights, 0))), state, {}

    return Rule(weigh_by(weighting), each=each, name=name, least=2 * attackers + 3)


def _check_weighting(name: str, weighting: Weighting) -> None:
    if weighting == "population":
        raise FedMomError(
            f"{name} cannot use population weights, which do not add up to one over a cohort."
            " Use --weighting uniform, or cohort."
        )
