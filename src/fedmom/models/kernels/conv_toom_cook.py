"""A 5x5 convolution with 2x2 max-pooling and rectifier by Toom-Cook's products, for many channels.

Two sums of five products that lie side by side take ten multiplications. Toom and Cook see
polynomials in them, which are known from six of their values: evaluate the pixels (``PIXELS``) and
the weights (``WEIGHTS``) at six points, multiply value by value, and read the two sums off the six
products (``SUMS``). Here that is along columns, and each of the six is a matrix product over
channels and the kernel's rows.

Maps have even and odd rows, even and odd columns apart, (C, 2, 2, Y, X N), samples last: what a
kernel reads is then a few long runs.
"""

from collections.abc import Sequence
from functools import partial, reduce
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from fedmom.core.fusion import kernel
from fedmom.core.types import Params
from fedmom.models.kernels import pooling
from fedmom.models.kernels.conv_product import PatchGrid

SIDE = 5
POINTS = np.array([0, 1, -1, 2, -0.5])  # and infinity
VALUES = len(POINTS) + 1
REACH = SIDE // 2  # how many pairs of rows a kernel reaches below its square
SHIFTS = range(REACH + 1)

Residuals = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
Matrix = NDArray[np.float64]


def toom_cook() -> tuple[Matrix, Matrix, Matrix]:
    """Return SUMS (2, 6), WEIGHTS (6, 5), PIXELS (6, 6).

    With o the sums, w the weights and x the pixels,
    o_i = sum_j w_j x_(i+j) = SUMS ((WEIGHTS w) * (PIXELS x)).
    """
    others = [np.delete(POINTS, i) for i in range(len(POINTS))]
    sums = np.array([[*POINTS**0, 0], [*POINTS, 1]])
    scales = np.array([np.prod(p - rest) for p, rest in zip(POINTS, others, strict=True)])
    # Zeros without a sign, as plain sums have them.
    g = np.vstack([POINTS[:, None] ** np.arange(SIDE) / scales[:, None], np.eye(SIDE)[-1]]) + 0.0
    # The coefficients of polynomials with these roots, the constant first.
    found = [np.poly(roots)[::-1] for roots in [*others, POINTS]]
    b = np.array([np.pad(row, (0, VALUES - len(row))) for row in found]) + 0.0
    # Rows of one size round least. By powers of two, which do not round.
    size = 2.0 ** np.round(np.log2(np.abs(g).max(1) / np.abs(b).max(1)) / 2)
    return sums, g / size[:, None], b * size[:, None]


SUMS, WEIGHTS, PIXELS = toom_cook()


def by_toom_cook(layer: Params, x: jax.Array, padding: str) -> jax.Array:
    """Apply the layer to (N, H, W, C)."""
    x = x.astype(jnp.result_type(x, layer["w"]))
    return _apply(layer["w"], layer["b"], x, PatchGrid.of(x, SIDE, padding))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _apply(w: jax.Array, b: jax.Array, x: jax.Array, grid: PatchGrid) -> jax.Array:
    v = _unfolded(_evaluated(_maps(x, grid), grid=grid), grid=grid)
    return _images(pooling.pooled(_places(_weights(w), v), b), grid)


def _forward(
    w: jax.Array, b: jax.Array, x: jax.Array, grid: PatchGrid
) -> tuple[jax.Array, Residuals]:
    maps, u = _maps(x, grid), _weights(w)
    v = _unfolded(_evaluated(maps, grid=grid), grid=grid)
    y = _places(u, v)
    out = pooling.pooled(y, b)
    return _images(out, grid), (x, u, v, pooling.winners(y, out, _alike(maps, grid)))


def _backward(
    grid: PatchGrid, residuals: Residuals, g: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, u, v, code = residuals
    (g,) = jax.linear_transpose(partial(_images, grid=grid), jnp.zeros(code.shape, g.dtype))(g)
    products = _places_back(code, g).reshape(VALUES, len(g), -1)
    dw = _weights_back(jnp.einsum("ikn,imn->ikm", v, products), channels=x.shape[3])
    dv = jnp.einsum("ikm,imn->ikn", u, products)
    maps = _folded_columns(_evaluated_back(_folded_rows(dv, grid=grid)), grid=grid)
    (dx,) = jax.linear_transpose(partial(_maps, grid=grid), x)(maps)
    return dw, pooling.bias_gradient(code, g), dx


_apply.defvjp(_forward, _backward)


def _maps(x: jax.Array, grid: PatchGrid) -> jax.Array:
    """(N, H, W, C) -> (C, 2, 2, Y, X N), with a frame of zeros under "SAME" padding."""
    odd = [(0, 0, 0), (0, grid.height % 2, 0), (0, grid.width % 2, 0), (0, 0, 0)]
    x = lax.pad(x, jnp.zeros((), x.dtype), odd) if any(map(any, odd)) else x
    samples, height, width, channels = x.shape
    x = x.reshape(samples, height // 2, 2, width // 2, 2, channels).transpose(5, 2, 4, 1, 3, 0)
    before = 1 if grid.padding == "SAME" else 0
    frame = [
        (before, squares + REACH - before - size)
        for squares, size in zip(grid.squares, (height // 2, width // 2), strict=True)
    ]
    maps = x.reshape(channels, 2, 2, height // 2, -1)
    return _framed(maps, frame=tuple(frame), samples=samples) if any(map(any, frame)) else maps


def _images(out: jax.Array, grid: PatchGrid) -> jax.Array:
    """Return outputs (filters, n) as (N, rows, columns, filters)."""
    return out.reshape(-1, *grid.squares, grid.samples).transpose(3, 1, 2, 0)


def _run(grid: PatchGrid) -> int:
    """The numbers that lie side by side in a row of squares."""
    return grid.squares[1] * grid.samples


@kernel
def _framed(maps: jax.Array, *, frame: tuple[tuple[int, int], ...], samples: int) -> jax.Array:
    """Put zeros around maps, and cut off what no kernel reaches."""
    rows, (left, right) = frame
    sizes = (rows, (left * samples, right * samples))
    pads = [(0, 0, 0)] * 3 + [(*size, 0) for size in sizes]
    return lax.pad(maps, jnp.zeros((), maps.dtype), pads)


@kernel
def _evaluated(maps: jax.Array, *, grid: PatchGrid) -> jax.Array:
    """Return the six values of the pixels that each two squares' sums read, (6, C, 2, Y R)."""
    run, samples = _run(grid), grid.samples
    x = [maps[:, :, p, :, s * samples : s * samples + run] for s in SHIFTS for p in (0, 1)]
    return jnp.stack([combined(row, x) for row in PIXELS]).reshape(VALUES, len(maps), 2, -1)


@kernel
def _unfolded(v: jax.Array, *, grid: PatchGrid) -> jax.Array:
    """Return the values by the kernel's rows and channels, (6, 5 C, 2 n)."""
    run, length = _run(grid), grid.squares[0] * _run(grid)

    def row(tap: int, place: int) -> jax.Array:
        shift, odd = divmod(tap + place, 2)
        return v[:, :, odd, shift * run : shift * run + length]

    rows = [jnp.stack([row(tap, place) for place in (0, 1)], 2) for tap in range(SIDE)]
    return jnp.stack(rows, 1).reshape(VALUES, SIDE * v.shape[1], -1)


def _weights(w: jax.Array) -> jax.Array:
    """Return the six values of the kernel's rows, (6, 5 C, filters)."""
    *_, channels, filters = w.shape
    u = jnp.einsum("vj,kjm->vkm", jnp.asarray(WEIGHTS, w.dtype), w.reshape(SIDE, SIDE, -1))
    return u.reshape(VALUES, SIDE * channels, filters)


@kernel
def _weights_back(du: jax.Array, *, channels: int) -> jax.Array:
    """Return the gradient of the kernel, given that of its values."""
    values = du.reshape(VALUES, SIDE, -1)
    dw = jnp.stack([combined(column, values) for column in WEIGHTS.T], 1)
    return dw.reshape(SIDE, SIDE, channels, -1)


def _places(u: jax.Array, v: jax.Array) -> jax.Array:
    """Return the sums at the four places of every square, (4, filters, n)."""
    return _read_off(jnp.einsum("ikm,ikn->imn", u, v))


@kernel
def _read_off(products: jax.Array) -> jax.Array:
    """(6, filters, 2 n) -> (4, filters, n)."""
    m = products.reshape(VALUES, products.shape[1], 2, -1)
    left, right = (combined(row, m) for row in SUMS)
    return jnp.stack([left[:, 0], right[:, 0], left[:, 1], right[:, 1]])


@kernel
def _places_back(code: jax.Array, g: jax.Array) -> jax.Array:
    """Return the gradient of the products, given that of the outputs."""
    left, right = jnp.asarray(SUMS, g.dtype)[:, :, None, None, None]
    upper = jnp.arange(0, 4, 2)[:, None]
    code, g = code[:, None], g[:, None]
    return jnp.where(code == upper, left * g, jnp.where(code == upper + 1, right * g, 0))


@kernel
def _folded_rows(dv: jax.Array, *, grid: PatchGrid) -> jax.Array:
    """Add up what comes back to each row, (6, C, 2, Y R)."""
    dv = dv.reshape(VALUES, SIDE, dv.shape[1] // SIDE, 2, grid.squares[0], -1)
    zero = jnp.zeros((), dv.dtype)

    def part(shift: int, odd: int) -> jax.Array:
        """What comes back to a row of the square's six, from the upper and the lower place."""
        row = 2 * shift + odd
        taps = [(row - place, place) for place in (0, 1) if 0 <= row - place < SIDE]
        back = reduce(jnp.add, [dv[:, tap, :, place] for tap, place in taps])
        return lax.pad(back, zero, [(0, 0, 0)] * 2 + [(shift, REACH - shift, 0), (0, 0, 0)])

    rows = [reduce(jnp.add, [part(shift, odd) for shift in SHIFTS]) for odd in (0, 1)]
    return jnp.stack(rows, 2).reshape(VALUES, dv.shape[2], 2, -1)


@kernel
def _evaluated_back(rows: jax.Array) -> jax.Array:
    """Return the gradients of pixels by shift, (3, C, 2, 2, Y R), given those of their values."""
    pixels = [combined(column, rows) for column in PIXELS.T]
    return jnp.stack([jnp.stack(pixels[2 * s : 2 * s + 2], 2) for s in SHIFTS])


@kernel
def _folded_columns(parts: jax.Array, *, grid: PatchGrid) -> jax.Array:
    """Add up what comes back to each column, (C, 2, 2, Y, X N)."""
    channels = parts.shape[1]
    maps = overlapped(list(parts.reshape(len(SHIFTS), -1, _run(grid))), grid.samples)
    return maps.reshape(channels, 2, 2, grid.squares[0] + REACH, -1)


def _alike(maps: jax.Array, grid: PatchGrid) -> jax.Array:
    """Compare the patches of the four places of every square, and return their bits (4, n)."""
    channels, *_, height, width = maps.shape
    pixels = maps.reshape(channels, 2, 2, -1)
    pixels = pooling.widened(pixels, before=grid.samples, after=width + grid.samples)
    bits = _pixels_alike(pixels, width=width, grid=grid).reshape(2, 2, height, width)
    lines = _all_five(bits, shift=grid.samples, length=_run(grid), axis=1).reshape(2, 2, -1)
    squares = grid.squares[0] * _run(grid)
    return _all_five(lines, shift=_run(grid), length=squares, axis=0).reshape(4, -1)


@kernel
def _pixels_alike(pixels: jax.Array, *, width: int, grid: PatchGrid) -> jax.Array:
    """Return bits, (2, 2, Y X N): of columns, then of rows."""
    n = grid.samples
    length = pixels.shape[-1] - width - 2 * n

    def at(row: int, column: int, shift: int) -> jax.Array:
        return pixels[:, row, column, n + shift : n + shift + length]

    def bits(row: int, column: int) -> jax.Array:
        down, beside = row * width, column * n
        others = {
            pooling.BESIDE: at(row, 1 - column, beside),
            pooling.BELOW: at(1 - row, column, down),
            pooling.RIGHT: at(1 - row, 1 - column, down + beside),
            pooling.LEFT: at(1 - row, 1 - column, down + beside - n),
        }
        return pooling.pixels_alike(at(row, column, 0), others)

    found = [[bits(row, column) for row in (0, 1)] for column in (0, 1)]
    return jnp.stack([jnp.stack(rows) for rows in found])


@kernel
def _all_five(bits: jax.Array, *, shift: int, length: int, axis: int) -> jax.Array:
    """Return the bits that five in a row have, from even places on and from odd ones.

    Even and odd ones are the first axis before, and the given one after.
    """

    def five(first: int) -> jax.Array:
        places = [divmod(i, 2) for i in range(first, first + SIDE)]
        runs = [bits[odd][..., i * shift : i * shift + length] for i, odd in places]
        return reduce(jnp.bitwise_and, runs)

    return jnp.stack([five(0), five(1)], axis)


def combined(
    row: Sequence[float] | NDArray[np.float64], arrays: Sequence[jax.Array] | jax.Array
) -> jax.Array:
    """Return the arrays' sum, each times its number; those of zero are left out."""
    terms = [a if c == 1 else float(c) * a for c, a in zip(row, arrays, strict=True) if c]
    return reduce(jnp.add, terms)


def overlapped(parts: Sequence[jax.Array], shift: int) -> jax.Array:
    """Add up arrays, each by ``shift`` further to the right than the one before.

    In pieces between one array's beginning or end and the next: sums of padded arrays take longer.
    """
    length = parts[0].shape[-1]
    starts = [i * shift for i in range(len(parts))]
    ends = sorted({*starts, *(start + length for start in starts)})
    pieces = []
    for low, high in pairwise(ends):
        there = [
            p[..., low - s : high - s]
            for p, s in zip(parts, starts, strict=True)
            if s <= low and high <= s + length
        ]
        pieces.append(reduce(jnp.add, there))
    return jnp.concatenate(pieces, -1)
