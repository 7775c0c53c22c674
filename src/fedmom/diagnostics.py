"""Live diagnostics of a run: how its updates relate to the gradient, and clients to one another.

They look on from outside: the runtime's replies pass through untouched, so that a run has the
same bits with them and without. Which rounds are looked at follows from the settings alone,
never from a clock, so that the log of a resumed or repeated run is the same as well.
"""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedmom.clients import LocalWork
from fedmom.data.federated import FederatedData
from fedmom.models.base import Model, Params
from fedmom.rounds import Record, Reply, Runtime, Weighting
from fedmom.theory.sample import Sample

# What keeps the cost below a tenth of the run's time. A look has fixed costs like those of one
# or two of the quickest rounds there are, so it comes at most every 15 rounds. Its gradient is
# counted in samples against one client's work, as if all of a round's clients ran side by side.
APART = 15
SHARE = 0.05
LOOKS = 50  # in a long run
FEWEST, MOST = 128, 1024  # samples in the full gradient
PER_CLIENT = 4  # of them: many clients with few samples each show best what f is


def plan(work: LocalWork, sizes: NDArray[np.int64], rounds: int) -> int:
    """Return the rounds between looks, for clients of these sizes."""
    return max(APART, rounds // LOOKS, math.ceil(FEWEST / (SHARE * _gradients(work, sizes))))


class Diagnostics:
    """A runtime that takes notes of every ``every``-th round, the first one included.

    The full gradient ∇f is that of a fixed sample of clients, some samples of each (see
    ``fedmom.theory.sample``).
    """

    def __init__(
        self,
        runtime: Runtime,
        data: FederatedData,
        model: Model,
        work: LocalWork,
        *,
        every: int,
        weighting: Weighting,
        seed: int,
    ) -> None:
        self._runtime, self._every = runtime, every
        self._sizes, self._weighting = data.train.size, weighting
        self._population = int(self._sizes.sum())
        samples = int(min(MOST, max(FEWEST, SHARE * every * _gradients(work, self._sizes))))
        clients = min(data.clients, samples // PER_CLIENT)
        self.sample = Sample(model, data, clients=clients, samples=samples // clients, seed=seed)
        self._look: _Look | None = None

    def replies(self, params: Params, round_: int, clients: NDArray[np.int64]) -> Iterator[Reply]:
        """Pass the runtime's replies on, noting what they are in a round that is due."""
        replies = self._runtime.replies(params, round_, clients)
        if round_ % self._every:
            self._look = None
            return replies
        self._look = _Look(params, self.sample.gradient(params)[1])
        return self._look.through(replies)

    def of(self, record: Record, params: Params) -> dict[str, float] | None:
        """Return the numbers of the round just done, with the model after it; None if not due.

        gradient_norm: |∇f(w_t)|. alignment: the cosine of g_t and ∇f(w_t). drift, drift_max:
        |w_t - w^k_{t+1}|, mean and largest over the cohort. dissimilarity: Σ a_k|Δ_k|² over
        |Σ a_k Δ_k|² for the updates Δ_k and their weights a_k in the cohort, 1 if all are equal
        and the cohort's size if they are orthogonal and alike in length. step: |w_{t+1} - w_t|.
        step_ratio: step / |g_t|, the server step that would have gone as far: η for FedAvg, and
        near η/(1-β) for momentum while updates keep their direction. What there is nothing to
        compare with, because nobody replied or nothing moved, is left out.
        """
        look, self._look = self._look, None
        if look is None:
            return None
        full, step, *rest = np.asarray(look.numbers(params), np.float64).tolist()
        found = {"gradient_norm": full, "step": step}
        update = record.update_norm
        if not (look.clients and update > 0):
            return found
        norms, products = np.reshape(rest, (2, -1))
        weights = np.ones(len(norms))
        if self._weighting != "uniform":
            weights = self._sizes[look.clients].astype(np.float64)
        total = self._population if self._weighting == "population" else weights.sum()
        mean = update * total / weights.sum()  # |Σ a_k Δ_k|, with weights that add up to 1
        if full > 0:
            found["alignment"] = float(weights @ products) / total / update / full
        return found | {
            "drift": float(norms.mean()),
            "drift_max": float(norms.max()),
            "dissimilarity": float(weights @ norms**2 / weights.sum()) / mean**2,
            "step_ratio": step / update,
        }


class _Look:
    """One round: where it began, and two numbers for each reply, but no reply itself."""

    def __init__(self, params: Params, gradient: Params) -> None:
        self._params, self._gradient = params, gradient
        self.clients: list[int] = []
        self._norms: list[float | jax.Array] = []
        self._products: list[jax.Array] = []

    def through(self, replies: Iterator[Reply]) -> Iterator[Reply]:
        for reply in replies:
            self.clients.append(reply.client)
            self._norms.append(reply.norm)
            self._products.append(_product(reply.delta, self._gradient))
            yield reply

    def numbers(self, params: Params) -> jax.Array:
        """Return |∇f|, |w_{t+1} - w_t|, then the replies' norms, then their products with ∇f."""
        replies = self._norms + self._products
        return _numbers(self._gradient, self._params, params, replies)


def _gradients(work: LocalWork, sizes: NDArray[np.int64]) -> float:
    """Return how many gradients of one sample a client of mean size takes in a round."""
    mean = float(sizes.mean())
    return work.count(0, round(mean)) * (work.batch_size or mean)


@jax.jit
def _product(a: Params, b: Params) -> jax.Array:
    return optax.tree.vdot(a, b)


@jax.jit
def _numbers(
    gradient: Params, before: Params, after: Params, replies: list[float | jax.Array]
) -> jax.Array:
    step = jax.tree.map(jnp.subtract, after, before)
    return jnp.stack([optax.tree.norm(gradient), optax.tree.norm(step), *replies])
