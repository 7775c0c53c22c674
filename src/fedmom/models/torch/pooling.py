"""Pooling, of one to three dimensions."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fedmom.models.torch.convolutions import each
from fedmom.models.torch.table import op


@op("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    """The largest number of every window."""
    windows = _Windows(x, kernel, stride, padding, dilation, ceil)
    is_float = jnp.issubdtype(x.dtype, jnp.inexact)
    least = -np.inf if is_float else np.iinfo(np.dtype(x.dtype)).min
    return windows.reduced(x, np.array(least, x.dtype), lax.max)


@op("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool_with_indices(*args: Any) -> Any:
    """The same, with a second result that only gradients need."""
    return max_pool(*args), None


@op("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Any:
    """The mean of every window."""
    windows = _Windows(x, kernel, stride, padding, 1, ceil)
    total = windows.reduced(x, np.array(0, x.dtype), lax.add)
    if divisor is not None:
        return total / divisor
    counted = np.ones(x.shape[-windows.dims :], np.float32)
    pads = [(p, p) for p in windows.padding]
    counts = windows.counts(np.pad(counted, pads, constant_values=float(count_padding)))
    return total / counts.astype(x.dtype)


class _Windows:
    """The windows of a pooling over the last axes."""

    def __init__(
        self, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
    ) -> None:
        self.dims = x.ndim - 2 if x.ndim > 2 else 1
        self.kernel = each(kernel, self.dims)
        self.dims = len(self.kernel)
        self.stride = each(stride, self.dims) if stride not in ((), None) else self.kernel
        self.padding, self.dilation = each(padding, self.dims), each(dilation, self.dims)
        sizes = x.shape[-self.dims :]
        self.more = [self._more(size, place) if ceil else 0 for place, size in enumerate(sizes)]

    def _more(self, size: int, place: int) -> int:
        """Return by how much the last window, begun before the end, goes beyond the padding."""
        side, step, pad = self.kernel[place], self.stride[place], self.padding[place]
        wide = self.dilation[place] * (side - 1) + 1
        count = -(-(size + 2 * pad - wide) // step) + 1
        if (count - 1) * step >= size + pad:
            count -= 1
        return max(0, (count - 1) * step + wide - size - 2 * pad)

    def reduced(self, x: Any, start: Any, function: Any) -> Any:
        lead = (1,) * (x.ndim - self.dims)
        ends = [(p, p + more) for p, more in zip(self.padding, self.more, strict=True)]
        return lax.reduce_window(
            x,
            start,
            function,
            (*lead, *self.kernel),
            (*lead, *self.stride),
            [(0, 0)] * len(lead) + ends,
            window_dilation=(*lead, *self.dilation),
        )

    def counts(self, padded: Any) -> Any:
        """Return how many numbers count in every window."""
        whole = np.pad(padded, [(0, more) for more in self.more])
        windows = np.lib.stride_tricks.sliding_window_view(whole, self.kernel)
        taken = windows[tuple(slice(None, None, step) for step in self.stride)]
        return taken.sum(axis=tuple(range(-self.dims, 0)))


@op("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(x: Any, sizes: Any) -> Any:
    """Means of so many windows, as equal as can be."""
    sizes = sizes if isinstance(sizes, tuple) else (sizes,)
    for axis, size in _axes(x, sizes):
        weights = np.zeros((size, x.shape[axis]))
        for row, (start, end) in enumerate(_cuts(x.shape[axis], size)):
            weights[row, start:end] = 1 / (end - start)
        if size == 1:
            x = x.mean(axis, keepdims=True)
        elif size != x.shape[axis]:
            x = jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ weights.T.astype(x.dtype), -1, axis)
    return x


@op("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _adaptive_avg_pool(x: Any, sizes: Any) -> Any:
    return adaptive_avg_pool(x, sizes)


@op("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(x: Any, sizes: Any) -> Any:
    """The largest numbers of so many windows, with a second result that only gradients need."""
    sizes = sizes if isinstance(sizes, tuple) else (sizes,)
    axes = [axis for axis, _ in _axes(x, sizes)]
    cuts = [_cuts(x.shape[axis], size) for axis, size in _axes(x, sizes)]
    found = []
    for window in itertools.product(*cuts):
        part = x[(..., *(slice(start, end) for start, end in window))]
        found.append(part.max(tuple(axes)))
    whole = jnp.stack(found, -1)
    return whole.reshape(*whole.shape[:-1], *(len(cut) for cut in cuts)), None


def _axes(x: Any, sizes: Any) -> list[tuple[int, int]]:
    """Return the last axes with their new sizes."""
    first = x.ndim - len(sizes)
    given = [(first + i, size) for i, size in enumerate(sizes)]
    return [(axis, x.shape[axis] if size is None else size) for axis, size in given]


def _cuts(length: int, parts: int) -> list[tuple[int, int]]:
    return [(i * length // parts, -(-(i + 1) * length // parts)) for i in range(parts)]
