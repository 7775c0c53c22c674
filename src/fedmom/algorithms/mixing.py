"""Stages that mix the replies of a round on the server, in front of a robust rule."""

from functools import lru_cache
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from fedmom.algorithms.base import Round, Stage
from fedmom.algorithms.matrices import TINY, as_matrix, squared_distances
from fedmom.core.arguments import checked
from fedmom.core.prng import fold_in
from fedmom.core.types import Params
from fedmom.core.validation import MOST, Between


@checked
@lru_cache
def bucketing(*, size: Annotated[int, Between(1, MOST)] = 2) -> Stage:
    """Replace replies by the means of random buckets of them (Karimireddy et al. 2022).

    Means differ less than clients do, so a robust rule loses fewer honest ones. An attacker spoils
    its whole bucket: f of them need a rule for f of n / size replies.

    Args:
        size: s, the replies in a bucket; the last one may have fewer.

    Returns:
        A stage that mixes replies on the server, at random by seed, round and client.

    Examples:
        >>> rows, weights = {"w": jnp.arange(4.0)[:, None]}, jnp.ones(4)
        >>> here = Round(0, jax.random.key(0), 4, 4.0, 0.25)
        >>> mixed, weights = bucketing(size=2).mix(rows, weights, jnp.arange(4), here)
        >>> mixed["w"].shape, float(mixed["w"].mean()), weights.tolist()
        ((2, 1), 1.5, [2.0, 2.0])
    """

    def mix(
        rows: Params, weights: jax.Array, clients: jax.Array, round_: Round
    ) -> tuple[Params, jax.Array]:
        flat, whole = as_matrix(rows, weights)
        drawn = jax.vmap(lambda client: jax.random.bits(fold_in(round_.key, client)))(clients)
        # Rows that do not count come last, or buckets would be half empty.
        order = jnp.lexsort((drawn, weights <= 0))
        buckets = -(-len(flat) // size)
        place = jnp.zeros(len(flat), int).at[order].set(jnp.arange(len(flat)) // size)
        inside = (place == jnp.arange(buckets)[:, None]) * weights
        return _mixed(inside, flat, whole), jnp.sum(inside, 1)

    return Stage("bucketing", mix=mix, rows_after=lambda replies: -(-replies // size))


@checked
@lru_cache
def nearest_neighbour_mixing(*, attackers: Annotated[int, Between(0, MOST)] = 1) -> Stage:
    """Replace every reply by the mean of the n - f nearest to it, itself included (NNM).

    Allouah et al. (2023): with it, any of the usual robust rules bears heterogeneous clients as
    well as possible.

    Args:
        attackers: f, the most replies of a round that may be hostile; a round needs more than 2f.

    Returns:
        A stage that mixes replies on the server.

    Examples:
        >>> rows, weights = {"w": jnp.array([[1.0], [2.0], [3.0], [100.0]])}, jnp.ones(4)
        >>> mixed, _ = nearest_neighbour_mixing(attackers=1).mix(rows, weights, None, None)
        >>> mixed["w"][:3, 0].tolist()
        [2.0, 2.0, 2.0]
    """

    def mix(
        rows: Params, weights: jax.Array, _clients: jax.Array, _round: Round
    ) -> tuple[Params, jax.Array]:
        flat, whole = as_matrix(rows, weights)
        counts = weights > 0
        distances = jnp.where(counts, squared_distances(flat), jnp.inf)
        near = jnp.clip(jnp.sum(counts) - attackers, 1, len(flat))
        furthest = jnp.sort(distances, axis=1)[:, near - 1]
        inside = ((distances <= furthest[:, None]) & counts) * weights
        return _mixed(inside, flat, whole), weights

    return Stage("nearest_neighbour_mixing", mix=mix, least=2 * attackers + 1)


def _mixed(inside: jax.Array, flat: jax.Array, whole: Any) -> Params:
    """Return the weighted means of rows, one for each row of their weights."""
    shares = inside / jnp.maximum(jnp.sum(inside, 1, keepdims=True), TINY)
    return jax.vmap(whole)(jnp.matmul(shares, flat, precision="highest"))
