"""A smaller problem that stands for the whole: some of the clients, some of their samples.

Full gradients and curvatures of a whole population cost as much as many rounds. Here they are
those of the smaller problem f = Σ p_k f_k over the drawn clients, with p_k = n_k over the drawn
clients' samples and f_k the mean loss over the samples taken; dropout is off.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedmom.algorithms.client import CHUNK
from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.data.batches import Arrays, Reader, place, reader, thinned
from fedmom.data.federated import FederatedData
from fedmom.models.base import Model
from fedmom.training.samplers import cohort

DRAW = 2**62  # in place of a round's number: one that no run reaches


class WeightedSamples(NamedTuple):
    """Positions of samples, their weights in a mean, and how many chunks of them are real."""

    positions: NDArray[np.int32]
    weights: NDArray[np.float32]
    chunks: int


class Subproblem:
    """The smaller problem. Equal arguments draw equal ones.

    Clients are drawn uniformly without replacement; of a client with more than ``samples``
    samples, that many are drawn at random.
    """

    def __init__(
        self, model: Model, data: FederatedData, *, clients: int, samples: int, seed: int = 0
    ) -> None:
        if model.state is not None:
            raise FedMomError(
                "Gradients over many clients, for diagnostics and theory, are of models without"
                " state; this one has some, such as batch norm's. Leave --diagnostics out."
            )
        self._seed = seed
        self.clients = cohort(seed, DRAW, data.clients, min(clients, data.clients))
        self.start = data.train.start[self.clients]
        self.size = data.train.size[self.clients]
        self.taken = np.minimum(self.size, samples)
        self.weights = self.size / self.size.sum()
        self.arrays = place(data.arrays)
        self._programs = _compile(model, reader(data.features))
        room = _chunks(int(self.taken.max())) * CHUNK
        self._rows = [self._of_client(i, room) for i in range(len(self.clients))]
        self._union = self._of_all()

    def gradient(self, params: Params, client: int | None = None) -> tuple[jax.Array, Params]:
        """Return the loss and gradient of f, or of the drawn client of this number."""
        return self._programs.gradient(params, self.arrays, *self._of(client))

    def hessian_product(
        self, params: Params, vector: Params, client: int | None = None
    ) -> tuple[Params, jax.Array]:
        """Return the Hessian's product with a vector, scaled to norm 1, and its norm."""
        return self._programs.hessian_product(params, self.arrays, *self._of(client), vector)

    def _of(self, client: int | None) -> WeightedSamples:
        return self._union if client is None else self._rows[client]

    def _positions(self, client: int) -> NDArray[np.int64]:
        size, taken = self.size[client], self.taken[client]
        number = int(self.clients[client])
        return self.start[client] + thinned(int(size), int(taken), number, self._seed)

    def _of_client(self, client: int, room: int) -> WeightedSamples:
        positions = self._positions(client)
        return _padded(positions, np.full(len(positions), 1 / len(positions)), room)

    def _of_all(self) -> WeightedSamples:
        positions = np.concatenate([self._positions(i) for i in range(len(self.clients))])
        weights = np.repeat(self.weights / self.taken, self.taken)
        return _padded(positions, weights, _chunks(len(positions)) * CHUNK)


class _Programs(NamedTuple):
    gradient: Callable[..., tuple[jax.Array, Params]]
    hessian_product: Callable[..., tuple[Params, jax.Array]]


@lru_cache(maxsize=16)  # samples of one process share them
def _compile(model: Model, read: Reader) -> _Programs:
    def loss(w: Params, arrays: Arrays, positions: jax.Array, weights: jax.Array) -> jax.Array:
        x, y = read(arrays, positions)
        return jnp.dot(weights, model.losses(model.apply(w, x, None), y))

    def summed(
        part: Callable[..., Any], w: Params, positions: jax.Array, weights: jax.Array, chunks: int
    ) -> Any:
        """Add up a function of the samples, chunk by chunk."""
        rows = positions.reshape(-1, CHUNK), weights.reshape(-1, CHUNK)
        zero = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
            jax.eval_shape(lambda: part(w, rows[0][0], rows[1][0])),
        )

        def add(i: jax.Array, total: Any) -> Any:
            return jax.tree.map(jnp.add, total, part(w, rows[0][i], rows[1][i]))

        return jax.lax.fori_loop(0, chunks, add, zero)

    @jax.jit
    def gradient(
        w: Params, arrays: Arrays, positions: jax.Array, weights: jax.Array, chunks: int
    ) -> tuple[jax.Array, Params]:
        def part(w: Params, p: jax.Array, a: jax.Array) -> Any:
            return jax.value_and_grad(loss)(w, arrays, p, a)

        return summed(part, w, positions, weights, chunks)

    @jax.jit
    def hessian_product(
        w: Params,
        arrays: Arrays,
        positions: jax.Array,
        weights: jax.Array,
        chunks: int,
        vector: Params,
    ) -> tuple[Params, jax.Array]:
        # The derivative of the gradient along the vector: forward over reverse, which custom
        # gradients (the LSTM's) allow, where the derivative of the model itself does not.
        def part(w: Params, p: jax.Array, a: jax.Array) -> Params:
            return jax.jvp(lambda w: jax.grad(loss)(w, arrays, p, a), (w,), (vector,))[1]

        product = summed(part, w, positions, weights, chunks)
        norm = optax.tree.norm(product)
        return jax.tree.map(lambda v: v / jnp.where(norm > 0, norm, 1), product), norm

    return _Programs(gradient, hessian_product)


def _chunks(samples: int) -> int:
    return -(-samples // CHUNK)


def _padded(
    positions: NDArray[np.int64], weights: NDArray[np.float64], room: int
) -> WeightedSamples:
    beyond = (0, room - len(positions))
    return WeightedSamples(
        np.pad(positions, beyond, mode="edge").astype(np.int32),
        np.pad(weights, beyond).astype(np.float32),
        _chunks(len(positions)),
    )
