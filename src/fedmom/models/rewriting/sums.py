"""Sums over outer and inner axes, as group norm has them, in two steps.

XLA's CPU backend does not vectorize a sum over the last axis and axes before one that stays. Summed
over the outer axes first, all numbers of a run of memory are added at once.
"""

import math
from typing import Any

import jax

from fedmom.core.fusion import kernel

FEW = 64  # numbers in the inner axes, above which the sum over them is fast as it stands


def total(x: jax.Array, *, axes: tuple[int, ...], **_: Any) -> jax.Array | None:
    """Return ``x.sum(axes)``."""
    inner = 0
    while x.ndim - 1 - inner in axes:
        inner += 1
    outer = tuple(axis for axis in axes if axis < x.ndim - inner)
    if not (outer and inner) or math.prod(x.shape[-inner:]) > FEW:
        return None
    return over_last(x.sum(outer), axes=inner)


@kernel
def over_last(x: jax.Array, *, axes: int) -> jax.Array:
    """Sum over the last axes; a kernel, or XLA would join it with the sum before it."""
    return x.sum(tuple(range(x.ndim - axes, x.ndim)))
