"""What a model is here: a pair of pure functions, and the loss of one sample."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedmom.core.errors import FedMomError
from fedmom.core.threefry import centred_uniform
from fedmom.core.types import Params
from fedmom.data.federated import Features


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Softmax cross-entropy of every sample.

    Args:
        logits: (samples, classes).
        labels: The right class of every sample.

    Returns:
        One loss per sample.

    Examples:
        >>> import jax.numpy as jnp
        >>> loss = cross_entropy(jnp.zeros((2, 10)), jnp.array([3, 7]))
        >>> bool(jnp.allclose(loss, jnp.log(10)))
        True
    """
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


class Model(NamedTuple):
    """A model: how its first parameters are drawn, how it is applied, and its loss.

    A user's own net is used by filling in these fields (``examples/own_model.py``).

    Args:
        init: ``init(key) -> params``, any tree of arrays.
        apply: ``apply(params, x, key) -> logits`` of a batch. ``key`` is for dropout and the
            like; it is None in evaluation.
        loss: ``loss(logits, labels) ->`` one number per sample; by default ``cross_entropy``.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> net = Model(
        ...     init=lambda key: jnp.zeros((4, 3)),
        ...     apply=lambda params, x, key: x @ params,
        ... )
        >>> params = net.init(jax.random.key(0))
        >>> net.apply(params, jnp.ones((5, 4)), None).shape
        (5, 3)
    """

    init: Callable[[jax.Array], Params]
    apply: Callable[[Params, jax.Array, jax.Array | None], jax.Array]
    loss: Callable[[jax.Array, jax.Array], jax.Array] = cross_entropy


def glorot_uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draw as ``jax.nn.initializers.glorot_uniform`` does, with nothing to compile."""
    field = math.prod(shape[:-2])  # of a convolution
    variance = np.float32(1 / (field * (shape[-2] + shape[-1]) / 2))
    return jnp.asarray(centred_uniform(key, shape) * np.sqrt(np.float32(3) * variance))


def dense(key: jax.Array, fan_in: int, fan_out: int) -> Params:
    """A linear layer with Glorot-uniform weights and zero bias."""
    weights = glorot_uniform(key, (fan_in, fan_out))
    return {"w": weights, "b": jnp.asarray(np.zeros(fan_out, np.float32))}


def conv(key: jax.Array, size: int, channels_in: int, channels_out: int) -> Params:
    """A square convolution with Glorot-uniform weights and zero bias."""
    weights = glorot_uniform(key, (size, size, channels_in, channels_out))
    return {"w": weights, "b": jnp.asarray(np.zeros(channels_out, np.float32))}


def linear(layer: Params, x: jax.Array) -> jax.Array:
    """Apply a ``dense`` layer."""
    return x @ layer["w"] + layer["b"]


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Drop units at ``rate`` and scale the rest up; nothing without a key."""
    if key is None or rate == 0:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


def as_channels(x: jax.Array) -> jax.Array:
    """Give gray images (N, H, W) their channel; leave (N, H, W, C) alone.

    Pixels that a user has given as whole numbers become floats, as convolutions want them.
    """
    x = x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.integer) else x
    return x[..., None] if x.ndim == 3 else x


def need(model: str, features: Features, kinds: Sequence[str]) -> None:
    """Refuse data that the model cannot read."""
    if features.kind not in kinds:
        shape = "x".join(map(str, features.shape))
        raise FedMomError(
            f"{model} reads {' or '.join(kinds)} data, but this data is {features.kind} ({shape})."
            f" `fedmom list` shows which model reads what."
        )


def flat_size(features: Features) -> int:
    """The number of values in one input."""
    return math.prod(features.shape)
