"""Dense layers, normalization, dropout and attention."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedmom.models.torch.table import op

op("matmul", "mm", "bmm", "mv", "dot")(jnp.matmul)
op("outer")(jnp.outer)


@op("linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """x W^T + b."""
    y = x @ weight.T
    return y if bias is None else y + bias


@op("addmm", "baddbmm", "addmv")
def addmm(c: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta c + alpha a b."""
    product = a @ b
    scaled = product if alpha == 1 else alpha * product
    return scaled if beta == 0 else (c if beta == 1 else beta * c) + scaled


@op("einsum")
def einsum(equation: str, arrays: Any, **_: Any) -> Any:
    """Sums of products by their indices."""
    return jnp.einsum(equation, *arrays)


@op("bilinear")
def bilinear(x: Any, y: Any, weight: Any, bias: Any = None) -> Any:
    """x W y + b."""
    found = jnp.einsum("...i,oij,...j->...o", x, weight, y)
    return found if bias is None else found + bias


@op("cosine_similarity")
def cosine_similarity(x: Any, y: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """The cosine of the angle between vectors."""
    x, y = jnp.broadcast_arrays(x, y)
    norms = [jnp.sqrt(jnp.maximum((v * v).sum(dim, keepdims=True), eps * eps)) for v in (x, y)]
    return ((x / norms[0]) * (y / norms[1])).sum(dim)


@op("layer_norm")
def layer_norm(
    x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    """Mean 0 and variance 1 over the last axes."""
    axes = tuple(range(-len(shape), 0))
    return _affine(_standard(x, axes, eps), weight, bias)


@op("native_layer_norm")
def native_layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """The same, with two more results that only gradients need."""
    return layer_norm(x, shape, weight, bias, eps), None, None


@op("rms_norm")
def rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Mean square 1 over the last axes."""
    axes = tuple(range(-len(shape), 0))
    info: Any = jnp.finfo
    eps = float(info(x.dtype).eps) if eps is None else eps
    return _affine(x * lax.rsqrt((x * x).mean(axes, keepdims=True) + eps), weight, None)


@op("group_norm")
def group_norm(
    x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    """Mean 0 and variance 1 over groups of channels."""
    found = _standard(x.reshape(len(x), groups, -1), (-1,), eps).reshape(x.shape)
    return _affine(found, by_channel(weight, x), by_channel(bias, x))


@op("instance_norm")
def instance_norm(
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    own: bool,
    _momentum: float,
    eps: float,
    *_: Any,
) -> Any:
    """Mean 0 and variance 1 of every image and channel."""
    if own or mean is None:
        found = _standard(x, tuple(range(2, x.ndim)), eps)
        return _affine(found, by_channel(weight, x), by_channel(bias, x))
    return _by_statistics(x, weight, bias, mean, variance, eps)


@op("_native_batch_norm_legit_functional")
def batch_norm_in_training(
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Mean 0 and variance 1 over the batch, and the new running statistics."""
    if not training:
        y = _by_statistics(x, weight, bias, mean, variance, eps)
        return y, mean, variance, mean, variance
    axes = (0, *range(2, x.ndim))
    count = x.size // x.shape[1]
    own_mean = x.mean(axes)
    own_variance = jnp.square(x - by_channel(own_mean, x)).mean(axes)
    unbiased = own_variance * (count / max(1, count - 1))
    after = mean + momentum * (own_mean - mean), variance + momentum * (unbiased - variance)
    y = _by_statistics(x, weight, bias, own_mean, own_variance, eps)
    return y, own_mean, own_variance, *after


@op("batch_norm", "cudnn_batch_norm")
def batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    _momentum: float,
    eps: float,
    *_: Any,
) -> Any:
    """Mean 0 and variance 1 by running statistics, or over the batch if there are none."""
    if training or mean is None:
        axes = (0, *range(2, x.ndim))
        found = _standard(x, axes, eps)
        return _affine(found, by_channel(weight, x), by_channel(bias, x))
    return _by_statistics(x, weight, bias, mean, variance, eps)


@op("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Mean 0 and variance 1 over the batch."""
    return batch_norm(x, weight, bias, None, None, training, momentum, eps), None, None


@op("_native_batch_norm_legit_no_training")
def batch_norm_in_evaluation(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, _momentum: float, eps: float
) -> Any:
    """Mean 0 and variance 1 by running statistics."""
    return _by_statistics(x, weight, bias, mean, variance, eps), None, None


@op("local_response_norm")
def local_response_norm(
    x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    """Divide by what channels nearby have."""
    pads = [(0, 0), (size // 2, (size - 1) // 2), *[(0, 0)] * (x.ndim - 2)]
    window = (1, size, *(1,) * (x.ndim - 2))
    total = lax.reduce_window(x * x, 0.0, lax.add, window, (1,) * x.ndim, pads)
    return x / (k + alpha * total / size) ** beta


def _standard(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    off = x - x.mean(axes, keepdims=True)
    return off * lax.rsqrt(jnp.square(off).mean(axes, keepdims=True) + eps)


def _by_statistics(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, eps: float) -> Any:
    found = (x - by_channel(mean, x)) * by_channel(lax.rsqrt(variance + eps), x)
    return _affine(found, by_channel(weight, x), by_channel(bias, x))


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def by_channel(value: Any, x: Any) -> Any:
    """Return one number per channel in a shape that goes with (N, channels, ...)."""
    return None if value is None else value.reshape(-1, *(1,) * (x.ndim - 2))


@op("dropout")
def dropout(x: Any, rate: float, train: bool, key: Any = None) -> Any:
    """Drop units at this rate and scale the rest up; nothing in evaluation."""
    return dropped(x, rate, key) if train else x


@op("native_dropout")
def native_dropout(x: Any, rate: float, train: bool = True, key: Any = None) -> Any:
    """The same, with a second result that only gradients need."""
    return dropout(x, rate, train, key), None


@op("feature_dropout")
def feature_dropout(x: Any, rate: float, train: bool, key: Any = None) -> Any:
    """Drop whole channels."""
    kept = jnp.ones((*x.shape[:2], *(1,) * (x.ndim - 2)), x.dtype)
    return x * dropped(kept, rate, key) if train else x


def dropped(x: Any, rate: float, key: Any) -> Any:
    """Drop units at a rate and scale the rest up."""
    if rate == 0 or key is None:
        return x
    if rate == 1:
        return jnp.zeros_like(x)
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


@op("scaled_dot_product_attention")
def attention(
    query: Any,
    keys: Any,
    values: Any,
    mask: Any = None,
    rate: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    key: Any = None,
) -> Any:
    """softmax(Q K^T / sqrt(d)) V."""
    if enable_gqa:
        times = query.shape[-3] // keys.shape[-3]
        keys, values = (jnp.repeat(part, times, axis=-3) for part in (keys, values))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * scale) @ jnp.swapaxes(keys, -1, -2)
    if causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if mask is not None:
        is_bool = mask.dtype == bool
        scores = jnp.where(mask, scores, -jnp.inf) if is_bool else scores + mask
    return dropped(jax.nn.softmax(scores, axis=-1), rate, key) @ values
