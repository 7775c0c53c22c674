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

Each has a 90 % confidence interval: of the number that the same measurement, at the same models,
would give on a large population of which the drawn clients are a sample. It reaches from the
estimate up and down by the standard error that 1,000 bootstrap samples of the clients show, times
the quantile of Student's t. The bootstrap's own percentiles would not do: G² and the rest are
largest values, ratios and squares of means, whose bootstrap samples lie to one side of the
estimate, all of them at times. L has a lower end only, the value itself: no sample of clients
tells how large the largest of all may be.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray
from rich.progress import Progress
from scipy.special import stdtrit  # scipy.stats has the same, and loads for a second

from fedmom.algorithms.base import Algorithm
from fedmom.algorithms.local_work import LocalWork
from fedmom.algorithms.server import fedavg
from fedmom.algorithms.workload import Workload
from fedmom.core.errors import FedMomError
from fedmom.core.prng import hessian_key
from fedmom.core.types import Params
from fedmom.data.federated import FederatedData
from fedmom.experiments.build import Experiment
from fedmom.models.base import Model
from fedmom.runtimes.base import Block, Runtime
from fedmom.runtimes.local import LocalRuntime
from fedmom.theory.constants import Array, Constants
from fedmom.theory.measurement_budget import EstimateBudget, Tick
from fedmom.training.subproblem import Subproblem

ITERATIONS = 20  # of the power iteration, at most
RISE = 0.005  # it ends when |Hv| rises by less than this, relatively
GRADIENTS = 13  # models along a run at which gradients are looked at
BOOTSTRAPS = 1000
LEVEL = 0.9  # of every interval
SMALL = 0.1  # of what it is a part of: below this, G² varies by differences, not by factors


@dataclass(frozen=True)
class Estimate:
    """A number, and an interval that contains it; ``high`` is None if there is no upper end."""

    value: float
    low: float
    high: float | None


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
        return Constants(**{own.name: getattr(self, own.name).value for own in fields(Constants)})


def from_row(row: Mapping[str, Any]) -> Estimates:
    """Return the estimates that ``asdict`` gave."""
    parts: dict[str, Any] = {k: Estimate(**v) if isinstance(v, dict) else v for k, v in row.items()}
    return Estimates(**parts)


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
    """Return the rounds, from 0 to the last, at which ``models`` models are measured."""
    return sorted({round(t) for t in np.linspace(0, rounds, models)})


def estimate_task(
    experiment: Experiment, budget: EstimateBudget, rounds: int, bar: Progress
) -> Estimates:
    """Estimate the constants of a task along a short run of it."""
    looks = spaced(rounds, max(GRADIENTS, budget.models))
    task = bar.add_task("short run", total=rounds + 1)
    models: dict[int, Params] = {}
    for t, params in walk(experiment, rounds):
        if t in looks:
            models[t] = params
        bar.advance(task)
    task = bar.add_task("estimates", total=budget.steps(experiment.data.clients))
    return estimate(
        experiment.model,
        experiment.data,
        models,
        batch_size=experiment.work.batch_size,
        budget=budget,
        seed=experiment.config.seed,
        tick=lambda: bar.advance(task),
    )


def estimate(
    model: Model,
    data: FederatedData,
    models: Mapping[int, Params],
    *,
    batch_size: int | None = 10,
    budget: EstimateBudget | None = None,
    seed: int = 0,
    tick: Tick = lambda: None,
) -> Estimates:
    """Estimate the constants along a run, of which models are given by their rounds.

    All models serve for G², B² and f_inf, and as many as the ``budget`` has, evenly spaced, for
    L and σ². ``batch_size`` None means full gradients, whose variance is 0.
    """
    budget = budget or EstimateBudget()
    sample = Subproblem(model, data, clients=budget.clients, samples=budget.samples, seed=seed)
    rounds = sorted(models)
    losses, products = zip(*(_gradients(sample, models[t]) for t in rounds), strict=True)
    few = [models[rounds[i]] for i in spaced(len(rounds) - 1, budget.models)]
    work = Algorithm(fedavg(), LocalWork(lr=1.0, steps=1, batch_size=batch_size))
    runtime = LocalRuntime(Workload(data, model, work, seed), workers=1)
    pairs = budget.pairs if batch_size else 0
    smoothness, smoothness_of_f = _smoothness(sample, few, seed, tick)
    seen = Measured(
        losses=np.array(losses),
        products=np.array(products),
        variances=_variances(runtime, sample, few, pairs, tick),
        weights=sample.weights,
        share=len(sample.clients) / data.clients,
    )
    variance, dissimilarity, similarity, gap = summarize(seen, seed)
    largest = smoothness.max(axis=0)  # of every client
    path = seen.losses @ sample.weights
    return Estimates(
        smoothness=Estimate(float(largest.max()), float(largest.max()), None),
        smoothness_of_f=max(smoothness_of_f),
        variance=variance,
        largest_variance=float(seen.variances.max()),
        dissimilarity=dissimilarity,
        similarity=similarity,
        gap=gap,
        first_loss=float(path[0]),
        lowest_loss=float(path.min()),
        batch_size=batch_size,
        clients=len(sample.clients),
        samples=int(sample.taken.sum()),
        rounds=rounds,
        models=len(few),
        smoothness_of_clients=np.percentile(largest, (5, 95)).tolist(),
    )


def _gradients(sample: Subproblem, params: Params) -> tuple[Array, Array]:
    """Return the clients' losses, and the inner products of their gradients."""
    found = [sample.gradient(params, k) for k in range(len(sample.clients))]
    rows = jnp.stack([jax.flatten_util.ravel_pytree(g)[0] for _, g in found])
    losses = np.array([float(loss) for loss, _ in found])
    if not np.isfinite(losses).all():
        raise FedMomError("A client's loss is not finite. Use a smaller --lr.")
    return losses, np.asarray(rows @ rows.T, np.float64)


def batch_gradient(
    runtime: Runtime, batch: int, clients: NDArray[np.int64], params: Params
) -> Params:
    """Return the gradient of a batch of the first of some clients.

    The runtime's work is one step of size 1, which sends it back; a round's number names the batch.
    """
    runtime.ask(batch, clients, params)
    block = next(runtime.replies())
    assert isinstance(block, Block)
    runtime.cancel()
    return jax.tree.map(lambda leaf: leaf[0], block.update)


def _variances(
    runtime: Runtime, sample: Subproblem, models: list[Params], pairs: int, tick: Tick
) -> Array:
    """Return the variance of batch gradients, from pairs of batches, by model and client."""
    found = np.zeros((len(models), len(sample.clients)))
    for m, params in enumerate(models):
        for k in range(len(sample.clients)):
            client = sample.clients[k : k + 1]
            for pair in range(pairs):
                a, b = (batch_gradient(runtime, 2 * pair + j, client, params) for j in range(2))
                found[m, k] += float(_distance(a, b)) ** 2 / 2 / pairs
            tick()
    return found


def _smoothness(
    sample: Subproblem, models: list[Params], seed: int, tick: Tick
) -> tuple[Array, list[float]]:
    """Return L by model and client, and L of f by model.

    The vectors that power iteration finds at one model are where it starts at the next.
    """
    vectors = dict.fromkeys(
        [None, *range(len(sample.clients))], direction(hessian_key(seed), models[0])
    )

    def largest(params: Params, client: int | None) -> float:
        seen = 0.0
        for _ in range(ITERATIONS):
            vectors[client], norm = sample.hessian_product(params, vectors[client], client)
            before, seen = seen, max(seen, float(norm))
            if seen <= before * (1 + RISE):
                break
        tick()
        return seen

    clients, whole = [], []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for params in models:
            clients.append(list(pool.map(partial(largest, params), range(len(sample.clients)))))
            whole.append(largest(params, None))
    return np.array(clients), whole


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


@dataclass(frozen=True)
class Measured:
    """What was seen; the last axis is the drawn clients, the first the models.

    Args:
        losses: f_k(w).
        products: <∇f_i(w), ∇f_j(w)>, with two axes of clients.
        variances: σ² of each client's batches, at some of the models.
        weights: p_k over the drawn clients; its sum is 1.
        share: The drawn part of all clients, in (0, 1].
    """

    losses: Array
    products: Array
    variances: Array
    weights: Array
    share: float = 1.0


def summarize(seen: Measured, seed: int) -> tuple[Estimate, Estimate, Estimate, Estimate]:
    """Return σ², G², B² and f(w_0) - f_inf, each with its interval.

    Args:
        seen: What was measured.
        seed: Of the bootstrap.

    Returns:
        The estimates. Intervals of σ², G² and B² reach up and down by a factor (G² by less if it
        is small next to Σ p_k|∇f_k|²), that of the gap by a difference; none reaches below 0,
        that of B² not below 1.
    """
    size = len(seen.weights)
    draws = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), BOOTSTRAPS)
    samples = draws * seen.weights
    samples /= samples.sum(axis=1, keepdims=True)
    spread = _values(seen, samples, share=1.0)
    values = [float(v[0]) for v in _values(seen, seen.weights[None], seen.share)]
    # Clients of unequal weight count as fewer equal ones would; and a bootstrap sample of n
    # clients spreads by n - 1 of n.
    alike = 1 / float(np.sum(seen.weights**2))
    quantile = float(stdtrit(max(1.0, alike - 1), (1 + LEVEL) / 2))
    reach = quantile * np.sqrt(size / max(1, size - 1))
    variance, dissimilarity, similarity, gap = zip(values, spread, strict=True)
    clients_squares = np.diagonal(seen.products, axis1=1, axis2=2) @ seen.weights
    return (
        _by_factors(*variance, reach),
        _by_factors(*dissimilarity, reach, shift=SMALL * float(clients_squares.max())),
        _by_factors(*similarity, reach, least=1.0),
        _by_differences(*gap, reach),
    )


def fit(gradient_squares: Array, mean_squares: Array) -> tuple[Array, Array]:
    """Return G² and B² for |∇f|² and Σ p_k|∇f_k|² seen at some models, the last axis.

    B² is the slope of the straight line closest by least squares, at least 1; G² is the smallest
    that then covers all models.
    """
    x, y = gradient_squares, mean_squares
    apart = x - x.mean(axis=-1, keepdims=True)
    spread = np.sum(apart**2, axis=-1)
    slope = np.divide(
        np.sum(apart * y, axis=-1), spread, out=np.ones_like(spread), where=spread > 0
    )
    slope = np.maximum(1.0, slope)
    room = np.max(y - slope[..., None] * x, axis=-1)
    return np.maximum(0.0, room), slope


def _values(seen: Measured, weights: Array, share: float) -> tuple[Array, ...]:
    """Return σ², G², B² and the gap for rows of clients' weights."""
    own = np.diagonal(seen.products, axis1=1, axis2=2)  # |∇f_k|²
    squares = np.einsum("bi,mij,bj->bm", weights, seen.products, weights, optimize=True)
    if share < 1:
        squares = np.maximum(0.0, squares - (1 - share) * _excess(own, squares, weights))
    losses = weights @ seen.losses.T
    variances = np.max(weights @ seen.variances.T, axis=1)
    return variances, *fit(squares, weights @ own.T), losses[:, 0] - losses.min(axis=1)


def _excess(own: Array, squares: Array, weights: Array) -> Array:
    """Return how much longer, in the square, a mean over few clients is than that over many.

    It is the variance of the mean, which the spread of the clients tells. Without it |∇f|² would
    be too large and G² too small.
    """
    doubles = np.sum(weights**2, axis=1, keepdims=True)
    spread = weights**2 @ own.T - doubles * squares
    return np.divide(spread, 1 - doubles, out=np.zeros_like(spread), where=doubles < 1 - 1e-9)


def _by_factors(
    value: float, draws: Array, reach: float, *, least: float = 0.0, shift: float = 0.0
) -> Estimate:
    """Return the interval of what varies by factors once a shift is added.

    A shift is for what may be 0. Then a factor means little, and a difference does.
    """
    if value + shift == 0:
        return Estimate(0.0, 0.0, float(draws.max()))
    shifted = np.maximum(draws + shift, 1e-9 * (value + shift))
    factor = float(np.exp(reach * np.std(np.log(shifted))))
    low, high = (value + shift) / factor - shift, (value + shift) * factor - shift
    # Rounding must not put the estimate outside.
    return Estimate(value, min(value, max(least, low)), max(value, high))


def _by_differences(value: float, draws: Array, reach: float) -> Estimate:
    away = float(reach * np.std(draws))
    return Estimate(value, max(0.0, value - away), value + away)
