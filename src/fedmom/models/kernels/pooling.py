"""The largest of four, bias and rectifier: ``relu(max(y) + b)``, and the way back.

The four places of a 2x2 square come as the first axis of ``y`` (4, filters, n), in the order of
reading. The derivative is that of the first place where several are the largest, as it is in
XLA's own pooling. White paper makes whole squares equal. Then their sums are equal in theory only,
where roundings differ, and so it is the patches that are compared (``alike``).
"""

from collections.abc import Mapping
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedmom.core.fusion import kernel

SHUT = 4  # instead of a winner: the rectifier lets nothing through
# Bits of a patch that is the same as the one beside it, below it, below to the right, to the left.
BESIDE, BELOW, RIGHT, LEFT = 1, 2, 4, 8


@kernel
def pooled(y: jax.Array, bias: jax.Array) -> jax.Array:
    """Return the outputs (filters, n)."""
    # The rectifier and the bias keep the order of values, so they follow on a quarter of them.
    largest = jnp.maximum(jnp.maximum(y[0], y[1]), jnp.maximum(y[2], y[3]))
    return jax.nn.relu(largest + bias[:, None])


@kernel
def winners(y: jax.Array, out: jax.Array, alike: jax.Array) -> jax.Array:
    """Return the number of the place that each output is from, or SHUT.

    ``alike`` (4, n) are the bits of the patches.
    """

    def same(place: int, bit: int) -> jax.Array:
        return alike[place] & bit != 0

    first, second, third, fourth = y
    second = jnp.where(same(0, BESIDE), first, second)
    third = jnp.where(same(0, BELOW), first, jnp.where(same(1, LEFT), second, third))
    fourth = jnp.where(same(1, BELOW), second, jnp.where(same(2, BESIDE), third, fourth))
    fourth = jnp.where(same(0, RIGHT), first, fourth)
    top = jnp.maximum(jnp.maximum(first, second), jnp.maximum(third, fourth))
    code = jnp.where(second == top, 1, jnp.where(third == top, 2, 3))
    return jnp.where(out > 0, jnp.where(first == top, 0, code), SHUT)


@kernel
def unpooled(code: jax.Array, g: jax.Array) -> jax.Array:
    """Return the gradient of ``y``, given that of the outputs."""
    return jnp.where(code == jnp.arange(4)[:, None, None], g, 0)


@kernel
def bias_gradient(code: jax.Array, g: jax.Array) -> jax.Array:
    """Return the gradient of the bias."""
    return jnp.where(code < SHUT, g, 0).sum(1)


@kernel
def widened(pixels: jax.Array, *, before: int, after: int) -> jax.Array:
    """Put zeros before and after every run, so that it can be compared with itself, moved."""
    sizes = [(0, 0, 0)] * (pixels.ndim - 1) + [(before, after, 0)]
    return lax.pad(pixels, jnp.zeros((), pixels.dtype), sizes)


def pixels_alike(pixels: jax.Array, others: Mapping[int, jax.Array]) -> jax.Array:
    """Compare pixels (C, n) with those that a bit stands for, and return bits (n,)."""
    none, all_ = np.int32(0), np.int32(-1)
    bits = [jnp.where(pixels == other, np.int32(bit), none) for bit, other in others.items()]
    return lax.reduce(reduce(jnp.bitwise_or, bits), all_, lax.bitwise_and, (0,))
