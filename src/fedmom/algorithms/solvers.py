"""Client optimizers: a learning rate and options -> an optax optimizer.

They stand in a table by name, so that ``--solver adam:b2=0.99`` reaches each option.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedmom.algorithms.local_work import check_positive, check_share
from fedmom.core.errors import FedMomError

Step = Any  # a number, plain or traced


def sgd(
    lr: Step,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    dampening: float = 0.0,
) -> optax.GradientTransformation:
    """SGD, the paper's client optimizer."""
    check_share("momentum", momentum)
    _check_at_least_0("dampening", dampening)
    if nesterov and (dampening or not momentum):
        raise FedMomError("nesterov needs a momentum, and no dampening.")
    if dampening and momentum:
        plain = optax.chain(_damped_trace(momentum, dampening), optax.scale_by_learning_rate(lr))
    else:
        plain = optax.sgd(lr, momentum=momentum or None, nesterov=nesterov)
    return _decayed(plain, weight_decay)


class DampedTrace(NamedTuple):
    """The mean of gradients so far, and whether there were any."""

    trace: Any
    begun: jax.Array


def _damped_trace(momentum: float, dampening: float) -> optax.GradientTransformation:
    """Add gradients up, all but the first scaled down, as PyTorch does."""

    def init(params: Any) -> DampedTrace:
        return DampedTrace(optax.tree.zeros_like(params), jnp.zeros((), bool))

    def update(gradient: Any, state: DampedTrace, _params: Any = None) -> Any:
        scale = jnp.where(state.begun, 1 - dampening, 1)
        trace = jax.tree.map(lambda t, g: momentum * t + scale * g, state.trace, gradient)
        return trace, DampedTrace(trace, jnp.ones((), bool))

    return optax.GradientTransformation(init, update)


def _decayed(
    solver: optax.GradientTransformation, weight_decay: float
) -> optax.GradientTransformation:
    """Add ``weight_decay`` times the parameters to the gradient, as PyTorch does."""
    _check_at_least_0("weight_decay", weight_decay)
    if not weight_decay:
        return solver
    return optax.chain(optax.add_decayed_weights(weight_decay), solver)


def momentum(lr: Step) -> optax.GradientTransformation:
    """SGD with momentum 0.9."""
    return optax.sgd(lr, momentum=0.9)


def rmsprop(
    lr: Step,
    *,
    decay: float = 0.9,
    eps: float = 1e-8,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> optax.GradientTransformation:
    """RMSProp."""
    check_share("decay", decay)
    check_share("momentum", momentum)
    check_positive("eps", eps)
    more = {"eps_in_sqrt": eps_in_sqrt, "centered": centered, "momentum": momentum or None}
    return _decayed(optax.rmsprop(lr, decay=decay, eps=eps, **more), weight_decay)


def adam(
    lr: Step,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> optax.GradientTransformation:
    """Adam."""
    _check_moments(b1, b2, eps)
    return _decayed(optax.adam(lr, b1=b1, b2=b2, eps=eps), weight_decay)


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
    _check_at_least_0("weight_decay", weight_decay)
    return optax.adamw(lr, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)


def _check_at_least_0(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise FedMomError(f"{name} {value!r} must be a number of at least 0.")


def _check_moments(b1: float, b2: float, eps: float) -> None:
    check_share("b1", b1)
    check_share("b2", b2)
    check_positive("eps", eps)
