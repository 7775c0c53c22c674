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
from fedmom.models.rewriting import fast
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
        if model.adapted is not None:
            raise FedMomError(
                "Gradients over many clients, for diagnostics and theory, are of models that are"
                " trained as a whole; this one has frozen parameters. Leave --diagnostics out."
            )
        self.clients = cohort(seed, DRAW, data.clients, min(clients, data.clients))
        self.start = data.train.start[self.clients]
        self.size = data.train.size[self.clients]
        self.taken = np.minimum(self.size, samples)
        self.weights = self.size / self.size.sum()
        self.arrays = place(data.arrays)
        self._gradient, self._hessian_product = _compile(model, reader(data.features))
        drawn = np.stack([self.start, self.size, self.taken, self.clients], axis=1).tolist()
        positions = [start + thinned(n, taken, k, seed) for start, n, taken, k in drawn]
        most = int(self.taken.max())
        self._rows = [_padded(each, np.full(len(each), 1 / len(each)), most) for each in positions]
        weights = np.repeat(self.weights / self.taken, self.taken)
        self._union = _padded(np.concatenate(positions), weights, len(weights))

    def gradient(self, params: Params, client: int | None = None) -> tuple[jax.Array, Params]:
        """Return the loss and gradient of f, or of the drawn client of this number."""
        return self._gradient(params, self.arrays, self._of(client))

    def hessian_product(
        self, params: Params, vector: Params, client: int | None = None
    ) -> tuple[Params, jax.Array]:
        """Return the Hessian's product with a vector, scaled to norm 1, and its norm."""
        return self._hessian_product(params, self.arrays, self._of(client), vector)

    def _of(self, client: int | None) -> WeightedSamples:
        return self._union if client is None else self._rows[client]


@lru_cache(maxsize=16)  # samples of one process share them
def _compile(model: Model, read: Reader) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the programs for gradients, and for products of the Hessian."""

    def loss(w: Params, arrays: Arrays, positions: jax.Array, weights: jax.Array) -> jax.Array:
        x, y = read(arrays, positions)
        return jnp.dot(weights, model.losses(model.apply(w, x, None), y))

    def summed(part: Callable[..., Any], w: Params, samples: WeightedSamples) -> Any:
        """Add up a function of the samples, chunk by chunk."""
        rows = samples.positions.reshape(-1, CHUNK), samples.weights.reshape(-1, CHUNK)
        zero = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
            jax.eval_shape(lambda: part(w, rows[0][0], rows[1][0])),
        )

        def add(i: jax.Array, total: Any) -> Any:
            return jax.tree.map(jnp.add, total, part(w, rows[0][i], rows[1][i]))

        return jax.lax.fori_loop(0, samples.chunks, add, zero)

    def gradient(w: Params, arrays: Arrays, samples: WeightedSamples) -> tuple[jax.Array, Params]:
        def part(w: Params, p: jax.Array, a: jax.Array) -> Any:
            return jax.value_and_grad(loss)(w, arrays, p, a)

        return summed(part, w, samples)

    def hessian_product(
        w: Params, arrays: Arrays, samples: WeightedSamples, vector: Params
    ) -> tuple[Params, jax.Array]:
        # The derivative of the gradient along the vector: forward over reverse, which custom
        # gradients (the LSTM's) allow, where the derivative of the model itself does not.
        def part(w: Params, p: jax.Array, a: jax.Array) -> Params:
            return jax.jvp(lambda w: jax.grad(loss)(w, arrays, p, a), (w,), (vector,))[1]

        product = summed(part, w, samples)
        norm = optax.tree.norm(product)
        return jax.tree.map(lambda v: v / jnp.where(norm > 0, norm, 1), product), norm

    return jax.jit(fast(gradient, model)), jax.jit(fast(hessian_product, model))


def _padded(
    positions: NDArray[np.int64], weights: NDArray[np.float64], most: int
) -> WeightedSamples:
    """Return samples in chunks, with room for as many as there are at the most."""
    beyond = (0, -(-most // CHUNK) * CHUNK - len(positions))
    rows = np.pad(positions, beyond, mode="edge").astype(np.int32)
    weights = np.pad(weights, beyond)
    return WeightedSamples(rows, weights.astype(np.float32), -(-len(positions) // CHUNK))
