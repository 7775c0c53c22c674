"""PyTorch's losses as those of models here: one number per sample, and no mean over the batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedmom.core.errors import FedMomError
from fedmom.data.federated import Features
from fedmom.models.losses import (
    Loss,
    absolute_error,
    binary_cross_entropy,
    cross_entropy,
    sequence_cross_entropy,
    shaped,
    squared_error,
)


@dataclass(frozen=True)
class ClassLoss:
    """Cross-entropy with weights of classes, smoothed labels or a label that does not count.

    Args:
        weights: One number for every class, or none.
        smoothing: The share of a label that all classes have.
        ignored: The label that does not count.
        logits: Whether outputs are logits; else they are logarithms of probabilities.
    """

    weights: tuple[float, ...] | None
    smoothing: float
    ignored: int
    logits: bool

    def __call__(self, outputs: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the sum of every sample, and the sum of its weights."""
        classes = outputs.shape[-1]
        if outputs.shape[:-1] != labels.shape or len(self.weights or ()) not in (0, classes):
            raise FedMomError(
                f"The loss has labels of shape {labels.shape}, outputs of shape {outputs.shape} and"
                f" weights of {len(self.weights or ()) or classes} classes, which do not fit."
            )
        logs = jax.nn.log_softmax(outputs) if self.logits else outputs
        counted = (labels >= 0) & (labels != self.ignored)
        known = jnp.where(counted, labels, 0)
        weights = jnp.asarray(self.weights or (1.0,) * classes, logs.dtype)
        own = jnp.where(counted, weights[known], 0)
        plain = -jnp.take_along_axis(logs, known[..., None], -1)[..., 0] * own
        spread = jnp.where(counted, -(logs * weights).mean(-1), 0)
        losses = (1 - self.smoothing) * plain + self.smoothing * spread
        rest = tuple(range(1, labels.ndim))
        return losses.sum(rest), own.sum(rest)


@dataclass(frozen=True)
class LabelLoss:
    """Sigmoid cross-entropy, in which a label that applies has a weight of its own."""

    weights: tuple[float, ...]

    def __call__(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the mean over the labels of every sample."""
        logits = shaped(outputs, labels)
        weights = jnp.asarray(self.weights, logits.dtype)
        applies = weights * labels * jax.nn.log_sigmoid(logits)
        found = -applies - (1 - labels) * jax.nn.log_sigmoid(-logits)
        return found.reshape(len(found), -1).mean(-1)


@dataclass(frozen=True)
class HuberLoss:
    """Squared errors where they are small, absolute ones where they are large."""

    delta: float
    scale: float

    def __call__(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the mean over the values of every sample."""
        found = optax.huber_loss(shaped(outputs, labels), labels, delta=self.delta) * self.scale
        return found.reshape(len(found), -1).mean(-1)


def converted(loss: Any, features: Features) -> Loss:
    """Return the loss that one of PyTorch is.

    Args:
        loss: Such as ``torch.nn.CrossEntropyLoss()``.
        features: Those of the data, with its task.

    Raises:
        FedMomError: It is another one, or has an option that is not known here.
    """
    kind = type(loss)
    name = kind.__name__
    if name not in _KNOWN or not kind.__module__.startswith("torch.nn"):
        raise FedMomError(
            f"loss is {name}, a module of PyTorch. Those that FedMom has are {', '.join(_KNOWN)};"
            " or give a function (outputs, labels) of JAX arrays that returns a number per sample."
        )
    if loss.reduction == "sum":
        raise FedMomError(f"loss: {name} has reduction='sum'. Leave it out: a step takes the mean.")
    return _KNOWN[name](loss, features)


def _cross_entropy(loss: Any, features: Features) -> Loss:
    if loss.weight is None and loss.label_smoothing == 0 and loss.ignore_index < 0:
        return sequence_cross_entropy if features.task == "sequence" else cross_entropy
    return ClassLoss(_weights(loss.weight), loss.label_smoothing, loss.ignore_index, logits=True)


def _of_logarithms(loss: Any, _features: Features) -> Loss:
    return ClassLoss(_weights(loss.weight), 0.0, loss.ignore_index, logits=False)


def _of_labels(loss: Any, _features: Features) -> Loss:
    if loss.weight is not None:
        raise FedMomError("loss: BCEWithLogitsLoss has a weight. Only pos_weight is known here.")
    if loss.pos_weight is None:
        return binary_cross_entropy
    return LabelLoss(tuple(loss.pos_weight.reshape(-1).tolist()))


def _smooth(loss: Any, _features: Features) -> Loss:
    return absolute_error if loss.beta == 0 else HuberLoss(loss.beta, 1 / loss.beta)


_KNOWN: dict[str, Callable[[Any, Features], Loss]] = {
    "CrossEntropyLoss": _cross_entropy,
    "NLLLoss": _of_logarithms,
    "BCEWithLogitsLoss": _of_labels,
    "MSELoss": lambda _loss, _features: squared_error,
    "L1Loss": lambda _loss, _features: absolute_error,
    "SmoothL1Loss": _smooth,
    "HuberLoss": lambda loss, _features: HuberLoss(loss.delta, 1.0),
}


def _weights(tensor: Any) -> tuple[float, ...] | None:
    """Return weights of which the least is 1: a mean divides by their sum, in which 1 is least."""
    if tensor is None:
        return None
    found = np.asarray(tensor.tolist())
    if not ((found >= 0).all() and np.isfinite(found).all() and found.any()):
        raise FedMomError("loss: the weights of classes must be finite, at least 0, and not all 0.")
    return tuple((found / found[found > 0].min()).tolist())
