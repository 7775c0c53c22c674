"""Losses: functions of a model's outputs and the labels that return one number per sample.

A loss may also return two numbers per sample, a sum and how many terms it has: the loss of samples
together is then the mean over all terms. That of sequences does, as their lengths differ.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fedmom.core.errors import FedMomError

Loss = Callable[[jax.Array, jax.Array], jax.Array | tuple[jax.Array, jax.Array]]


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


def squared_error(outputs: jax.Array, values: jax.Array) -> jax.Array:
    """The squared error of every sample, a mean over its values.

    Examples:
        >>> squared_error(jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 4.0]])).tolist()
        [2.0]
    """
    return _mean_of_rest(jnp.square(shaped(outputs, values) - values))


def absolute_error(outputs: jax.Array, values: jax.Array) -> jax.Array:
    """The absolute error of every sample, a mean over its values.

    Examples:
        >>> absolute_error(jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 4.0]])).tolist()
        [1.0]
    """
    return _mean_of_rest(jnp.abs(shaped(outputs, values) - values))


def binary_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Sigmoid cross-entropy of every sample, a mean over its labels, each 0 or 1.

    Examples:
        >>> loss = binary_cross_entropy(jnp.zeros((1, 4)), jnp.array([[0, 1, 1, 0]]))
        >>> bool(jnp.allclose(loss, jnp.log(2)))
        True
    """
    logits = shaped(logits, labels)
    return _mean_of_rest(optax.sigmoid_binary_cross_entropy(logits, labels))


def sequence_cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Softmax cross-entropy of sequences: the sum over positions, and how many count.

    The loss of a batch is the mean over all its positions that count, as that of PyTorch's
    ``CrossEntropyLoss(ignore_index=-100)``.

    Args:
        logits: (samples, positions, classes).
        labels: (samples, positions): the right class at every position; a negative label marks a
            position that does not count, such as one behind the end of a sequence.

    Returns:
        The sum and the count of every sample.

    Examples:
        >>> total, count = sequence_cross_entropy(jnp.zeros((1, 3, 8)), jnp.array([[5, 2, -100]]))
        >>> bool(jnp.allclose(total / count, jnp.log(8)))
        True
    """
    losses, counted = position_losses(logits, labels)
    return losses.sum(-1), counted.sum(-1).astype(losses.dtype)


def position_losses(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the cross-entropy at every position, 0 where it does not count, and where it does."""
    counted = labels >= 0
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
    return jnp.where(counted, losses, 0), counted


def shaped(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Return outputs in the shape of the labels: (samples,) is as good as (samples, 1).

    Without this, their difference would be a table of all samples with all.
    """
    if outputs.size != labels.size:
        raise FedMomError(
            f"The model returns an array of shape {outputs.shape}, and the labels of the batch have"
            f" shape {labels.shape}. It must return a number for every label."
        )
    return outputs.reshape(labels.shape)


# Losses that are never below 0: a client that reports one below is wrong, or lies.
NEVER_NEGATIVE = (
    *(cross_entropy, squared_error, absolute_error, binary_cross_entropy),
    sequence_cross_entropy,
)


def _mean_of_rest(values: jax.Array) -> jax.Array:
    return values.reshape(len(values), -1).mean(-1)


_ALL = (cross_entropy, squared_error, absolute_error, binary_cross_entropy, sequence_cross_entropy)
LOSSES: dict[str, Loss] = {loss.__name__: loss for loss in _ALL}
