"""Replies as a matrix, one per row, inside compiled programs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedmom.core.types import Params

TINY = float(np.finfo(np.float32).tiny)


def as_matrix(rows: Params, weights: jax.Array) -> tuple[jax.Array, Callable[[jax.Array], Params]]:
    """Return stacked updates as a matrix, and what makes an update of one of its rows.

    Rows of weight 0 may hold anything, and become 0.
    """
    _, whole = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], rows))
    flat = jax.vmap(lambda row: ravel_pytree(row)[0])(rows)
    return jnp.where(weights[:, None] > 0, flat, 0), whole


def mean_of(flat: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the weighted mean of rows; 0 of none."""
    shares = weights / jnp.maximum(jnp.sum(weights), TINY)
    return jnp.sum(flat * shares[:, None], 0)


def norms_of(flat: jax.Array) -> jax.Array:
    """Return the norm of every row; one whose square overflows has a finite norm all the same."""
    largest = jnp.max(jnp.abs(flat), axis=1, initial=TINY)
    return largest * jnp.sqrt(jnp.sum(jnp.square(flat / largest[:, None]), 1))


def squared_distances(flat: jax.Array) -> jax.Array:
    """Return the squared distance of every row from every other.

    From differences: |a|² + |b|² - 2ab has no digits left where updates are much alike.
    """
    return jax.lax.map(lambda row: jnp.sum(jnp.square(flat - row), 1), flat)
