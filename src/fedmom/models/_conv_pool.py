"""A convolution with rectifier and 2x2 max-pooling, in a form that is fast on a CPU too.

The gradients of XLA's convolutions are slow on a CPU, its matrix products are not. So there
the layer is one product of the kernel with the patches of the images. Under few channels
a patch spans the four places that are pooled (6x6 values for a 5x5 kernel), and the kernel is
placed at all four: there are four times fewer patches to copy, for some products with zero.
With many channels the product is what costs, and every place has its own patch.

Inside, samples are the last axis, the one that lies in memory side by side: then slices of
images are long runs, and no image is transposed between two layers.
"""

import jax
import jax.numpy as jnp

from fedmom.core.types import Params
from fedmom.models.base import linear

FEW = 16  # channels, of which there are few up to here
LARGE = 256  # a batch above this is an evaluation, where patches of many channels only cost


def conv_relu_pool(layer: Params, x: jax.Array, padding: str) -> jax.Array:
    """Convolve (N, H, W, C) with an odd square, rectify, and take the maximum of 2x2 squares."""
    few = layer["w"].shape[-1] <= FEW
    if jax.default_backend() == "cpu" and (few or len(x) <= LARGE):
        return by_product(layer, x, padding)
    return by_convolution(layer, x, padding)


def linear_of_maps(layer: Params, x: jax.Array) -> jax.Array:
    """Apply a ``dense`` layer to flattened images (N, H, W, C).

    With the samples last, as ``conv_relu_pool`` leaves them: on a CPU the product of a small
    batch with a large layer is then two to three times faster than that of rows.
    """
    if len(x) > LARGE:
        return linear(layer, x.reshape(len(x), -1))
    columns = x.transpose(1, 2, 3, 0).reshape(-1, len(x))
    return jnp.einsum("kn,ko->no", columns, layer["w"]) + layer["b"]


def by_convolution(layer: Params, x: jax.Array, padding: str) -> jax.Array:
    """The layer as its definition says it, for accelerators and large batches."""
    x = jax.lax.conv_general_dilated(
        x, layer["w"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = jax.nn.relu(x + layer["b"])
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def by_product(layer: Params, x: jax.Array, padding: str) -> jax.Array:
    """The layer as one matrix product."""
    side, _, channels, filters = layer["w"].shape
    maps = x.transpose(3, 1, 2, 0)
    if padding == "SAME":
        edge = (side // 2, side // 2)
        maps = jnp.pad(maps, ((0, 0), edge, edge, (0, 0)))
    rows, columns = ((size - side + 1) // 2 for size in maps.shape[1:3])
    step = 2 if channels <= FEW else 1
    apart = 2 // step  # patches per pooled square, along one axis
    patches = _patches(maps, side, step, (apart * rows, apart * columns))
    y = jnp.einsum("km,kn->mn", _kernels(layer["w"], step), patches)
    y = y.reshape(step, step, filters, rows, apart, columns, apart, len(x))
    y = y.transpose(0, 4, 1, 6, 2, 3, 5, 7).reshape(4, filters, -1)
    # The rectifier and the bias keep the order of values, so they follow on a quarter of them.
    y = _largest(y).reshape(filters, rows, columns, len(x))
    return jax.nn.relu(y + layer["b"][:, None, None, None]).transpose(3, 1, 2, 0)


def _patches(maps: jax.Array, side: int, step: int, grid: tuple[int, int]) -> jax.Array:
    """Return a column for every patch, patches being ``step`` apart."""
    channels, _, _, samples = maps.shape
    rows, columns = grid
    shifts = range((side - 1) // step + 1)
    high, wide = rows + len(shifts) - 1, columns + len(shifts) - 1
    p = maps[:, : high * step, : wide * step].reshape(channels, high, step, wide, step, samples)
    # Even and odd columns, even and odd rows; then what lies further to the right and below.
    p = p.transpose(2, 4, 0, 1, 3, 5)
    p = jnp.stack([p[..., s : s + columns, :] for s in shifts], 1)
    p = jnp.stack([p[..., s : s + rows, :, :] for s in shifts])
    return p.reshape(-1, rows * columns * samples)


def _kernels(weights: jax.Array, step: int) -> jax.Array:
    """Return the kernel at each of the ``step`` x ``step`` places in a patch, side by side."""
    places = [(i, j) for i in range(step) for j in range(step)]
    last = step - 1
    placed = [jnp.pad(weights, ((i, last - i), (j, last - j), (0, 0), (0, 0))) for i, j in places]
    return jnp.stack(placed, 3).reshape(-1, len(places) * weights.shape[-1])


@jax.custom_jvp
def _largest(y: jax.Array) -> jax.Array:
    """The largest of four; its derivative is that of the first where several are the largest."""
    return y.max(0)


@_largest.defjvp
def _largest_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # White paper makes whole squares equal, and the maximum of XLA's pooling is the first.
    (y,), (tangent,) = primals, tangents
    top = _largest(y)
    first = jnp.where(y[2] == top, 2, 3)
    first = jnp.where(y[0] == top, 0, jnp.where(y[1] == top, 1, first))
    chosen = first == jnp.arange(4)[:, None, None]
    return top, jnp.where(chosen, tangent, 0).sum(0)
