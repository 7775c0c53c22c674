"""Convolutions in the form that XLA's CPU backend runs fast inside loops.

XLA has a fast kernel for convolutions of images with channels last. In the entry of a program it
brings others into this form; inside loops, where local steps are, it leaves them to code that is
ten to fifty times as slow. Both gradients of a convolution are convolutions of other forms.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

DTYPES = (jnp.float32, jnp.float64)


def convolution(x: jax.Array, w: jax.Array, **params: Any) -> jax.Array | None:
    """Return ``lax.conv_general_dilated``, computed with channels last."""
    if x.dtype not in DTYPES:
        return None
    sample, channel, *places = params["dimension_numbers"].lhs_spec
    filter_, taken, *taps = params["dimension_numbers"].rhs_spec
    y = _channels_last(
        x.transpose(sample, *places, channel), w.transpose(*taps, taken, filter_), params
    )
    sample, channel, *places = params["dimension_numbers"].out_spec
    return y.transpose(np.argsort((sample, *places, channel)))


def _channels_last(x: jax.Array, w: jax.Array, params: dict[str, Any]) -> jax.Array:
    """Convolve samples (N, ..., C) with filters (..., C, F)."""
    places = tuple(range(1, x.ndim - 1))
    first, last = (0, x.ndim - 1, *places), (x.ndim - 1, x.ndim - 2, *(p - 1 for p in places))
    numbers = lax.ConvDimensionNumbers(first, last, first)
    return lax.conv_general_dilated_p.bind(x, w, **{**params, "dimension_numbers": numbers})
