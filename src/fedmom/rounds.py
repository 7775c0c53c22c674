"""The one round loop, shared by every runtime."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedmom.errors import FedMomError
from fedmom.models.base import Model, Params
from fedmom.sampling import cohort, init_key

Weighting = Literal["population", "cohort", "uniform"]


class State(NamedTuple):
    """All that a run carries from round to round: rounds done, model, server optimizer."""

    round: int
    params: Params
    server: optax.OptState


class Reply(NamedTuple):
    """What comes back from a client: ``w_t - w_{t+1}^k``, its norm, the mean local loss."""

    client: int
    delta: Params
    loss: float
    norm: float


class Runtime(Protocol):
    """Where clients live. A client that fails does not come back."""

    def replies(self, params: Params, round_: int, clients: NDArray[np.int64]) -> Iterator[Reply]:
        """Send the model to the clients and yield their replies."""
        ...


@dataclass(frozen=True)
class Record:
    """One round, as it is logged. ``cohort`` holds the clients that were asked."""

    round: int
    cohort: list[int]
    replies: int
    train_loss: float | None
    update_norm: float
    seconds: float
    bytes_up: int
    bytes_down: int


def start(model: Model, server: optax.GradientTransformation, seed: int) -> State:
    """Return the state before the first round."""
    params = model.init(init_key(seed))
    return State(0, params, server.init(params))


def train(
    state: State,
    runtime: Runtime,
    server: optax.GradientTransformation,
    *,
    samples: NDArray[np.int64],
    rounds: int,
    clients_per_round: int,
    weighting: Weighting = "population",
    seed: int = 0,
) -> Iterator[tuple[State, Record]]:
    """Yield (state, record) after every round until ``rounds`` rounds are done.

    ``samples`` is the training size of every client of the population. What happens between
    rounds (evaluation, checkpoints, stopping) is the caller's own ``for``.
    """
    clients = len(samples)
    if not 1 <= clients_per_round <= clients:
        raise FedMomError(
            f"clients-per-round {clients_per_round} is not between 1 and the {clients} clients."
        )
    population = int(samples.sum())
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    step = _compile_step(server)
    while state.round < rounds:
        began = time.perf_counter()
        chosen = cohort(seed, state.round, clients, clients_per_round)
        mean = _Mean(weighting, population)
        for reply in runtime.replies(state.params, state.round, chosen):
            _check_finite(reply, state.round)
            mean.add(reply, int(samples[reply.client]))
        params, server_state, norm = step(state.params, state.server, *mean.gradient(state.params))
        state = State(state.round + 1, params, server_state)
        yield (
            state,
            Record(
                round=state.round,
                cohort=chosen.tolist(),
                replies=mean.replies,
                train_loss=mean.loss(),
                update_norm=_finite(float(norm), state.round),
                seconds=time.perf_counter() - began,
                bytes_up=size * mean.replies,
                bytes_down=size * len(chosen),
            ),
        )


class _Mean:
    """g_t as replies come in: one running sum, whatever the number of clients."""

    def __init__(self, weighting: Weighting, population: int) -> None:
        self.weighting, self.population = weighting, population
        self.sum: Params | None = None
        self.weight = 0.0
        self.losses = 0.0
        self.replies = 0

    def add(self, reply: Reply, samples: int) -> None:
        weight = 1.0 if self.weighting == "uniform" else float(samples)
        self.sum = (
            _scaled(reply.delta, weight)
            if self.sum is None
            else _add_scaled(self.sum, reply.delta, weight)
        )
        self.weight += weight
        self.losses += weight * reply.loss
        self.replies += 1

    def gradient(self, params: Params) -> tuple[Params, float]:
        """Return (Σ a_k Δ_k, 1 / Σ a_k): the sum, and what makes it a mean of the named kind."""
        if self.sum is None:  # nobody came back: w^k = w for all, so g = 0
            return jax.tree.map(jnp.zeros_like, params), 1.0
        total = float(self.population) if self.weighting == "population" else self.weight
        return self.sum, 1.0 / total

    def loss(self) -> float | None:
        return self.losses / self.weight if self.replies else None


@jax.jit
def _scaled(delta: Params, weight: float) -> Params:
    return jax.tree.map(lambda d: d * weight, delta)


@jax.jit
def _add_scaled(total: Params, delta: Params, weight: float) -> Params:
    return jax.tree.map(lambda t, d: t + d * weight, total, delta)


def _compile_step(server: optax.GradientTransformation) -> Any:
    @jax.jit
    def step(
        params: Params, state: optax.OptState, total: Params, scale: float
    ) -> tuple[Params, optax.OptState, jax.Array]:
        gradient = jax.tree.map(lambda t: t * scale, total)
        updates, state = server.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, optax.tree.norm(gradient)

    return step


def _check_finite(reply: Reply, round_: int) -> None:
    if not (math.isfinite(reply.loss) and math.isfinite(reply.norm)):
        raise FedMomError(
            f"Round {round_ + 1}: client {reply.client} sent back a model that is not finite"
            f" (loss {reply.loss:.3g}). Training diverged: take a smaller --lr or --server-lr,"
            " or fewer local steps."
        )


def _finite(norm: float, round_: int) -> float:
    if not math.isfinite(norm):
        raise FedMomError(f"Round {round_}: the update is not finite. Take a smaller --lr.")
    return norm
