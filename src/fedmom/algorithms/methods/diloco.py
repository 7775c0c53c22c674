"""DiLoCo: AdamW on the workers, Nesterov momentum on the server, hundreds of steps in between."""

from functools import lru_cache
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from fedmom.algorithms import solvers
from fedmom.algorithms.base import Algorithm, Client
from fedmom.algorithms.local_work import LocalWork, Solver
from fedmom.algorithms.rules import mean
from fedmom.algorithms.server import LearningRate, fedmom
from fedmom.core.arguments import checked
from fedmom.core.types import Params
from fedmom.core.validation import MOST, Between


@checked
def diloco(
    learning_rate: LearningRate = 0.7,
    momentum: float = 0.9,
    lr: LearningRate = 4e-4,
    *,
    steps: Annotated[int, Between(1, MOST)] = 500,
    batch_size: Annotated[int, Between(1, MOST)] = 32,
    warmup: Annotated[int, Between(0, MOST)] = 1000,
    weight_decay: float = 0.1,
    b1: float = 0.9,
    b2: float = 0.999,
    accumulate: Annotated[int, Between(1, MOST)] = 1,
) -> Algorithm:
    """AdamW on clients, kept over rounds; FedMom on the server (Douillard et al. 2023).

    In a round, worker i takes H steps of AdamW from θ to θ_i. Then ``Δ = Σ p_i (θ - θ_i)``, with
    weights by samples, and ``θ ← Nesterov(θ, Δ)``, which is FedMom's step. A worker keeps the
    moments of its AdamW from round to round, and never sends them.

    Args:
        learning_rate: η of the server, a number or a schedule over rounds.
        momentum: β of the server, in [0, 1).
        lr: γ of the workers, a number or a schedule over rounds, such as a cosine.
        steps: H.
        batch_size: Samples in a batch; the paper's is 512.
        warmup: Steps of a worker over which its learning rate rises to γ.
        weight_decay: AdamW's.
        b1: The decay of AdamW's first moment.
        b2: The decay of its second.
        accumulate: Parts in which a batch's gradient is computed, as of ``LocalWork``.

    Returns:
        An algorithm with its own local work.

    Examples:
        >>> method = diloco(steps=100, batch_size=8)
        >>> method.work.count(round_=0, samples=1000), method.rule.name
        (100, 'mean')
    """

    inner, worker = _worker(warmup, weight_decay, b1, b2)
    return Algorithm(
        fedmom(learning_rate, momentum),
        LocalWork(lr=lr, steps=steps, batch_size=batch_size, solver=inner, accumulate=accumulate),
        worker,
        mean("cohort"),
    )


@lru_cache(maxsize=64)  # equal workers are one object, so that runs share compiled programs
def _worker(warmup: int, weight_decay: float, b1: float, b2: float) -> tuple[Solver, Client]:
    """Return AdamW, and the client that keeps its moments."""

    def inner(lr: Any) -> optax.GradientTransformation:
        def rate(done: jax.Array) -> jax.Array:
            return lr * jnp.minimum(1.0, (done + 1) / max(1, warmup))

        return solvers.adamw(rate, b1=b1, b2=b2, weight_decay=weight_decay)

    def init(theta: Params) -> optax.OptState:
        return inner(0.0).init(theta)

    def run(theta: Params, adamw: optax.OptState, problem: Any, key: jax.Array) -> Any:
        trained, loss, adamw = problem.train_from(adamw, theta, key)
        update = jax.tree.map(jnp.subtract, theta, trained)
        return update, adamw, {"loss": loss, "norm": optax.tree.norm(update)}

    return inner, Client(run, init)
