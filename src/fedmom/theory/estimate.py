"""The theory's constants on a real task: measured at some models, clients and samples.

All of them are local. The theorems ask for constants that hold at every model; what is seen at
the models of one short run, on some clients and samples, can only be smaller.

- L: power iteration on the Hessian of every drawn client's loss, and of f, at a few models. The
  norm |Hv| of a unit vector is never above the largest |eigenvalue| and rises towards it.
- σ²: from pairs of batches of a client. |g - g'|²/2 has the mean E|g - ∇f_k|², without bias and
  without ∇f_k; σ² is the mean over clients, weighted by p_k, at that of the few models where it
  is largest.
- G² and B²: of Σ p_k|∇f_k|² ≤ G² + B²|∇f|². B² is the slope of the straight line closest (by
  least squares) to the observed points, at least 1; G² is the smallest that then covers them all.
- f_inf: the lowest loss seen. The true one is lower, so the gap f(w_0) - f_inf is at least this.

``intervals`` says what the 90 % intervals are of. L has a lower end only, the value itself:
no sample of clients tells how large the largest of all may be.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedmom.algorithms.client import LocalWork
from fedmom.core.errors import FedMomError
from fedmom.core.prng import hessian_key
from fedmom.core.types import Params
from fedmom.data.federated import FederatedData
from fedmom.experiments.build import Experiment
from fedmom.models.base import Model
from fedmom.runtimes.local import LocalRuntime
from fedmom.theory.budgets import Budget, Tick
from fedmom.theory.constants import Constants
from fedmom.theory.intervals import Estimate, Measured, summarize
from fedmom.training.subproblem import Subproblem

Floats = NDArray[np.float64]

ITERATIONS = 20  # of the power iteration, at most
RISE = 0.005  # it ends when |Hv| rises by less than this, relatively
GRADIENTS = 13  # models along a run at which gradients are looked at


@dataclass(frozen=True)
class Estimates:
    """What was measured, and on what."""

    smoothness: Estimate  # L, the largest over clients and models
    smoothness_of_f: float  # the largest over models
    variance: Estimate  # σ², of a batch
    largest_variance: float  # of one client
    dissimilarity: Estimate  # G²
    similarity: Estimate  # B²
    gap: Estimate  # f(w_0) - f_inf
    first_loss: float
    lowest_loss: float
    batch_size: int | None
    clients: int
    samples: int
    rounds: list[int]  # of the models, for G², B² and f_inf
    models: int  # of them, for L and σ²
    smoothness_of_clients: list[float] | None = None  # ends of the middle 90 % of their L

    def constants(self) -> Constants:
        """Return the values for the bounds."""
        return Constants(
            smoothness=self.smoothness.value,
            variance=self.variance.value,
            gap=self.gap.value,
            dissimilarity=self.dissimilarity.value,
            similarity=self.similarity.value,
        )

    def row(self) -> dict[str, Any]:
        """Return everything as plain numbers, for JSON."""
        return asdict(self)


def from_row(row: Mapping[str, Any]) -> Estimates:
    """Return the estimates that ``row`` gave."""
    values: dict[str, Any] = {
        name: Estimate(**value) if isinstance(value, dict) else value for name, value in row.items()
    }
    return Estimates(**values)


def walk(experiment: Experiment, rounds: int) -> Iterator[tuple[int, Params]]:
    """Yield (rounds done, model) of a short run, from the first model on."""
    state, runtime = experiment.start(), experiment.runtime()
    try:
        yield 0, state.params
        for done, _ in experiment.train(state, runtime, rounds):
            yield done.round, done.params
    finally:
        runtime.close()


def spaced(rounds: int, models: int) -> list[int]:
    """Return the rounds, from 0 to the last, at which so many models are looked at."""
    return sorted({round(t) for t in np.linspace(0, rounds, models)})


def estimate(
    model: Model,
    data: FederatedData,
    models: Mapping[int, Params],
    *,
    batch_size: int | None = 10,
    budget: Budget | None = None,
    seed: int = 0,
    tick: Tick = lambda: None,
) -> Estimates:
    """Estimate the constants along a run, of which models are given by their rounds.

    All models serve for G², B² and f_inf, and as many as the ``budget`` has, evenly spaced, for
    L and σ². ``batch_size`` None means full gradients, whose variance is 0.
    """
    budget = budget or Budget()
    sample = Subproblem(model, data, clients=budget.clients, samples=budget.samples, seed=seed)
    noise = _Noise(model, data, batch_size, sample, budget.pairs, seed)
    curvature = _Curvature(sample, seed)
    rounds = sorted(models)
    slopes = [_Gradients(*_gradients_at(sample, models[t])) for t in rounds]
    few = [models[rounds[i]] for i in spaced(len(rounds) - 1, budget.models)]
    curvatures = [_Curvatures(noise(w, tick), *curvature(w, tick)) for w in few]
    share = len(sample.clients) / data.clients
    return _summed_up(slopes, curvatures, sample, share, rounds, batch_size, seed)


@dataclass(frozen=True)
class _Gradients:
    """What gradients show at one model; arrays are over the drawn clients."""

    losses: Floats
    products: Floats  # <∇f_i, ∇f_j>


@dataclass(frozen=True)
class _Curvatures:
    """What batches and Hessians show at one model."""

    variances: Floats
    smoothness: Floats
    smoothness_of_f: float


def _gradients_at(sample: Subproblem, params: Params) -> tuple[Floats, Floats]:
    """Return the clients' losses, and the inner products of their gradients."""
    found = [sample.gradient(params, k) for k in range(len(sample.clients))]
    rows = jnp.stack([jax.flatten_util.ravel_pytree(g)[0] for _, g in found])
    losses = np.array([float(loss) for loss, _ in found])
    if not np.isfinite(losses).all():
        raise FedMomError("A client's loss is not finite. Take a smaller --lr.")
    return losses, np.asarray(rows @ rows.T, np.float64)


class _Noise:
    """The variance of batch gradients, from pairs of batches that the clients draw themselves."""

    def __init__(
        self,
        model: Model,
        data: FederatedData,
        batch_size: int | None,
        sample: Subproblem,
        pairs: int,
        seed: int,
    ) -> None:
        # One step of size 1 sends back the gradient of a batch; a round's number names the batch.
        work = LocalWork(lr=1.0, steps=1, batch_size=batch_size)
        self._runtime = LocalRuntime(data, model, work, seed=seed, workers=1)
        self._clients, self._pairs = sample.clients, pairs if batch_size else 0

    def __call__(self, params: Params, tick: Tick) -> Floats:
        """Return the variance for every drawn client."""
        found = np.zeros(len(self._clients))
        for i in range(len(self._clients)):
            for pair in range(self._pairs):
                a, b = (self._gradient(params, 2 * pair + j, i) for j in range(2))
                found[i] += float(_distance(a, b)) ** 2 / 2 / self._pairs
            tick()
        return found

    def _gradient(self, params: Params, batch: int, client: int) -> Params:
        self._runtime.ask(batch, self._clients[client : client + 1], params)
        (block,) = self._runtime.replies()
        return block.update


class _Curvature:
    """Power iteration; the vectors found at one model are where it starts at the next."""

    def __init__(self, sample: Subproblem, seed: int) -> None:
        self._sample = sample
        self._key = hessian_key(seed)
        self._vectors: dict[int | None, Params] = {}

    def __call__(self, params: Params, tick: Tick) -> tuple[Floats, float]:
        """Return L of every drawn client, and of f."""

        def largest(client: int | None) -> float:
            found = self._largest(params, client)
            tick()
            return found

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            clients = list(pool.map(largest, range(len(self._sample.clients))))
        return np.array(clients), largest(None)

    def _largest(self, params: Params, client: int | None) -> float:
        vector = self._vectors.get(client)
        if vector is None:
            vector = direction(self._key, params)
        seen = 0.0
        for _ in range(ITERATIONS):
            vector, norm = self._sample.hessian_product(params, vector, client)
            before, seen = seen, max(seen, float(norm))
            if seen <= before * (1 + RISE):
                break
        self._vectors[client] = vector
        return seen


def direction(key: jax.Array, params: Params) -> Params:
    """Return a random unit vector in the form of the parameters."""
    leaves, form = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    drawn = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    norm = optax.tree.norm(drawn)
    return jax.tree.unflatten(form, [leaf / norm for leaf in drawn])


@jax.jit
def _distance(a: Params, b: Params) -> jax.Array:
    return optax.tree.norm(jax.tree.map(jnp.subtract, a, b))


def _summed_up(
    slopes: list[_Gradients],
    curvatures: list[_Curvatures],
    sample: Subproblem,
    share: float,
    rounds: list[int],
    batch_size: int | None,
    seed: int,
) -> Estimates:
    seen = Measured(
        losses=np.array([slope.losses for slope in slopes]),
        products=np.array([slope.products for slope in slopes]),
        variances=np.array([each.variances for each in curvatures]),
        weights=sample.weights,
        share=share,
    )
    variance, dissimilarity, similarity, gap = summarize(seen, seed)
    smoothness = np.array([each.smoothness for each in curvatures])
    largest = float(smoothness.max())
    losses = seen.losses @ sample.weights
    return Estimates(
        smoothness=Estimate(largest, largest, None),
        smoothness_of_f=max(each.smoothness_of_f for each in curvatures),
        variance=variance,
        largest_variance=float(seen.variances.max()),
        dissimilarity=dissimilarity,
        similarity=similarity,
        gap=gap,
        first_loss=float(losses[0]),
        lowest_loss=float(losses.min()),
        batch_size=batch_size,
        clients=len(sample.clients),
        samples=int(sample.taken.sum()),
        rounds=rounds,
        models=len(curvatures),
        smoothness_of_clients=np.percentile(smoothness.max(axis=0), (5, 95)).tolist(),
    )
