"""The Hessian's spectrum of a real task, along gradients, differences of clients and noise.

Lanczos' method on Hessian-vector products, started at a vector, gives curvatures and the share of
the vector's squared length at each: a quadrature of its energy over the spectrum. Three kinds of
vectors are looked at: the gradient of f, clients' gradients less that of f, and batch gradients
less their mean. All of it is local to the model at which it is measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.experiments.build import Experiment
from fedmom.theory.constants import Array
from fedmom.theory.estimate import batch_gradient
from fedmom.theory.measurement_budget import SpectrumBudget, Tick
from fedmom.training.subproblem import Subproblem

Product = Callable[[Array], Array]


class Energy(NamedTuple):
    """Curvatures, and how much of a vector's squared length lies at each."""

    curvature: Array
    energy: Array


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A task at one model.

    ``gradient``, ``difference`` and ``noise`` are energies over curvatures that add up to |∇f|²,
    to G² = Σ p_k |∇f_k - ∇f|² and to σ², the variance of a batch's gradient. ``sharpness_spread``
    is the standard deviation of the clients' curvature along f's steepest direction, relative to
    its mean.
    """

    loss: float
    gradient: Energy
    difference: Energy
    noise: Energy
    sharpness_spread: float


def lanczos(product: Product, start: Array, steps: int) -> tuple[Energy, Array]:
    """Return the quadrature of |start|² over the spectrum, and the steepest direction found.

    Args:
        product: The symmetric matrix, as a function of a vector.
        start: The vector.
        steps: Products, at most; fewer if the vector's directions are exhausted.

    Returns:
        The curvatures with their energies, and a unit vector.

    Examples:
        >>> found, _ = lanczos(lambda v: np.array([1.0, 3.0]) * v, np.array([1.0, 2.0]), steps=5)
        >>> found.curvature.round(6).tolist(), found.energy.round(6).tolist()
        ([1.0, 3.0], [1.0, 4.0])
    """
    length = float(np.linalg.norm(start))
    if not 0 < length < np.inf:
        raise FedMomError(
            f"A gradient has length {length:g}: there is no spectrum to see. Use a smaller --lr."
        )
    basis = [start / length]
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(min(steps, start.size)):
        image = product(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        known = np.stack(basis)
        for _ in range(2):  # twice is enough: rounding would let found directions come back
            image = image - known.T @ (known @ image)
        rest = float(np.linalg.norm(image))
        if rest <= 1e-6 * max(map(abs, diagonal)):
            break
        beside.append(rest)
        basis.append(image / rest)
    count = len(diagonal)
    matrix = np.diag(diagonal) + np.diag(beside[: count - 1], 1) + np.diag(beside[: count - 1], -1)
    curvature, vectors = np.linalg.eigh(matrix)
    steepest = np.stack(basis[:count]).T @ vectors[:, -1]
    return Energy(curvature, length**2 * vectors[0] ** 2), steepest


def sample_of(experiment: Experiment, clients: int, samples: int) -> Subproblem:
    """Return the smaller problem of a task, drawn with its seed."""
    model, data, seed = experiment.model, experiment.data, experiment.config.seed
    return Subproblem(model, data, clients=clients, samples=samples, seed=seed)


def measure(
    experiment: Experiment,
    params: Params,
    budget: SpectrumBudget | None = None,
    tick: Tick = lambda: None,
) -> Spectrum:
    """Measure a task's spectra at a model."""
    budget = budget or SpectrumBudget()
    sample, hessian = (
        sample_of(experiment, budget.clients, samples)
        for samples in (budget.samples, budget.hessian_samples)
    )
    _, unravel = jax.flatten_util.ravel_pytree(params)

    def product(vector: Array, client: int | None = None) -> Array:
        tree = unravel(jnp.asarray(vector, jnp.float32))
        unit, norm = hessian.hessian_product(params, tree, client)
        if client is None:
            tick()
        return _flat(unit) * float(norm)

    count = len(sample.clients)
    loss, slope = sample.gradient(params)
    gradient = _flat(slope)
    spectrum, steepest = lanczos(product, gradient, budget.gradient_steps)
    apart = [_flat(sample.gradient(params, k)[1]) - gradient for k in range(count)]
    squares = np.array([float(row @ row) for row in apart])
    # Clients' mean is part of each of the drawn clients: as for a variance, divide by one less.
    difference = float(sample.weights @ squares) * count / (count - 1)
    noises = _noises(experiment, params, sample, budget.vectors)
    rounds = range(min(budget.vectors, count))
    sharp = np.array([steepest @ product(steepest, k) for k in range(count)])
    mean = float(sample.weights @ sharp)
    spread = float(np.sqrt(sample.weights @ (sharp - mean) ** 2)) / max(mean, 1e-12)
    return Spectrum(
        loss=float(loss),
        gradient=spectrum,
        difference=_mixed(product, [apart[k] for k in rounds], difference, budget.steps),
        noise=_mixed(product, noises, None, budget.steps),
        sharpness_spread=spread,
    )


def _mixed(product: Product, vectors: Sequence[Array], total: float | None, steps: int) -> Energy:
    """Return the mean spectrum of some vectors, scaled to a total energy if one is given."""
    found = [lanczos(product, vector, steps)[0] for vector in vectors if vector.any()]
    if not found:
        return Energy(np.ones(1), np.zeros(1))
    curvature = np.concatenate([each.curvature for each in found])
    energy = np.concatenate([each.energy for each in found]) / len(found)
    return Energy(curvature, energy if total is None else energy * total / energy.sum())


def _noises(experiment: Experiment, params: Params, sample: Subproblem, count: int) -> list[Array]:
    """Return (g - g')/√2 for two batches of some clients: its mean square is the variance."""
    if experiment.work.batch_size is None:
        return []
    work = replace(experiment.work, lr=1.0, steps=1, epochs=None, batches="random")
    runtime = experiment.runtime(work, workers=1)
    found = []
    for i in range(count):
        client = sample.clients[i % len(sample.clients)][None]
        a, b = (_flat(batch_gradient(runtime, 2 * i + j, client, params)) for j in range(2))
        found.append((a - b) / np.sqrt(2))
    runtime.close()
    return found


def _flat(tree: Params) -> Array:
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0], np.float64)
