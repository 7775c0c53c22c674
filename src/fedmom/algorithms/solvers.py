"""Client optimizers: a learning rate and options -> an optax optimizer.

They stand in a table by name, so that ``--solver adam:b2=0.99`` reaches each option.
"""

import math
from typing import Any

import optax

from fedmom.algorithms.local_work import check_positive, check_share
from fedmom.core.errors import FedMomError

Step = Any  # a number, plain or traced


def sgd(lr: Step, *, momentum: float = 0.0, nesterov: bool = False) -> optax.GradientTransformation:
    """SGD, the paper's client optimizer."""
    check_share("momentum", momentum)
    return optax.sgd(lr, momentum=momentum or None, nesterov=nesterov)


def momentum(lr: Step) -> optax.GradientTransformation:
    """SGD with momentum 0.9."""
    return optax.sgd(lr, momentum=0.9)


def rmsprop(lr: Step, *, decay: float = 0.9, eps: float = 1e-8) -> optax.GradientTransformation:
    """RMSProp."""
    check_share("decay", decay)
    check_positive("eps", eps)
    return optax.rmsprop(lr, decay=decay, eps=eps)


def adam(
    lr: Step, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Adam."""
    _check_moments(b1, b2, eps)
    return optax.adam(lr, b1=b1, b2=b2, eps=eps)


def adamw(
    lr: Step,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
) -> optax.GradientTransformation:
    """Adam with decoupled weight decay."""
    _check_moments(b1, b2, eps)
    if not 0 <= weight_decay < math.inf:
        raise FedMomError(f"weight_decay {weight_decay!r} must be a number of at least 0.")
    return optax.adamw(lr, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)


def _check_moments(b1: float, b2: float, eps: float) -> None:
    check_share("b1", b1)
    check_share("b2", b2)
    check_positive("eps", eps)
