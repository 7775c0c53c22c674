"""A convolution with rectifier and 2x2 max-pooling, in a form that is fast on a CPU too.

The gradients of XLA's convolutions are slow on a CPU, its matrix products are not. So there the
layer is one product (``_conv_product``) or, with many channels, six smaller ones
(``_conv_toom_cook``).

Inside, samples are the last axis, the one that lies in memory side by side: then slices of
images are long runs, and no image is transposed between two layers.
"""

import jax
import jax.numpy as jnp

from fedmom.core.types import Params
from fedmom.models import _conv_toom_cook, _dense
from fedmom.models._conv_product import by_product
from fedmom.models._conv_toom_cook import by_toom_cook
from fedmom.models.base import linear

COLOURS = 3  # channels of an image, which are few
FEW = 16  # filters, of which there are few up to here
LARGE = 256  # a batch above this is an evaluation, where patches of many channels only cost


def conv_relu_pool(layer: Params, x: jax.Array, padding: str) -> jax.Array:
    """Convolve (N, H, W, C) with an odd square, rectify, and take the maximum of 2x2 squares."""
    side, _, channels, filters = layer["w"].shape
    if jax.default_backend() != "cpu" or (filters > FEW and len(x) > LARGE):
        return by_convolution(layer, x, padding)
    if side == _conv_toom_cook.SIDE and channels > COLOURS:
        return by_toom_cook(layer, x, padding)
    return by_product(layer, x, padding)


def linear_of_maps(layer: Params, x: jax.Array) -> jax.Array:
    """Apply a ``dense`` layer to flattened images (N, H, W, C)."""
    if jax.default_backend() != "cpu":
        return linear(layer, x.reshape(len(x), -1))
    columns = x.transpose(1, 2, 3, 0).reshape(-1, len(x))  # as ``conv_relu_pool`` leaves them
    return _dense.product(columns, layer["w"]) + layer["b"]


def linear_of_rows(layer: Params, x: jax.Array) -> jax.Array:
    """Apply a ``dense`` layer to (N, K)."""
    if jax.default_backend() != "cpu":
        return linear(layer, x)
    return _dense.product(x.T, layer["w"]) + layer["b"]


def by_convolution(layer: Params, x: jax.Array, padding: str) -> jax.Array:
    """The layer as its definition says it, for accelerators and large batches."""
    x = jax.lax.conv_general_dilated(
        x, layer["w"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = jax.nn.relu(x + layer["b"])
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
