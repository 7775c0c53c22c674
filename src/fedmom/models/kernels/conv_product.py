"""A convolution with 2x2 max-pooling and rectifier as one matrix product, for few channels.

A patch spans the four places that are pooled (6x6 values for a 5x5 kernel), and the kernel is
placed at all four: there are four times fewer patches to copy than with a patch for every place,
for some products with zero.

Samples are the last axis, the one that lies in memory side by side. Squares are listed by even and
odd rows, even and odd columns, which is how ``conv_toom_cook`` reads them.
"""

from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedmom.core.fusion import kernel
from fedmom.core.types import Params
from fedmom.models.kernels import pooling

MORE = 2  # rows below all patches, where pixels are compared with those below to the right

Residuals = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


class PatchGrid(NamedTuple):
    """Sizes: of the images, of a square kernel, and what becomes of the edge."""

    samples: int
    height: int
    width: int
    side: int
    padding: str

    @classmethod
    def of(cls, x: jax.Array, side: int, padding: str) -> "PatchGrid":
        """Return that of images (N, H, W, C)."""
        samples, height, width, _ = x.shape
        return cls(samples, height, width, side, padding)

    @property
    def squares(self) -> tuple[int, int]:
        """How many squares lie below each other and side by side."""
        lost = 0 if self.padding == "SAME" else self.side - 1
        return (self.height - lost) // 2, (self.width - lost) // 2

    @property
    def pairs(self) -> tuple[int, int]:
        """How many pairs of squares there are, where half a pair counts."""
        rows, columns = self.squares
        return -(-rows // 2), -(-columns // 2)

    @property
    def run(self) -> int:
        """The numbers that lie side by side in a row of pairs."""
        return self.pairs[1] * self.samples

    @property
    def frame(self) -> list[tuple[int, int]]:
        """What to add to rows and columns, before and after, or to cut off where it is negative."""
        before = self.side // 2 if self.padding == "SAME" else 0
        beyond = (self.side + 2) // 4  # of four rows: how far patches reach below the last pair
        sizes = zip(self.pairs, (self.height, self.width), strict=True)
        return [(before, 4 * (pairs + beyond) - before - size) for pairs, size in sizes]


def by_product(layer: Params, x: jax.Array, padding: str) -> jax.Array:
    """Apply the layer to (N, H, W, C)."""
    x = x.astype(jnp.result_type(x, layer["w"]))
    return _apply(layer["w"], layer["b"], x, PatchGrid.of(x, len(layer["w"]), padding))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _apply(w: jax.Array, b: jax.Array, x: jax.Array, grid: PatchGrid) -> jax.Array:
    return _images(pooling.pooled(_places(w, _patches(x, grid)), b), grid)


def _forward(
    w: jax.Array, b: jax.Array, x: jax.Array, grid: PatchGrid
) -> tuple[jax.Array, Residuals]:
    maps = _maps(x, grid)
    p = _unfolded(maps, grid)
    y = _places(w, p)
    out = pooling.pooled(y, b)
    return _images(out, grid), (w, x, p, pooling.winners(y, out, _alike(maps, grid)))


def _backward(
    grid: PatchGrid, residuals: Residuals, g: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    w, x, p, code = residuals
    (g,) = jax.linear_transpose(partial(_images, grid=grid), jnp.zeros(code.shape, g.dtype))(g)
    dy = pooling.unpooled(code, g).reshape(-1, g.shape[1])
    dw = _unplaced(jnp.einsum("kn,mn->km", p, dy), side=grid.side)
    # Nobody asks for the gradient of images that are data, and then it is not computed.
    dp = jnp.einsum("km,mn->kn", _placed(w), dy)
    (dx,) = jax.linear_transpose(partial(_patches, grid=grid), x)(dp)
    return dw, pooling.bias_gradient(code, g), dx


_apply.defvjp(_forward, _backward)


def _places(w: jax.Array, p: jax.Array) -> jax.Array:
    """Return the sums at the four places of every square, (4, filters, n)."""
    return jnp.einsum("km,kn->mn", _placed(w), p).reshape(4, w.shape[-1], -1)


@kernel
def _placed(w: jax.Array) -> jax.Array:
    """Return the kernel at each of the four places in a patch, side by side."""
    zero = jnp.zeros((), w.dtype)
    placed = [
        lax.pad(w, zero, [(i, 1 - i, 0), (j, 1 - j, 0), (0, 0, 0), (0, 0, 0)])
        for i in (0, 1)
        for j in (0, 1)
    ]
    return jnp.concatenate([p.reshape(-1, w.shape[-1]) for p in placed], 1)


@kernel
def _unplaced(d: jax.Array, *, side: int) -> jax.Array:
    """Add up the gradients of the kernel at its four places."""
    d = d.reshape(side + 1, side + 1, -1, 4, d.shape[1] // 4)
    top = d[:side, :side, :, 0] + d[:side, 1:, :, 1]
    return top + d[1:, :side, :, 2] + d[1:, 1:, :, 3]


def _images(out: jax.Array, grid: PatchGrid) -> jax.Array:
    """Return outputs (filters, n) as (N, rows, columns, filters)."""
    (rows, columns), (high, wide) = grid.squares, grid.pairs
    out = out.reshape(-1, 2, 2, high, wide, grid.samples).transpose(5, 3, 1, 4, 2, 0)
    return out.reshape(grid.samples, 2 * high, 2 * wide, -1)[:, :rows, :columns]


def _patches(x: jax.Array, grid: PatchGrid) -> jax.Array:
    """Return a column for every square: its patch, by rows, columns, channels."""
    return _unfolded(_maps(x, grid), grid)


def _maps(x: jax.Array, grid: PatchGrid) -> jax.Array:
    """(N, H, W, C) -> (C, 4Y + 2, 4X N), framed: with two rows more than patches reach."""
    return _framed(_turned(x.reshape(grid.samples, -1)), grid=grid)


def _unfolded(maps: jax.Array, grid: PatchGrid) -> jax.Array:
    p = _unfolded_rows(_unfolded_columns(_quartered(maps, grid=grid), grid=grid), grid=grid)
    return p.reshape((grid.side + 1) ** 2 * len(maps), -1)


@kernel
def _turned(x: jax.Array) -> jax.Array:
    return x.T


@kernel
def _framed(pixels: jax.Array, *, grid: PatchGrid) -> jax.Array:
    """Put zeros around images (H W C, N), and cut off what no patch reaches."""
    maps = pixels.reshape(grid.height, grid.width, -1, grid.samples).transpose(2, 0, 1, 3)
    maps = maps.reshape(len(maps), grid.height, -1)
    (top, bottom), (left, right) = grid.frame
    columns = left * grid.samples, right * grid.samples
    sizes = ((0, 0, 0), (top, bottom + MORE, 0), (*columns, 0))
    return lax.pad(maps, jnp.zeros((), maps.dtype), sizes)


@kernel
def _quartered(maps: jax.Array, *, grid: PatchGrid) -> jax.Array:
    """(C, 4Y, 4X N) -> (2, 2, C, 2, 2, Y, X N): each of a square's two in each of a pair's two.

    First those of columns, then those of rows.
    """
    maps = maps[:, :-MORE]
    channels, height, _ = maps.shape
    maps = maps.reshape(channels, height // 4, 4, -1, 4, grid.samples).transpose(4, 0, 2, 1, 3, 5)
    return maps.reshape(2, 2, channels, 2, 2, height // 4, -1)


@kernel
def _unfolded_columns(q: jax.Array, *, grid: PatchGrid) -> jax.Array:
    """Return the columns of the patches, (side + 1, C, 2, 4 Y, run)."""
    q = q.reshape(2, 2, q.shape[2], -1, q.shape[-1])
    sizes, zero = (1, 1, *q.shape[2:-1], grid.run), np.int32(0)  # Python's may have 64 bits

    def column(square: Any, odd: Any, start: Any) -> jax.Array:
        return lax.dynamic_slice(q, (square, odd, zero, zero, start), sizes)[0, 0]

    # Slices at places from a table: one by one, they take XLA three times as long to compile.
    # (Rows are sliced one by one: from a table, a step would take a sixth longer.)
    j, square = np.indices((grid.side + 1, 2), np.int32)
    pair, square = np.divmod(square + j // 2, 2)
    return jax.vmap(jax.vmap(column, out_axes=1))(square, j % 2, pair * grid.samples)


@kernel
def _unfolded_rows(p: jax.Array, *, grid: PatchGrid) -> jax.Array:
    """Return the rows of the patches, (side + 1, side + 1, C, 2, 2, n)."""
    p = p.reshape(*p.shape[:3], 2, 2, -1)
    length = grid.pairs[0] * grid.run

    def row(i: int, square: int) -> jax.Array:
        pair, square = divmod(square + i // 2, 2)
        start = pair * grid.run
        return p[:, :, :, square, i % 2, start : start + length]

    rows = [jnp.stack([row(i, square) for square in (0, 1)], 2) for i in range(grid.side + 1)]
    return jnp.stack(rows)


def _alike(maps: jax.Array, grid: PatchGrid) -> jax.Array:
    """Compare the patches of the four places of every square, and return their bits (4, n)."""
    bits = _pixels_alike(maps, grid=grid).reshape(maps.shape[1] - MORE, -1)
    lines = _all_of(bits, count=grid.side, shift=grid.samples, axis=1)
    return _squared(_all_of(lines, count=grid.side, shift=1, axis=0), grid=grid).reshape(4, -1)


@kernel
def _pixels_alike(maps: jax.Array, *, grid: PatchGrid) -> jax.Array:
    channels, height, width = maps.shape
    flat, length, n = maps.reshape(channels, -1), (height - MORE) * width, grid.samples
    shifts = {
        pooling.BESIDE: n,
        pooling.BELOW: width,
        pooling.RIGHT: width + n,
        pooling.LEFT: width - n,
    }
    others = {bit: flat[:, shift : shift + length] for bit, shift in shifts.items()}
    return pooling.pixels_alike(flat[:, :length], others)


@kernel
def _all_of(bits: jax.Array, *, count: int, shift: int, axis: int) -> jax.Array:
    """Return the bits that ``count`` have, each ``shift`` further on than the one before."""
    length = bits.shape[axis] - (count - 1) * shift
    runs = [lax.slice_in_dim(bits, i * shift, i * shift + length, axis=axis) for i in range(count)]
    return reduce(jnp.bitwise_and, runs)


@kernel
def _squared(bits: jax.Array, *, grid: PatchGrid) -> jax.Array:
    """Return the bits by the four places of a square, squares in the order of the outputs."""
    high, wide = grid.pairs
    bits = bits[: 4 * high, : 4 * grid.run].reshape(high, 2, 2, wide, 2, 2, -1)
    return bits.transpose(2, 5, 1, 4, 0, 3, 6).reshape(2, 2, 2, 2, high, -1)
