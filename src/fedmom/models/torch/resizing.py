"""Images in other sizes: ``torch.nn.functional.interpolate``."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.models.torch.table import op

_CUBIC = -0.75  # PyTorch's


def _nearest(size: int, new: int, ratio: float, _corners: bool) -> NDArray[Any]:
    places = np.minimum(np.floor(np.arange(new) * ratio), size - 1).astype(int)
    return np.eye(size)[places]


def _nearest_exact(size: int, new: int, ratio: float, _corners: bool) -> NDArray[Any]:
    places = np.minimum(np.floor((np.arange(new) + 0.5) * ratio), size - 1).astype(int)
    return np.eye(size)[places]


def _linear(size: int, new: int, ratio: float, corners: bool) -> NDArray[Any]:
    at = np.maximum(_places(size, new, ratio, corners), 0)
    before = np.minimum(np.floor(at).astype(int), size - 1)
    after = np.minimum(before + 1, size - 1)
    share = (at - before)[:, None]
    return (1 - share) * np.eye(size)[before] + share * np.eye(size)[after]


def _cubic(size: int, new: int, ratio: float, corners: bool) -> NDArray[Any]:
    at = _places(size, new, ratio, corners)
    before, weights = np.floor(at).astype(int), np.zeros((new, size))
    for step in (-1, 0, 1, 2):
        off = np.abs(at - before - step)
        near = ((_CUBIC + 2) * off - (_CUBIC + 3)) * off * off + 1
        far = ((_CUBIC * off - 5 * _CUBIC) * off + 8 * _CUBIC) * off - 4 * _CUBIC
        rows = np.eye(size)[np.clip(before + step, 0, size - 1)]
        weights += np.where(off <= 1, near, far)[:, None] * rows
    return weights


def _places(size: int, new: int, ratio: float, corners: bool) -> NDArray[Any]:
    """Return where the new pixels lie among the old."""
    if corners:
        return np.arange(new) * ((size - 1) / (new - 1) if new > 1 else 0.0)
    return (np.arange(new) + 0.5) * ratio - 0.5


Weights = Callable[[int, int, float, bool], NDArray[Any]]


def _resize(x: Any, weights: Weights, sizes: Any, scales: Any, corners: bool) -> Any:
    """Mix the pixels along every axis, one after another."""
    if sizes is None:
        sizes = tuple(int(size * scale) for size, scale in zip(x.shape[2:], scales, strict=True))
    for i, new in enumerate(sizes):
        size = x.shape[2 + i]
        ratio = 1 / scales[i] if scales and scales[i] else size / new
        if weights is _nearest and new % size == 0 and ratio == size / new:
            x = jnp.repeat(x, new // size, axis=2 + i)
            continue
        mixed = weights(size, new, ratio, corners).T.astype(x.dtype)
        x = jnp.moveaxis(jnp.moveaxis(x, 2 + i, -1) @ mixed, -1, 2 + i)
    return x


def _by_axis(scales: tuple[Any, ...]) -> Any:
    """Return one scale for every axis: overloads have them in one argument, or in several."""
    is_one = len(scales) == 1 and not isinstance(scales[0], float)
    return scales[0] if is_one else scales


def _without_corners(weights: Weights) -> Callable[..., Any]:
    def resize(x: Any, sizes: Any, *scales: Any) -> Any:
        return _resize(x, weights, sizes, _by_axis(scales), corners=False)

    return resize


def _with_corners(weights: Weights) -> Callable[..., Any]:
    def resize(x: Any, sizes: Any, corners: bool, *scales: Any) -> Any:
        return _resize(x, weights, sizes, _by_axis(scales), corners)

    return resize


op(*(f"upsample_nearest{n}d" for n in (1, 2, 3)))(_without_corners(_nearest))
op(*(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)))(_without_corners(_nearest_exact))
op("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")(_with_corners(_linear))
op("upsample_bicubic2d")(_with_corners(_cubic))
