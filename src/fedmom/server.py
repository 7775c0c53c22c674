"""Server optimizers: optax gradient transformations, fed the pseudo-gradient g_t.

``g_t = Σ p_k (w_t - w^k_{t+1})`` over the round's clients, so a step of SGD on it is model
averaging. A count of updates is a count of rounds: η may be any optax schedule.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedmom.errors import FedMomError
from fedmom.models.base import Params
from fedmom.schedules import Schedule

Eta = float | Schedule


def fedavg(eta: Eta = 1.0) -> optax.GradientTransformation:
    """FedAvg (the paper's Algorithm 1): ``w' = w - η g``."""
    return optax.sgd(eta)


class FedMomState(NamedTuple):
    """Rounds done, and the velocity ``d_t = v_t - v_{t-1}``."""

    rounds: jax.Array
    velocity: Params


def fedmom(eta: Eta = 1.0, beta: float = 0.9) -> optax.GradientTransformation:
    """FedMom (the paper's Algorithm 3): Nesterov's momentum on the server.

    The paper writes ``v' = w - η g``, ``w' = v' + β (v' - v)`` with ``v_0 = w_0``. Here as a
    velocity, ``d' = β d - η g``, ``w' = w + β d' - η g``, which needs no copy of v and is the
    same under a changing η. (optax's and torch's Nesterov put η outside the momentum and
    so are the same only for a constant η.)
    """
    check_beta(beta)

    def init(params: Params) -> FedMomState:
        return FedMomState(jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(
        g: Params, state: FedMomState, _params: Params | None = None
    ) -> tuple[Params, FedMomState]:
        step = eta(state.rounds) if callable(eta) else eta
        velocity = jax.tree.map(lambda d, g: beta * d - step * g, state.velocity, g)
        updates = jax.tree.map(lambda d, g: beta * d - step * g, velocity, g)
        return updates, FedMomState(optax.safe_increment(state.rounds), velocity)

    return optax.GradientTransformation(init, update)


def fedmom_zero_start(eta: Eta = 1.0, beta: float = 0.9) -> optax.GradientTransformation:
    """FedMom with ``v_0 = 0`` instead of w_0, as in the first author's code of 2019.

    Its first ``v' - v`` is ``w_0 - η g``, so as a velocity it starts from ``β d_0 = w_0``.
    """
    paper = fedmom(eta, beta)

    def init(params: Params) -> FedMomState:
        state: FedMomState = paper.init(params)
        if beta == 0:  # v is never used
            return state
        return state._replace(velocity=jax.tree.map(lambda w: w / beta, params))

    return optax.GradientTransformation(init, paper.update)


def fedavgm(eta: Eta = 1.0, beta: float = 0.9) -> optax.GradientTransformation:
    """FedAvgM (Hsu et al. 2019): heavy-ball momentum, ``m' = β m + g``, ``w' = w - η m'``."""
    check_beta(beta)
    return optax.sgd(eta, momentum=beta)


class AdaptiveState(NamedTuple):
    """Rounds done, first and second moment of the pseudo-gradient."""

    rounds: jax.Array
    mean: Params
    square: Params


def fedadagrad(
    eta: Eta = 0.01, beta: float = 0.0, tau: float = 1e-3
) -> optax.GradientTransformation:
    """FedAdagrad (Reddi et al. 2021): the second moment is a sum, ``s' = s + g²``."""
    return _adaptive(eta, beta, tau, lambda s, g: s + g * g)


def fedadam(
    eta: Eta = 0.01, beta: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> optax.GradientTransformation:
    """FedAdam (Reddi et al. 2021): ``s' = β₂ s + (1 - β₂) g²``."""
    return _adaptive(eta, beta, tau, lambda s, g: beta2 * s + (1 - beta2) * g * g)


def fedyogi(
    eta: Eta = 0.01, beta: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> optax.GradientTransformation:
    """FedYogi (Reddi et al. 2021): ``s' = s - (1 - β₂) g² sign(s - g²)``."""

    def square(s: jax.Array, g: jax.Array) -> jax.Array:
        return s - (1 - beta2) * g * g * jnp.sign(s - g * g)

    return _adaptive(eta, beta, tau, square)


def _adaptive(
    eta: Eta, beta: float, tau: float, square: Callable[[jax.Array, jax.Array], jax.Array]
) -> optax.GradientTransformation:
    """Reddi et al.'s Algorithm 2: ``m' = β m + (1 - β) g``, ``w' = w - η m' / (√s' + τ)``.

    As published: no bias correction, and s starts at τ².
    """
    check_beta(beta)

    def init(params: Params) -> AdaptiveState:
        return AdaptiveState(
            jnp.zeros([], jnp.int32),
            jax.tree.map(jnp.zeros_like, params),
            jax.tree.map(lambda p: jnp.full_like(p, tau**2), params),
        )

    def update(
        g: Params, state: AdaptiveState, _params: Params | None = None
    ) -> tuple[Params, AdaptiveState]:
        step = eta(state.rounds) if callable(eta) else eta
        mean = jax.tree.map(lambda m, g: beta * m + (1 - beta) * g, state.mean, g)
        second = jax.tree.map(square, state.square, g)
        updates = jax.tree.map(lambda m, s: -step * m / (jnp.sqrt(s) + tau), mean, second)
        return updates, AdaptiveState(optax.safe_increment(state.rounds), mean, second)

    return optax.GradientTransformation(init, update)


class AveragedState(NamedTuple):
    """Rounds done, the optimizer's own state, and the mean of the models so far."""

    rounds: jax.Array
    optimizer: optax.OptState
    mean: Params


def averaged(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """Let any server optimizer also keep a mean of its models, and train as it would without.

    After t rounds the mean weighs the model after round s by ``decay^(t-s)``, and the weights
    add up to one: about the last 1/(1-decay) models count. Before the first round it is w_0.
    """
    if not 0 < decay < 1:
        raise FedMomError(
            f"average {decay} is not between 0 and 1. 0.99 averages about 100 rounds."
        )

    def init(params: Params) -> AveragedState:
        return AveragedState(jnp.zeros([], jnp.int32), optimizer.init(params), params)

    def update(
        g: Params, state: AveragedState, params: Params | None = None
    ) -> tuple[Params, AveragedState]:
        assert params is not None
        updates, inner = optimizer.update(g, state.optimizer, params)
        rounds = optax.safe_increment(state.rounds)
        # 1 - decay^t by expm1: the difference itself loses digits where decay is near one.
        newest = (1 - decay) / -jnp.expm1(rounds * math.log(decay))
        mean = jax.tree.map(
            lambda m, w: m + newest * (w - m), state.mean, optax.apply_updates(params, updates)
        )
        return updates, AveragedState(rounds, inner, mean)

    return optax.GradientTransformation(init, update)


def check_beta(beta: float) -> None:
    """Refuse a momentum outside [0, 1)."""
    if not 0 <= beta < 1:
        raise FedMomError(f"momentum {beta} is not in [0, 1). The paper uses 0.9.")
