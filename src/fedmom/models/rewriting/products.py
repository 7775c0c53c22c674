"""Gradients of dense layers' weights in the form that XLA's CPU backend computes fastest."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedmom.core.fusion import kernel

DTYPES = (jnp.float32, jnp.float64)
FEW = 64  # with fewer rows, as a small batch without places has, nothing is gained


def product(a: jax.Array, b: jax.Array, **params: Any) -> jax.Array | None:
    """Return ``lax.dot_general`` of rows (n, ...) and rows (n, ...), summed over the rows.

    The narrower rows come first, in a kernel of its own: otherwise XLA lays out the arrays around
    the product so that it is slow.
    """
    (summed, other), (batch, _) = params["dimension_numbers"]
    leading = tuple(range(len(summed)))
    if batch or not leading == tuple(summed) == tuple(other) or params.get("precision"):
        return None
    rows = math.prod(a.shape[: len(leading)])
    if rows < FEW or a.dtype not in DTYPES or b.dtype != a.dtype:
        return None
    x, y = a.reshape(rows, -1), b.reshape(rows, -1)
    found = over_rows(x, y) if x.shape[1] <= y.shape[1] else over_rows(y, x).T
    return found.reshape(a.shape[len(leading) :] + b.shape[len(leading) :])


@kernel
def over_rows(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return ``x.T @ y``."""
    return lax.dot_general(x, y, (((0,), (0,)), ((), ())))
