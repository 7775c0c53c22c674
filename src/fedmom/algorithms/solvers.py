"""Client optimizers: a step size and options -> an optax optimizer.

They stand in a table by name, so that ``--solver adam:b2=0.99`` reaches each option.
"""

from typing import Any

import optax

Step = Any  # a number, plain or traced


def sgd(lr: Step, *, momentum: float = 0.0, nesterov: bool = False) -> optax.GradientTransformation:
    """SGD, the paper's client optimizer."""
    return optax.sgd(lr, momentum=momentum or None, nesterov=nesterov)


def momentum(lr: Step) -> optax.GradientTransformation:
    """SGD with momentum 0.9."""
    return optax.sgd(lr, momentum=0.9)


def rmsprop(lr: Step, *, decay: float = 0.9, eps: float = 1e-8) -> optax.GradientTransformation:
    """RMSProp."""
    return optax.rmsprop(lr, decay=decay, eps=eps)


def adam(
    lr: Step, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Adam."""
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
    return optax.adamw(lr, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)
