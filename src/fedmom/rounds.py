"""The one round loop, shared by every runtime."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedmom.errors import FedMomError
from fedmom.models.base import Model, Params
from fedmom.sampling import cohort, init_key
from fedmom.server import AveragedState

Weighting = Literal["population", "cohort", "uniform"]


class State(NamedTuple):
    """All that a run carries from round to round: rounds done, model, server optimizer."""

    round: int
    params: Params
    server: optax.OptState


def model_of(state: State) -> Params:
    """Return the model to evaluate and to keep: the mean of models where the server keeps one."""
    return state.server.mean if isinstance(state.server, AveragedState) else state.params


class Reply(NamedTuple):
    """What comes back from a client: ``w_t - w_{t+1}^k``, the mean local loss, the first's norm.

    A runtime may hand out arrays that are still being computed; the loop waits once a round.
    """

    client: int
    delta: Params
    loss: float | jax.Array
    norm: float | jax.Array


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
    # Bound to its device like what comes out of a round, or the second round compiles again.
    state = jax.device_put(state, jax.devices()[0])._replace(round=state.round)
    following = cohort(seed, state.round, clients, clients_per_round)
    while state.round < rounds:
        began = time.perf_counter()
        chosen = following
        sums = _Sums(weighting)
        for reply in runtime.replies(state.params, state.round, chosen):
            sums.add(reply, int(samples[reply.client]))
        scale = sums.scale(population)
        params, server_state, numbers = step(state.params, state.server, *sums.parts(), scale)
        # Drawn while the step is computed: a draw takes a fifth of the quickest rounds' time.
        following = cohort(seed, state.round + 1, clients, clients_per_round)
        loss, norm = np.asarray(numbers).tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise sums.diverged(state.round)
        state = State(state.round + 1, params, server_state)
        yield (
            state,
            Record(
                round=state.round,
                cohort=chosen.tolist(),
                replies=len(sums.replies),
                train_loss=loss / sums.weight if sums.replies else None,
                update_norm=norm,
                seconds=time.perf_counter() - began,
                bytes_up=size * len(sums.replies),
                bytes_down=size * len(chosen),
            ),
        )


Total = tuple[Params, jax.Array]  # Σ a_k Δ_k and Σ a_k loss_k


class _Sums:
    """The replies of a round: a running sum, and the few that are not in it yet.

    They are added up in the order they come, several in one compiled call, so that a small
    cohort costs no call of its own and a large one no more memory.
    """

    AT_ONCE = 8

    def __init__(self, weighting: Weighting) -> None:
        self._weighting = weighting
        self._total: Total | None = None
        self._waiting: list[tuple[Params, float | jax.Array, float]] = []
        self.replies: list[tuple[int, float | jax.Array, float | jax.Array]] = []
        self.weight = 0.0

    def add(self, reply: Reply, samples: int) -> None:
        weight = 1.0 if self._weighting == "uniform" else float(samples)
        self.weight += weight
        self.replies.append((reply.client, reply.loss, reply.norm))
        self._waiting.append((reply.delta, reply.loss, weight))
        if len(self._waiting) == self.AT_ONCE:
            self._total = _added(*self.parts())
            self._waiting = []

    def parts(self) -> tuple[Total | None, Any, Any, NDArray[np.float32]]:
        deltas, losses, weights = zip(*self._waiting, strict=True) if self._waiting else ((),) * 3
        return self._total, deltas, losses, np.array(weights, np.float32)

    def scale(self, population: int) -> float:
        """Return what makes the sum a mean of the named kind; without replies, g is 0."""
        return 1.0 / (population if self._weighting == "population" else self.weight or 1.0)

    def diverged(self, round_: int) -> FedMomError:
        """Name the client whose model is not finite, if it was one."""
        for client, loss, norm in self.replies:
            if not (math.isfinite(float(loss)) and math.isfinite(float(norm))):
                whose = f"client {client} sent back a model that is not finite"
                break
        else:
            whose = "the update is not finite"
        return FedMomError(
            f"Round {round_ + 1}: {whose}. Training diverged: take a smaller --lr or --server-lr,"
            " or fewer local steps."
        )


def _sum(total: Total | None, deltas: Any, losses: Any, weights: jax.Array) -> Total | None:
    for i, (delta, loss) in enumerate(zip(deltas, losses, strict=True)):
        weighted = jax.tree.map(lambda d: d * weights[i], (delta, jnp.asarray(loss)))  # noqa: B023
        total = weighted if total is None else jax.tree.map(jnp.add, total, weighted)
    return total


_added = jax.jit(_sum)


@lru_cache(maxsize=16)
def _compile_step(server: optax.GradientTransformation) -> Any:
    @jax.jit
    def step(
        params: Params,
        state: optax.OptState,
        total: Total | None,
        deltas: Any,
        losses: Any,
        weights: jax.Array,
        scale: float,
    ) -> tuple[Params, optax.OptState, jax.Array]:
        whole = _sum(total, deltas, losses, weights)
        if whole is None:  # nobody came back: w^k = w for all, so g = 0
            whole = jax.tree.map(jnp.zeros_like, params), jnp.zeros(())
        gradient = jax.tree.map(lambda d: d * scale, whole[0])
        updates, state = server.update(gradient, state, params)
        numbers = jnp.stack([whole[1], optax.tree.norm(gradient)])
        return optax.apply_updates(params, updates), state, numbers

    return step
