"""Convolutions and transposed convolutions, of one to three dimensions."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from fedmom.models.torch.layers import by_channel
from fedmom.models.torch.table import op


@op("conv1d", "conv2d", "conv3d")
def convolve(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = (1,),
    padding: Any = (0,),
    dilation: Any = (1,),
    groups: int = 1,
) -> Any:
    """Convolve (N, channels, ...) with a kernel (filters, channels / groups, ...)."""
    dims = weight.ndim - 2
    if x.ndim == dims + 1:  # one image
        return convolve(x[None], weight, bias, stride, padding, dilation, groups)[0]
    pads: Any = padding.upper() if isinstance(padding, str) else _both(padding, dims)
    y = lax.conv_general_dilated(
        x,
        weight,
        each(stride, dims),
        pads,
        rhs_dilation=each(dilation, dims),
        feature_group_count=groups,
    )
    return y if bias is None else y + by_channel(bias, y)


@op("convolution", "_convolution")
def convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Any:
    """Convolve, or the transpose of it."""
    if transposed:
        return transposed_convolve(
            x, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return convolve(x, weight, bias, stride, padding, dilation, groups)


@op("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolve(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = (1,),
    padding: Any = (0,),
    output_padding: Any = (0,),
    groups: int = 1,
    dilation: Any = (1,),
) -> Any:
    """The transpose of a convolution: inputs are spread by the stride, the kernel is mirrored."""
    dims = weight.ndim - 2
    if x.ndim == dims + 1:
        rest = stride, padding, output_padding, groups, dilation
        return transposed_convolve(x[None], weight, bias, *rest)[0]
    channels, filters, *sides = weight.shape
    grouped = weight.reshape(groups, channels // groups, filters, *sides)
    kernel = jnp.swapaxes(grouped, 1, 2).reshape(groups * filters, channels // groups, *sides)
    kernel = jnp.flip(kernel, tuple(range(2, 2 + dims)))
    spread, more = each(dilation, dims), each(output_padding, dims)
    edges = [
        d * (side - 1) - p for d, side, p in zip(spread, sides, each(padding, dims), strict=True)
    ]
    y = lax.conv_general_dilated(
        x,
        kernel,
        (1,) * dims,
        [(edge, edge + extra) for edge, extra in zip(edges, more, strict=True)],
        lhs_dilation=each(stride, dims),
        rhs_dilation=spread,
        feature_group_count=groups,
    )
    return y if bias is None else y + by_channel(bias, y)


def each(values: Any, dims: int) -> tuple[int, ...]:
    """Return a number for every dimension, where one may stand for all."""
    given = values if isinstance(values, tuple) else (values,)
    return given * dims if len(given) == 1 else given


def _both(padding: Any, dims: int) -> list[tuple[int, int]]:
    return [(p, p) for p in each(padding, dims)]
