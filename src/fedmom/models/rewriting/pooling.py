"""The gradient of max pooling, for which XLA's CPU backend has slow code."""

import math
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedmom.core.fusion import kernel

MOST_PLACES = 16  # of a window; each is a term in a program
Axes = tuple[int, ...]


def unpooled(
    g: jax.Array,
    x: jax.Array,
    *,
    select_prim: Any,
    window_dimensions: Any,
    window_strides: Any,
    padding: Any,
    **_: Any,
) -> jax.Array | None:
    """Return the gradient that max pooling passes on: to the first that is largest in its window.

    It equals ``lax``'s private ``_select_and_scatter_add`` wherever ``x`` is not NaN; None where
    there is no better form.

    Args:
        g: The gradient of the outputs.
        x: The inputs.
        select_prim: How places of a window are compared.
        window_dimensions: The windows' size, by axis.
        window_strides: How far apart they are.
        padding: How many places they reach beyond the inputs, before and after.
    """
    sizes, strides, pads = map(tuple, (window_dimensions, window_strides, padding))
    known = select_prim.name == "ge" and jnp.issubdtype(x.dtype, jnp.floating)
    if not known or math.prod(sizes) > MOST_PLACES or 0 in (*x.shape, *g.shape):
        return None
    if min(min(pair) for pair in pads) < 0:
        return None
    if sizes == strides and not any(map(sum, pads)):
        return _apart(g, x, sizes=sizes)
    return _overlapping(g, x, sizes=sizes, strides=strides, pads=pads)


@kernel
def _apart(g: jax.Array, x: jax.Array, *, sizes: Axes) -> jax.Array:
    """Windows that do not overlap: every input has one gradient at the most."""
    parts = jnp.stack(_shares(g, x, sizes, sizes)).reshape(*sizes, *g.shape)
    axes = [
        axis for pair in zip(range(x.ndim, 2 * x.ndim), range(x.ndim), strict=True) for axis in pair
    ]
    covered = [count * size for count, size in zip(g.shape, sizes, strict=True)]
    whole = parts.transpose(axes).reshape(covered)
    beyond = [(0, n - c, 0) for n, c in zip(x.shape, covered, strict=True)]
    return lax.pad(whole, jnp.zeros((), g.dtype), beyond)


@kernel
def _overlapping(g: jax.Array, x: jax.Array, *, sizes: Axes, strides: Axes, pads: Any) -> jax.Array:
    """All other windows: gradients are added up."""
    lowest = jnp.array(-jnp.inf, x.dtype)
    padded = lax.pad(x, lowest, [(*pair, 0) for pair in pads])
    spread = [
        lax.pad(
            share,
            jnp.zeros((), g.dtype),
            [
                (i, n - i - (count - 1) * stride - 1, stride - 1)
                for i, n, count, stride in zip(at, padded.shape, g.shape, strides, strict=True)
            ],
        )
        for at, share in zip(np.ndindex(sizes), _shares(g, padded, sizes, strides), strict=True)
    ]
    inner = tuple(slice(low, low + n) for (low, _), n in zip(pads, x.shape, strict=True))
    return reduce(jnp.add, spread)[inner]


def _shares(g: jax.Array, x: jax.Array, sizes: Axes, strides: Axes) -> list[jax.Array]:
    """Return what each place of all windows gets."""
    places = [
        lax.slice(
            x,
            at,
            [i + (n - 1) * s + 1 for i, n, s in zip(at, g.shape, strides, strict=True)],
            strides,
        )
        for at in np.ndindex(sizes)
    ]
    largest, taken, shares = reduce(jnp.maximum, places), jnp.zeros(g.shape, bool), []
    for place in places:
        shares.append(jnp.where((place == largest) & ~taken, g, 0))
        taken = taken | (place == largest)
    return shares
