"""FedAvg and FedMom on a problem with known constants, many runs at once, in plain NumPy.

The package's own engine gives the same (tests/theory/test_problems.py); this one carries
hundreds of seeds through a round together, which an estimate of an expectation needs.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedmom.theory.constants import Array, Number, Setting
from fedmom.theory.problems import Problem

Draws = Callable[[int], NDArray[np.int64]]  # round -> the clients of every run, (runs, M)


def simulate(
    problem: Problem,
    setting: Setting,
    lr: Number,
    rounds: int,
    start: Array,
    *,
    runs: int = 1,
    seed: int = 0,
    draw: Draws | None = None,
) -> Array:
    """Return the models w_0 ... w_T of every run, shape (T + 1, runs, d).

    ``lr`` is γ, or γ_0, γ_1, ..., one for each round.
    """
    steps = np.broadcast_to(np.asarray(lr, float), (rounds,))
    rng = np.random.default_rng(seed)
    draw = draw or (lambda _round: _cohorts(rng, runs, setting))
    w = np.tile(np.asarray(start, float), (runs, 1))
    velocity = np.zeros_like(w)
    models = [w]
    for round_, step_size in enumerate(steps.tolist()):
        clients = draw(round_)
        moved = w[:, None] - _local(problem, setting, step_size, w, clients, rng)
        step = setting.server_lr * np.einsum("rm,rmd->rd", problem.weights[clients], moved)
        velocity = setting.momentum * velocity - step
        w = w + setting.momentum * velocity - step
        models.append(w)
    return np.stack(models)


def gradient_squares(problem: Problem, models: Array) -> Array:
    """Return |∇f(w)|² of every model."""
    return np.asarray(np.sum(problem.gradient(models) ** 2, axis=-1))


def _local(
    problem: Problem,
    setting: Setting,
    lr: float,
    w: Array,
    clients: NDArray[np.int64],
    rng: np.random.Generator,
) -> Array:
    """Return the models of a round's clients after H noisy steps, shape (runs, M, d)."""
    local = np.repeat(w[:, None], clients.shape[1], axis=1)
    deviation = np.sqrt(problem.variance / w.shape[-1])
    for _ in range(setting.local_steps):
        gradient = problem.client_gradients(local, clients)
        if deviation:
            gradient = gradient + deviation * rng.normal(size=local.shape)
        local = local - lr * gradient
    return local


def _cohorts(rng: np.random.Generator, runs: int, setting: Setting) -> NDArray[np.int64]:
    """Draw M of K for every run, uniformly without replacement."""
    order = np.argsort(rng.random((runs, setting.clients)), axis=1)
    return order[:, : setting.per_round]
