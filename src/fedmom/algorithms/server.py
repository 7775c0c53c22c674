"""Server optimizers: optax gradient transformations, fed the pseudo-gradient g_t.

``g_t = Σ p_k (w_t - w^k_{t+1})`` over the round's clients, so a step of SGD on it is model
averaging. A count of updates is a count of rounds: the learning rate η may be any optax schedule.

In the table of algorithms, ``learning_rate``, ``momentum`` and ``lr`` are the settings
``server-lr``, ``momentum`` and ``lr``; keyword-only parameters are options, as in
``fedadam:tau=0.01``.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedmom.algorithms.base import Algorithm, Reported, Server, as_server
from fedmom.algorithms.local_work import check_positive, check_rate, check_share, full_gradient
from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.types import Params, Schedule

LearningRate = float | Schedule


@checked
def fedsgd(learning_rate: LearningRate = 1.0, lr: LearningRate = 0.1) -> Algorithm:
    """One gradient of each client's whole data per round (McMahan et al. 2017).

    Args:
        learning_rate: η, a number or a schedule over rounds.
        lr: γ, the clients' learning rate, a number or a schedule over rounds.

    Returns:
        An algorithm that brings its own local work.

    Examples:
        >>> fedsgd(lr=0.5).work.count(round_=0, samples=25)  # one step
        1
    """
    check_rate(learning_rate)
    return Algorithm(optax.sgd(learning_rate), full_gradient(lr))


@checked
def fedavg(learning_rate: LearningRate = 1.0) -> optax.GradientTransformation:
    """Model averaging (the paper's Algorithm 1): ``w' = w - η g``.

    Args:
        learning_rate: η, a number or a schedule over rounds.

    Returns:
        An optax transformation on the pseudo-gradient.

    Examples:
        >>> optimizer = fedavg(learning_rate=2.0)
        >>> updates, _ = optimizer.update(jnp.ones(1), optimizer.init(jnp.zeros(1)))
        >>> float(updates[0])
        -2.0
    """
    check_rate(learning_rate)
    return optax.sgd(learning_rate)


class FedMomState(NamedTuple):
    """Rounds done, and the velocity ``d_t = v_t - v_{t-1}``."""

    rounds: jax.Array
    velocity: Params


@checked
def fedmom(
    learning_rate: LearningRate = 1.0, momentum: float = 0.9
) -> optax.GradientTransformation:
    """Nesterov momentum on the server (the paper's Algorithm 3).

    The paper writes ``v' = w - η g``, ``w' = v' + β (v' - v)`` with ``v_0 = w_0``. Here as a
    velocity, ``d' = β d - η g``, ``w' = w + β d' - η g``, which needs no copy of v and is the
    same under a changing η. (``optax.sgd`` and torch put η outside the momentum and so are the
    same only for a constant η.)

    Args:
        learning_rate: η, a number or a schedule over rounds; the paper's is K/M.
        momentum: β in [0, 1).

    Returns:
        An optax transformation on the pseudo-gradient.

    Examples:
        >>> optimizer = fedmom(learning_rate=1.0, momentum=0.9)
        >>> updates, _ = optimizer.update(jnp.ones(1), optimizer.init(jnp.zeros(1)))
        >>> float(updates[0])  # -η g + β (-η g)
        -1.899999976158142
    """
    check_rate(learning_rate)
    check_share("momentum", momentum)

    def init(params: Params) -> FedMomState:
        return FedMomState(jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(
        g: Params, state: FedMomState, _params: Params | None = None
    ) -> tuple[Params, FedMomState]:
        step = learning_rate(state.rounds) if callable(learning_rate) else learning_rate
        velocity = jax.tree.map(lambda d, g: momentum * d - step * g, state.velocity, g)
        updates = jax.tree.map(lambda d, g: momentum * d - step * g, velocity, g)
        return updates, FedMomState(optax.safe_increment(state.rounds), velocity)

    return optax.GradientTransformation(init, update)


@checked
def fedmom_zero_start(
    learning_rate: LearningRate = 1.0, momentum: float = 0.9
) -> optax.GradientTransformation:
    """FedMom with v_0 = 0 instead of w_0, as in the first author's code of 2019.

    Its first ``v' - v`` is ``w_0 - η g``, so as a velocity it starts from ``β d_0 = w_0``.

    Args:
        learning_rate: η, a number or a schedule over rounds.
        momentum: β in [0, 1).

    Returns:
        An optax transformation on the pseudo-gradient.

    Examples:
        >>> float(fedmom_zero_start(momentum=0.5).init(jnp.ones(1)).velocity[0])
        2.0
    """
    paper = fedmom(learning_rate, momentum)

    def init(params: Params) -> FedMomState:
        state: FedMomState = paper.init(params)
        if momentum < 1e-30:  # what v adds to w is lost in rounding, and w / β would overflow
            return state
        return state._replace(velocity=jax.tree.map(lambda w: w / momentum, params))

    return optax.GradientTransformation(init, paper.update)


@checked
def fedavgm(
    learning_rate: LearningRate = 1.0, momentum: float = 0.9
) -> optax.GradientTransformation:
    """Heavy-ball momentum (Hsu et al. 2019): ``m' = β m + g``, ``w' = w - η m'``.

    Args:
        learning_rate: η, a number or a schedule over rounds.
        momentum: β in [0, 1).

    Returns:
        An optax transformation on the pseudo-gradient.

    Examples:
        >>> optimizer = fedavgm(learning_rate=1.0, momentum=0.5)
        >>> first, state = optimizer.update(jnp.ones(1), optimizer.init(jnp.zeros(1)))
        >>> second, _ = optimizer.update(jnp.ones(1), state)
        >>> float(first[0]), float(second[0])
        (-1.0, -1.5)
    """
    check_rate(learning_rate)
    check_share("momentum", momentum)
    return optax.sgd(learning_rate, momentum=momentum)


class AdaptiveState(NamedTuple):
    """Rounds done, first and second moment of the pseudo-gradient."""

    rounds: jax.Array
    mean: Params
    square: Params


@checked
def fedadagrad(
    learning_rate: LearningRate = 0.01, momentum: float = 0.0, *, tau: float = 1e-3
) -> optax.GradientTransformation:
    """Adagrad on the server (Reddi et al. 2021): the second moment is a sum, ``s' = s + g²``.

    Args:
        learning_rate: η, a number or a schedule over rounds.
        momentum: β in [0, 1).
        tau: τ in the denominator, √s + τ.

    Returns:
        An optax transformation on the pseudo-gradient.

    Examples:
        >>> optimizer = fedadagrad(learning_rate=0.1)
        >>> updates, _ = optimizer.update(jnp.full(1, 50.0), optimizer.init(jnp.zeros(1)))
        >>> round(float(updates[0]), 3)  # of the learning rate's size, whatever g is
        -0.1
    """
    return _adaptive(learning_rate, momentum, tau, lambda s, g: s + g * g)


@checked
def fedadam(
    learning_rate: LearningRate = 0.01,
    momentum: float = 0.9,
    *,
    beta2: float = 0.99,
    tau: float = 1e-3,
) -> optax.GradientTransformation:
    """Adam on the server (Reddi et al. 2021): ``s' = β₂ s + (1 - β₂) g²``.

    Args:
        learning_rate: η, a number or a schedule over rounds.
        momentum: β in [0, 1).
        beta2: β₂, the decay of the second moment.
        tau: τ in the denominator, √s + τ.

    Returns:
        An optax transformation on the pseudo-gradient.

    Examples:
        >>> optimizer = fedadam(learning_rate=0.1, momentum=0.0, beta2=0.75)
        >>> updates, _ = optimizer.update(jnp.full(1, 50.0), optimizer.init(jnp.zeros(1)))
        >>> round(float(updates[0]), 3)  # -η g / √((1 - β₂) g²)
        -0.2
    """
    check_share("beta2", beta2)
    return _adaptive(learning_rate, momentum, tau, lambda s, g: beta2 * s + (1 - beta2) * g * g)


@checked
def fedyogi(
    learning_rate: LearningRate = 0.01,
    momentum: float = 0.9,
    *,
    beta2: float = 0.99,
    tau: float = 1e-3,
) -> optax.GradientTransformation:
    """Yogi on the server (Reddi et al. 2021): ``s' = s - (1 - β₂) g² sign(s - g²)``.

    Args:
        learning_rate: η, a number or a schedule over rounds.
        momentum: β in [0, 1).
        beta2: β₂, the share of the second moment that stays.
        tau: τ in the denominator, √s + τ.

    Returns:
        An optax transformation on the pseudo-gradient.

    Examples:
        >>> optimizer = fedyogi(learning_rate=0.1, momentum=0.0, beta2=0.75)
        >>> updates, _ = optimizer.update(jnp.full(1, 50.0), optimizer.init(jnp.zeros(1)))
        >>> round(float(updates[0]), 3)  # its first step is Adam's
        -0.2
    """
    check_share("beta2", beta2)

    def square(s: jax.Array, g: jax.Array) -> jax.Array:
        return s - (1 - beta2) * g * g * jnp.sign(s - g * g)

    return _adaptive(learning_rate, momentum, tau, square)


def _adaptive(
    learning_rate: LearningRate,
    momentum: float,
    tau: float,
    square: Callable[[jax.Array, jax.Array], jax.Array],
) -> optax.GradientTransformation:
    """Reddi et al.'s Algorithm 2: ``m' = β m + (1 - β) g``, ``w' = w - η m' / (√s' + τ)``.

    As published: no bias correction, and s starts at τ².
    """
    check_rate(learning_rate)
    check_share("momentum", momentum)
    check_positive("tau", tau)

    def init(params: Params) -> AdaptiveState:
        return AdaptiveState(
            jnp.zeros([], jnp.int32),
            jax.tree.map(jnp.zeros_like, params),
            jax.tree.map(lambda p: jnp.full_like(p, tau**2), params),
        )

    def update(
        g: Params, state: AdaptiveState, _params: Params | None = None
    ) -> tuple[Params, AdaptiveState]:
        step = learning_rate(state.rounds) if callable(learning_rate) else learning_rate
        mean = jax.tree.map(lambda m, g: momentum * m + (1 - momentum) * g, state.mean, g)
        second = jax.tree.map(square, state.square, g)
        updates = jax.tree.map(lambda m, s: -step * m / (jnp.sqrt(s) + tau), mean, second)
        return updates, AdaptiveState(optax.safe_increment(state.rounds), mean, second)

    return optax.GradientTransformation(init, update)


class AveragedState(NamedTuple):
    """Rounds done, the optimizer's own state, and the mean of the models so far."""

    rounds: jax.Array
    optimizer: optax.OptState
    mean: Params


@checked
def averaged(optimizer: Server | optax.GradientTransformation, decay: float) -> Server:
    """Let any server also keep a mean of its models, and train as it would without.

    After t rounds the mean weighs the model after round s by ``decay^(t-s)``, and the weights
    add up to one: about the last 1/(1-decay) models count. Before the first round it is w_0.
    The mean is what is evaluated and kept. It is a server, not an optax transformation, since
    a transformation does not see the models: what follows it in a chain changes them.

    Args:
        optimizer: A ``Server`` or an optax optimizer.
        decay: In (0, 1); 0.99 averages about 100 rounds.

    Returns:
        A server.

    Examples:
        >>> server = averaged(optax.sgd(1.0), decay=0.9)
        >>> params, state, _ = server.step(jnp.ones(1), server.init(jnp.zeros(1)), jnp.zeros(1))
        >>> float(params[0]), round(float(server.model(params, state)[0]), 3)
        (-1.0, -1.0)
    """
    if not 0 < decay < 1:
        raise FedMomError(
            f"average {decay} is not between 0 and 1. 0.99 averages about 100 rounds."
        )
    server = as_server(optimizer)

    def init(params: Params) -> AveragedState:
        return AveragedState(jnp.zeros([], jnp.int32), server.init(params), params)

    def step(
        aggregate: Params, state: AveragedState, params: Params
    ) -> tuple[Params, AveragedState, Reported]:
        params, inner, metrics = server.step(aggregate, state.optimizer, params)
        rounds = optax.safe_increment(state.rounds)
        # 1 - decay^t by expm1: the difference itself loses digits where decay is near one.
        newest = (1 - decay) / -jnp.expm1(rounds * math.log(decay))
        mean = jax.tree.map(lambda m, w: m + newest * (w - m), state.mean, params)
        return params, AveragedState(rounds, inner, mean), metrics

    def broadcast(params: Params, state: AveragedState) -> Any:
        return server.broadcast(params, state.optimizer)

    def model(_params: Params, state: AveragedState) -> Params:
        return state.mean

    return Server(init, step, broadcast, model, server.norm)
