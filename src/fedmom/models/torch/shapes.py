"""Operations on the form of arrays, and those that make new ones."""

import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedmom.models.torch.graph import canonical
from fedmom.models.torch.table import op

# What Python computes of sizes.
_OPERATORS = "add sub mul floordiv truediv mod neg pow eq ne lt le gt ge and_ or_"
_OF_SIZES: dict[str, Callable[..., Any]] = {n: getattr(operator, n) for n in _OPERATORS.split()}
_OF_SIZES |= {"sym_max": max, "sym_min": min, "sym_int": int, "sym_float": float}
_OF_SIZES |= {"sym_not": operator.not_, "ceil": math.ceil, "floor": math.floor, "trunc": math.trunc}
for _name, _function in _OF_SIZES.items():
    op(_name, home="python")(_function)


@op("getitem", home="python")
def getitem(values: Any, place: Any) -> Any:
    """One of several results."""
    return values[place]


@op("sym_size", "size")
def size(x: Any, dim: int) -> int:
    """The size of an axis."""
    return int(x.shape[dim])


@op("sym_numel", "numel")
def numel(x: Any) -> int:
    """How many numbers there are."""
    return int(x.size)


@op("view", "reshape", "_unsafe_view", "_reshape_alias")
def reshape(x: Any, shape: Any, *_: Any) -> Any:
    """Another shape."""
    return jnp.reshape(x, shape)


@op("view_as", "reshape_as")
def view_as(x: Any, other: Any) -> Any:
    """The shape of another array."""
    return jnp.reshape(x, other.shape)


@op("flatten")
def flatten(x: Any, start: int = 0, end: int = -1) -> Any:
    """Several axes as one."""
    if x.ndim == 0:
        return x.reshape(1)
    start, end = start % x.ndim, end % x.ndim
    return x.reshape(*x.shape[:start], -1, *x.shape[end + 1 :])


@op("unflatten")
def unflatten(x: Any, dim: int, sizes: Any) -> Any:
    """One axis as several."""
    dim %= x.ndim
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


@op("permute")
def permute(x: Any, dims: Any) -> Any:
    """The axes in another order."""
    return jnp.transpose(x, dims)


@op("transpose", "swapaxes", "swapdims")
def transpose(x: Any, one: int, other: int) -> Any:
    """Two axes exchanged."""
    return x if x.ndim == 0 else jnp.swapaxes(x, one, other)


@op("t", "numpy_T", "adjoint", "mT", "matrix_H", "mH")
def matrix_transpose(x: Any) -> Any:
    """The last two axes exchanged."""
    return x if x.ndim < 2 else jnp.swapaxes(x, -1, -2)


@op("movedim", "moveaxis")
def movedim(x: Any, source: Any, target: Any) -> Any:
    """Axes at other places."""
    return jnp.moveaxis(x, source, target)


@op("unsqueeze")
def unsqueeze(x: Any, dim: int) -> Any:
    """A new axis of size 1."""
    return jnp.expand_dims(x, dim)


@op("squeeze")
def squeeze(x: Any, dims: Any) -> Any:
    """Without these axes, where their size is 1. The export names them."""
    dims = dims if isinstance(dims, tuple) else (dims,)
    return jnp.squeeze(x, tuple(dim for dim in dims if x.shape[dim] == 1))


@op("expand")
def expand(x: Any, sizes: Any, implicit: bool = False) -> Any:
    """Axes of size 1 repeated, new axes first."""
    del implicit
    new = len(sizes) - x.ndim
    shape = [x.shape[i - new] if i >= new and s == -1 else s for i, s in enumerate(sizes)]
    return jnp.broadcast_to(x, shape)


@op("expand_as")
def expand_as(x: Any, other: Any) -> Any:
    """Repeated to the shape of another array."""
    return jnp.broadcast_to(x, other.shape)


@op("broadcast_to")
def broadcast_to(x: Any, sizes: Any) -> Any:
    """Repeated to a shape."""
    return expand(x, sizes)


@op("broadcast_tensors")
def broadcast_tensors(arrays: Any) -> Any:
    """All in one shape."""
    return tuple(jnp.broadcast_arrays(*arrays))


@op("repeat", "tile")
def repeat(x: Any, times: Any) -> Any:
    """Copies next to each other."""
    return jnp.tile(x, times)


@op("repeat_interleave.self_int")
def repeat_interleave(x: Any, times: int, dim: int | None = None, **_: Any) -> Any:
    """Every entry several times."""
    return jnp.repeat(x, times, axis=dim)


@op("cat", "concat", "concatenate")
def cat(arrays: Any, dim: int = 0) -> Any:
    """Arrays behind each other; empty ones of one axis do not count."""
    arrays = [a for a in arrays if a.shape != (0,)] or arrays
    return jnp.concatenate(arrays, dim)


@op("stack")
def stack(arrays: Any, dim: int = 0) -> Any:
    """Arrays along a new axis."""
    return jnp.stack(arrays, dim)


@op("hstack")
def hstack(arrays: Any) -> Any:
    """Arrays side by side."""
    return jnp.hstack(arrays)


@op("vstack")
def vstack(arrays: Any) -> Any:
    """Arrays below each other."""
    return jnp.vstack(arrays)


@op("split", "split_with_sizes", "split_copy", "unsafe_split")
def split(x: Any, sizes: Any, dim: int = 0) -> tuple[Any, ...]:
    """Parts of one size, or of these sizes."""
    whole = x.shape[dim]
    if isinstance(sizes, int):
        cuts = list(range(sizes, whole, sizes))
    else:
        cuts = [int(cut) for cut in np.cumsum(sizes)[:-1]]
    return tuple(jnp.split(x, cuts, dim))


@op("chunk", "unsafe_chunk")
def chunk(x: Any, parts: int, dim: int = 0) -> tuple[Any, ...]:
    """At most so many equal parts, of which the last may be smaller."""
    return split(x, max(1, -(-x.shape[dim] // parts)), dim)


@op("tensor_split.sections")
def tensor_split(x: Any, parts: int, dim: int = 0) -> tuple[Any, ...]:
    """So many parts, as equal as can be."""
    return tuple(jnp.array_split(x, parts, dim))


@op("unbind")
def unbind(x: Any, dim: int = 0) -> tuple[Any, ...]:
    """The entries along an axis."""
    return tuple(jnp.moveaxis(x, dim, 0))


@op("flip")
def flip(x: Any, dims: Any) -> Any:
    """Axes reversed."""
    return jnp.flip(x, dims)


@op("roll")
def roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    """Entries moved around an axis."""
    return jnp.roll(x, shifts, dims) if dims else jnp.roll(x, shifts)


@op("meshgrid.indexing", "meshgrid")
def meshgrid(arrays: Any, indexing: str = "ij") -> Any:
    """Coordinates of a grid."""
    return tuple(jnp.meshgrid(*arrays, indexing=indexing))


@op("unfold")
def unfold(x: Any, dim: int, length: int, step: int) -> Any:
    """Windows along an axis, as a new last axis."""
    starts = np.arange(0, x.shape[dim] - length + 1, step)
    found = jnp.take(x, starts[:, None] + np.arange(length), axis=dim)
    return jnp.moveaxis(found, dim % x.ndim + 1, -1)


@op("im2col")
def im2col(x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """All patches of images, as columns."""
    found = lax.conv_general_dilated_patches(
        x, kernel, stride, [(p, p) for p in padding], rhs_dilation=dilation
    )
    return found.reshape(*found.shape[:2], -1)


@op("pixel_shuffle")
def pixel_shuffle(x: Any, factor: int) -> Any:
    """Channels as pixels."""
    *lead, channels, height, width = x.shape
    parts = x.reshape(*lead, channels // factor**2, factor, factor, height, width)
    n = len(lead)
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    whole = (*lead, channels // factor**2, height * factor, width * factor)
    return parts.transpose(order).reshape(whole)


@op("channel_shuffle")
def channel_shuffle(x: Any, groups: int) -> Any:
    """The channels of groups mixed."""
    parts = x.reshape(len(x), groups, -1, *x.shape[2:])
    return jnp.swapaxes(parts, 1, 2).reshape(x.shape)


@op("constant_pad_nd")
def constant_pad_nd(x: Any, widths: Any, value: Any = 0) -> Any:
    """More entries at the ends of the last axes; fewer where the width is negative."""
    pairs = _pairs(x, widths)
    cut = [
        slice(max(0, -a), size - max(0, -b)) for size, (a, b) in zip(x.shape, pairs, strict=True)
    ]
    more = [(max(0, a), max(0, b)) for a, b in pairs]
    return jnp.pad(x[tuple(cut)], more, constant_values=value)


@op("pad")
def pad(x: Any, widths: Any, mode: str = "constant", value: Any = None) -> Any:
    """More entries at the ends of the last axes: a constant, or some of those that are there."""
    if mode == "constant":
        return constant_pad_nd(x, widths, 0 if value is None else value)
    modes = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    return jnp.pad(x, _pairs(x, widths), mode=modes[mode])


def _pad_as(mode: str) -> Callable[[Any, Any], Any]:
    return lambda x, widths: pad(x, widths, mode)


for _name, _mode in {"reflection": "reflect", "replication": "replicate"}.items():
    op(*(f"{_name}_pad{dims}d" for dims in (1, 2, 3)))(_pad_as(_mode))


def _pairs(x: Any, widths: Any) -> list[tuple[int, int]]:
    """Return the widths at both ends of every axis; PyTorch begins with the last."""
    last = [(widths[i], widths[i + 1]) for i in range(0, len(widths), 2)]
    return [(0, 0)] * (x.ndim - len(last)) + last[::-1]


def _type(dtype: str | None, default: Any = "float32") -> Any:
    return canonical(default if dtype is None else dtype)


@op("full")
def full(shape: Any, value: Any, dtype: str | None = None, **_: Any) -> Any:
    """One value everywhere."""
    plain = {bool: "bool", int: "int64"}.get(type(value), "float32")
    return jnp.full(shape, value, _type(dtype, plain))


@op("new_full")
def new_full(x: Any, shape: Any, value: Any, dtype: str | None = None, **_: Any) -> Any:
    """One value everywhere, of an array's type."""
    return jnp.full(shape, value, x.dtype if dtype is None else canonical(dtype))


@op("full_like")
def full_like(x: Any, value: Any, dtype: str | None = None, **_: Any) -> Any:
    """One value everywhere, in an array's form."""
    return new_full(x, x.shape, value, dtype)


@op("fill")
def fill(x: Any, value: Any) -> Any:
    """One value everywhere, in an array's form."""
    return jnp.full(x.shape, value, x.dtype)


@op("zeros", "empty")
def zeros(shape: Any, dtype: str | None = None, **_: Any) -> Any:
    """Zeros."""
    return jnp.zeros(shape, _type(dtype))


@op("ones")
def ones(shape: Any, dtype: str | None = None, **_: Any) -> Any:
    """Ones."""
    return jnp.ones(shape, _type(dtype))


@op("new_zeros", "new_empty")
def new_zeros(x: Any, shape: Any, dtype: str | None = None, **_: Any) -> Any:
    """Zeros of an array's type."""
    return new_full(x, shape, 0, dtype)


@op("new_ones")
def new_ones(x: Any, shape: Any, dtype: str | None = None, **_: Any) -> Any:
    """Ones of an array's type."""
    return new_full(x, shape, 1, dtype)


@op("zeros_like", "empty_like", "zero")
def zeros_like(x: Any, dtype: str | None = None, **_: Any) -> Any:
    """Zeros in an array's form."""
    return new_full(x, x.shape, 0, dtype)


@op("ones_like")
def ones_like(x: Any, dtype: str | None = None, **_: Any) -> Any:
    """Ones in an array's form."""
    return new_full(x, x.shape, 1, dtype)


@op("scalar_tensor", "tensor")
def scalar_tensor(value: Any, dtype: str | None = None, **_: Any) -> Any:
    """A number as an array."""
    return jnp.asarray(value, _type(dtype))


@op("arange")
def arange(*ends: Any, dtype: str | None = None) -> Any:
    """Numbers from one to another."""
    start, end, step = (0, *ends, 1) if len(ends) == 1 else (*ends, 1)[:3]
    return jnp.arange(start, end, step, None if dtype is None else canonical(dtype))


@op("linspace")
def linspace(start: Any, end: Any, steps: int, dtype: str | None = None, **_: Any) -> Any:
    """So many numbers from one to another."""
    return jnp.linspace(start, end, steps, dtype=_type(dtype))


@op("eye")
def eye(rows: int, columns: int | None = None, dtype: str | None = None, **_: Any) -> Any:
    """The identity matrix."""
    return jnp.eye(rows, columns, dtype=_type(dtype))


@op("tril")
def tril(x: Any, diagonal: int = 0) -> Any:
    """Zero above a diagonal."""
    return jnp.tril(x, diagonal)


@op("triu")
def triu(x: Any, diagonal: int = 0) -> Any:
    """Zero below a diagonal."""
    return jnp.triu(x, diagonal)


@op("diagonal")
def diagonal(x: Any, offset: int = 0, one: int = 0, other: int = 1) -> Any:
    """The entries on a diagonal."""
    return jnp.diagonal(x, offset, one, other)


@op("rand")
def rand(shape: Any, dtype: str | None = None, key: Any = None, **_: Any) -> Any:
    """Random numbers from 0 to 1."""
    return jax.random.uniform(_key(key), shape, _type(dtype))


@op("randn")
def randn(shape: Any, dtype: str | None = None, key: Any = None, **_: Any) -> Any:
    """Normal random numbers."""
    return jax.random.normal(_key(key), shape, _type(dtype))


@op("rand_like")
def rand_like(x: Any, dtype: str | None = None, key: Any = None, **_: Any) -> Any:
    """Random numbers from 0 to 1, in an array's form."""
    return rand(x.shape, dtype or str(x.dtype), key)


@op("randn_like")
def randn_like(x: Any, dtype: str | None = None, key: Any = None, **_: Any) -> Any:
    """Normal random numbers, in an array's form."""
    return randn(x.shape, dtype or str(x.dtype), key)


@op("bernoulli.p", "bernoulli_.float")
def bernoulli_at(x: Any, p: float = 0.5, key: Any = None, **_: Any) -> Any:
    """Ones with this probability, in an array's form."""
    return jax.random.bernoulli(_key(key), p, x.shape).astype(x.dtype)


@op("bernoulli")
def bernoulli(x: Any, key: Any = None, **_: Any) -> Any:
    """Ones with the probabilities of an array."""
    return jax.random.bernoulli(_key(key), x).astype(x.dtype)


def _key(key: Any) -> Any:
    """Return a key: in evaluation, always the same."""
    return jax.random.key(0) if key is None else key
