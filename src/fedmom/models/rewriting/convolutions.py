"""Convolutions in forms that XLA's CPU backend runs fast inside loops.

XLA has fast code for convolutions with channels last. In the entry of a program it brings others
into this form; inside loops, where local steps are, it leaves them to code that is ten to fifty
times as slow. Both gradients of a convolution are convolutions of other forms: in that to the
filters, the gradient of the outputs is the filter, with a tap for every place.
"""

import math
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedmom.core.fusion import kernel

DTYPES = (jnp.float32, jnp.float64)
HALF = (jnp.bfloat16, jnp.float16)  # XLA computes with float32 all the same
NARROW = 16  # channels and filters, up to which XLA does not use its fast code
WIDE = 32  # filters that a narrow convolution is given instead
MOST_PATCHES = 2**18  # numbers: 1 MB, which stay in a core's cache
MOST_TERMS = 64  # of a sum that is written out
MOST_GROUPS = 32  # that are computed one by one
MOST_SAMPLES = 8  # that are added up in one pass
Axes = tuple[int, ...]


class Windows(NamedTuple):
    """What an output sees of an image, by axis, in the terms of ``lax.conv_general_dilated``."""

    strides: Axes
    padding: tuple[tuple[int, int], ...]
    x_dilation: Axes
    w_dilation: Axes

    def outputs(self, places: Axes, taps: Axes) -> Axes:
        """Return how many outputs there are, given the sizes of images and filters."""
        return tuple(
            max(0, ((n - 1) * dx + sum(pads) - (k - 1) * dw) // stride + 1)
            for n, k, stride, pads, dx, dw in zip(places, taps, *self, strict=True)
        )

    def padded(self, x: jax.Array, first: int) -> jax.Array:
        """Return images as wide as windows reach; ``first`` is the first axis of places."""
        margins = [(0, 0, 0)] * x.ndim
        for axis, (pads, dilation) in enumerate(zip(self.padding, self.x_dilation, strict=True)):
            margins[first + axis] = (*pads, dilation - 1)
        return _padded(x, margins=tuple(margins))

    def seen(self, padded: jax.Array, tap: Axes, outputs: Axes, first: int) -> jax.Array:
        """Return what all outputs see under one tap."""
        begin, end, step = [0] * padded.ndim, list(padded.shape), [1] * padded.ndim
        rows = zip(tap, outputs, self.strides, self.w_dilation, strict=True)
        for axis, (at, count, stride, dilation) in enumerate(rows, first):
            begin[axis], step[axis] = at * dilation, stride
            end[axis] = at * dilation + (count - 1) * stride + 1
        return lax.slice(padded, begin, end, step)

    def turned(self) -> "Windows":
        """Return the windows in which taps and outputs have changed places."""
        return self._replace(strides=self.w_dilation, w_dilation=self.strides)

    def of_axes(self, which: slice) -> "Windows":
        """Return the windows of some axes."""
        parts: Any = (part[which] for part in self)
        return Windows(*parts)


def convolution(x: jax.Array, w: jax.Array, **params: Any) -> jax.Array | None:
    """Return ``lax.conv_general_dilated``, or None where there is no better form."""
    kind = params.get("preferred_element_type") or x.dtype
    if x.dtype == w.dtype and x.dtype in HALF:
        y = _computed(x.astype(jnp.float32), w.astype(jnp.float32), **params)
        return y if y is None else y.astype(kind)
    if x.dtype not in DTYPES or x.dtype != w.dtype or x.dtype != kind:
        return None
    return _computed(x, w, **params)


def _computed(
    x: jax.Array,
    w: jax.Array,
    *,
    window_strides: Any,
    padding: Any,
    lhs_dilation: Any,
    rhs_dilation: Any,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    **_: Any,
) -> jax.Array | None:
    (sample, channel, *places), (filter_, taken, *taps), shown = dimension_numbers
    pads = tuple(map(tuple, padding))
    windows = Windows(tuple(window_strides), pads, tuple(lhs_dilation), tuple(rhs_dilation))
    sizes = tuple(x.shape[a] for a in places), tuple(w.shape[a] for a in taps)
    outputs = windows.outputs(*sizes)
    if not 1 <= len(places) <= 3 or 0 in (*x.shape, *w.shape, *outputs):
        return None
    result, count = (shown[0], *shown[2:], shown[1]), math.prod(outputs)
    if feature_group_count == 1 and 2 * count <= math.prod(sizes[1]):
        w_first = taken, *taps, filter_
        if batch_group_count == x.shape[sample] == w.shape[filter_] > 1 and count <= MOST_TERMS:
            x, w = _moved(x, (channel, *places, sample)), _moved(w, w_first)
            return _back(_few_by_channel(x, w, windows, outputs), result)
        if count == 1 or count * x.size <= MOST_PATCHES:
            x, w = _moved(x, (sample, channel, *places)), _moved(w, w_first)
            y = _few(x, w, windows, outputs, batch_group_count)
            return _back(y, (*shown[2:], shown[0], shown[1]))
    x, w = _moved(x, (sample, *places, channel)), _moved(w, (*taps, taken, filter_))
    return _back(_many(x, w, windows, outputs, feature_group_count, batch_group_count), result)


def _many(
    x: jax.Array, w: jax.Array, windows: Windows, outputs: Axes, groups: int, batch_groups: int
) -> jax.Array:
    """Equals ``_plain``: images (N, places, C) with filters (taps, C, F)."""
    if groups == x.shape[-1] > 1 == w.shape[-2] and math.prod(w.shape[:-2]) <= MOST_TERMS:
        return _by_channel(x, w, windows, outputs)
    if batch_groups > 1 or groups > MOST_GROUPS or set(windows.x_dilation) != {1}:
        return _plain(x, w, windows, groups, batch_groups)
    pairs = zip(jnp.split(x, groups, -1), jnp.split(w, groups, -1), strict=True)
    return jnp.concatenate([_wide(*pair, windows, outputs) for pair in pairs], -1)


def _plain(
    x: jax.Array, w: jax.Array, windows: Windows, groups: int = 1, batch_groups: int = 1
) -> jax.Array:
    last, places = x.ndim - 1, range(1, x.ndim - 1)
    images, filters = (0, last, *places), (last, last - 1, *range(last - 1))
    return lax.conv_general_dilated(
        x,
        w,
        *windows,
        dimension_numbers=lax.ConvDimensionNumbers(images, filters, images),
        feature_group_count=groups,
        batch_group_count=batch_groups,
    )


def _wide(x: jax.Array, w: jax.Array, windows: Windows, outputs: Axes) -> jax.Array:
    """Equals ``_plain``, with channels and filters for which XLA has fast code."""
    if len(outputs) == 3:
        return _by_slices(x, w, windows, outputs)
    channels, filters = w.shape[-2:]
    if channels % 2 and channels > 1:  # a convolution of 3 channels takes four times one of 4
        x, w = (_padded(a, margins=_one_more(a.ndim, axis)) for a, axis in ((x, -1), (w, -2)))
    *_, taps = w.shape[:-2]
    together = [
        count
        for count in range(2, WIDE // filters + 1)
        if outputs[-1] % count == 0 and count * filters > NARROW
    ]
    last_is_plain = windows.strides[-1] == windows.w_dilation[-1] == 1 < taps
    if max(channels, filters) > NARROW or not together or not last_is_plain:
        return _plain(x, w, windows)
    # As many neighbours as outputs of one place, each with the filters moved.
    count = max(together)
    before = [(0, 0, 0)] * (w.ndim - 3)
    moved = [
        lax.pad(w, jnp.zeros((), w.dtype), [*before, (i, count - 1 - i, 0), *[(0, 0, 0)] * 2])
        for i in range(count)
    ]
    wider = windows._replace(strides=(*windows.strides[:-1], count))
    y = _plain(x, jnp.concatenate(moved, -1), wider)
    return y.reshape(len(x), *outputs, filters)


def _by_slices(x: jax.Array, w: jax.Array, windows: Windows, outputs: Axes) -> jax.Array:
    """Equals ``_plain``, in two dimensions: the slices that a filter sees become channels."""
    depth, rest = windows.of_axes(slice(1)), windows.of_axes(slice(1, None))
    padded, deep = depth.padded(x, 1), outputs[:1]
    seen = [depth.seen(padded, (i,), deep, 1) for i in range(len(w))]
    images = jnp.concatenate(seen, -1)
    images = images.reshape(-1, *images.shape[2:])
    filters = jnp.concatenate(list(w), -2)
    return _wide(images, filters, rest, outputs[1:]).reshape(len(x), *outputs, -1)


def _few(x: jax.Array, w: jax.Array, windows: Windows, outputs: Axes, groups: int) -> jax.Array:
    """Equals ``_plain`` where filters have more taps than outputs: one product.

    Args:
        x: Images (N, C, places).
        w: Filters (C, taps, F).
        windows: What outputs see.
        outputs: How many there are.
        groups: Of images and filters.

    Returns:
        The outputs (places, N, F).
    """
    taps, filters = w.shape[1:-1], w.shape[-1]
    patches = _patches(windows.padded(x, 2), windows=windows, outputs=outputs, taps=taps)
    patches = patches.reshape(-1, groups, len(x) // groups, math.prod(w.shape[:-1]))
    if groups == 1:
        y = patches.reshape(-1, patches.shape[-1]) @ w.reshape(-1, filters)
    else:
        grouped = w.reshape(-1, groups, filters // groups)
        y = jnp.einsum("ogsk,kgf->osgf", patches, grouped)
    return y.reshape(*outputs, len(x) // groups, filters)


@kernel
def _patches(x: jax.Array, *, windows: Windows, outputs: Axes, taps: Axes) -> jax.Array:
    return jnp.stack([windows.turned().seen(x, at, taps, 2) for at in np.ndindex(outputs)])


def _by_channel(x: jax.Array, w: jax.Array, windows: Windows, outputs: Axes) -> jax.Array:
    """Equals ``_plain`` with a group for every channel: a sum over taps."""
    x = jnp.repeat(x, w.shape[-1] // x.shape[-1], axis=-1)
    return _tap_sum(windows.padded(x, 1), w, windows=windows, outputs=outputs)


@kernel
def _tap_sum(x: jax.Array, w: jax.Array, *, windows: Windows, outputs: Axes) -> jax.Array:
    taps = np.ndindex(w.shape[:-2])
    return reduce(jnp.add, [windows.seen(x, tap, outputs, 1) * w[tap][0] for tap in taps])


def _few_by_channel(x: jax.Array, w: jax.Array, windows: Windows, outputs: Axes) -> jax.Array:
    """Equals ``_plain`` of one filter per image, where they have more taps than outputs.

    Args:
        x: Images with samples last (C, places, N).
        w: Filters (C, taps, N).
        windows: What outputs see.
        outputs: How many there are.

    Returns:
        The outputs (1, places, N).
    """
    sums = _sample_sums(windows.padded(x, 1), w, windows=windows, outputs=outputs)
    return _sum(sums).reshape(1, *outputs, -1)


@kernel
def _sample_sums(x: jax.Array, w: jax.Array, *, windows: Windows, outputs: Axes) -> jax.Array:
    """Return sums over some samples, as a sum that XLA computes on many numbers at once."""
    count = max(n for n in range(1, MOST_SAMPLES + 1) if len(w) % n == 0)
    sums = []
    for at in np.ndindex(outputs):
        product = windows.turned().seen(x, at, w.shape[1:-1], 1) * w
        parts = product.reshape(-1, count, *w.shape[1:])
        sums.append(reduce(jnp.add, [parts[:, i] for i in range(count)]))
    return jnp.stack(sums)


@kernel
def _sum(sums: jax.Array) -> jax.Array:
    return sums.sum(range(1, sums.ndim - 1))


def _moved(x: jax.Array, axes: Axes) -> jax.Array:
    """Return an array laid out with its axes in another order."""
    return x if axes == tuple(range(x.ndim)) else _laid_out(x, axes=axes)


@kernel
def _laid_out(x: jax.Array, *, axes: Axes) -> jax.Array:
    return x.transpose(axes)


def _back(y: jax.Array, axes: Axes) -> jax.Array:
    """Put every axis where it belongs."""
    return y.transpose(np.argsort(axes))


@kernel
def _padded(x: jax.Array, *, margins: tuple[tuple[int, int, int], ...]) -> jax.Array:
    return lax.pad(x, jnp.zeros((), x.dtype), margins)


def _one_more(ndim: int, axis: int) -> tuple[tuple[int, int, int], ...]:
    margins = [(0, 0, 0)] * ndim
    margins[axis] = (0, 1, 0)
    return tuple(margins)
