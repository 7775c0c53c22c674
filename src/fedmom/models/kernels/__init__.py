"""Layers in forms that are fast on a CPU too, each next to its plain form for accelerators.

**Convolution with rectifier and 2x2 max-pooling.** The gradients of XLA's convolutions are slow
on a CPU, its matrix products are not. So there the layer is one product (``conv_product``) or,
with many channels, six smaller ones (``conv_toom_cook``). Inside, samples are the last axis, the
one that lies in memory side by side: slices of images are then long runs, and no image is
transposed between two layers.

**Dense layers of small batches.** On a CPU, a step of SGD on a layer of millions of weights takes
as long as going through them. As JAX differentiates ``x @ w``, XLA copies the weights, since it
does not see that their update may follow their last use, and the gradient is written and read
again. Here that order is given, so weights are overwritten where they lie, and the gradient of a
small batch is a sum of outer products, which XLA computes inside the update. That reads the
outputs' gradient once for every row of the weights, so it must be small.
"""

from functools import reduce

import jax
import jax.numpy as jnp

from fedmom.core.fusion import after, kernel
from fedmom.core.types import Params
from fedmom.models.base import linear
from fedmom.models.kernels.conv_product import by_product
from fedmom.models.kernels.conv_toom_cook import SIDE, by_toom_cook

COLOURS = 3  # channels of an image, which are few
FEW_FILTERS = 16
LARGE = 256  # a batch above this is an evaluation, where patches of many channels only cost
FEW_SAMPLES = 16  # samples of a batch, up to which outer products cost less than their product
NEAR = 4096  # numbers that stay in a core's first cache, however often they are read


def conv_relu_pool(layer: Params, x: jax.Array, padding: str) -> jax.Array:
    """Convolve (N, H, W, C) with an odd square, rectify, and take the maximum of 2x2 squares."""
    side, _, channels, filters = layer["w"].shape
    if jax.default_backend() != "cpu" or (filters > FEW_FILTERS and len(x) > LARGE):
        return by_convolution(layer, x, padding)
    if side == SIDE and channels > COLOURS:
        return by_toom_cook(layer, x, padding)
    return by_product(layer, x, padding)


def linear_of_maps(layer: Params, x: jax.Array) -> jax.Array:
    """Apply a ``dense`` layer to flattened images (N, H, W, C)."""
    if jax.default_backend() != "cpu":
        return linear(layer, x.reshape(len(x), -1))
    columns = x.transpose(1, 2, 3, 0).reshape(-1, len(x))  # as ``conv_relu_pool`` leaves them
    return product(columns, layer["w"]) + layer["b"]


def linear_of_rows(layer: Params, x: jax.Array) -> jax.Array:
    """Apply a ``dense`` layer to (N, K)."""
    if jax.default_backend() != "cpu":
        return linear(layer, x)
    return product(x.T, layer["w"]) + layer["b"]


def by_convolution(layer: Params, x: jax.Array, padding: str) -> jax.Array:
    """The layer as its definition says it, for accelerators and large batches."""
    x = jax.lax.conv_general_dilated(
        x, layer["w"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = jax.nn.relu(x + layer["b"])
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@jax.custom_vjp
def product(columns: jax.Array, w: jax.Array) -> jax.Array:
    """Return outputs (N, O) of inputs as columns (K, N) and weights (K, O)."""
    return jnp.einsum("kn,ko->no", columns, w)


def _forward(columns: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return jnp.einsum("kn,ko->no", columns, w), (columns, w)


def _backward(residuals: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    columns, w = residuals
    # To columns: to rows, the product with a large layer takes twice as long.
    back = jnp.einsum("ko,no->kn", w, g)
    g = after(g, back)
    if len(g) > FEW_SAMPLES or g.size > NEAR:
        return back, jnp.einsum("kn,no->ko", columns, g)
    g = _held(g)
    return back, reduce(jnp.add, [columns[:, i, None] * g[i] for i in range(len(g))])


product.defvjp(_forward, _backward)


@kernel
def _held(g: jax.Array) -> jax.Array:
    """Return the same, computed once rather than for every weight."""
    return g
