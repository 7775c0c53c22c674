"""Live diagnostics of a run: how its updates relate to the gradient, and clients to one another.

They only watch the loop, so that a run has the same bits with them and without. Which rounds are
looked at follows from the settings alone, never from a clock, so that the log of a resumed or
repeated run is the same as well.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedmom.algorithms.local_work import LocalWork
from fedmom.algorithms.workload import Workload
from fedmom.core.types import Params
from fedmom.runtimes.base import Block
from fedmom.runtimes.sums import norms_of
from fedmom.training.loop import Record
from fedmom.training.subproblem import Subproblem

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
    """Takes notes of every ``every``-th round, the first one included: a watch of the loop.

    The full gradient ∇f is that of a fixed sample of clients, some samples of each
    (``fedmom.training.subproblem``).

    Args:
        workload: What is run.
        every: The rounds between looks.
    """

    def __init__(self, workload: Workload, *, every: int) -> None:
        data = workload.data
        self._every, self._sizes, self._rule = every, data.train.size, workload.method.rule
        self._population = int(self._sizes.sum())
        gradients = SHARE * every * _gradients(workload.work, self._sizes)
        samples = int(min(MOST, max(FEWEST, gradients)))
        clients = min(data.clients, samples // PER_CLIENT)
        self.sample = Subproblem(
            workload.model, data, clients=clients, samples=samples // clients, seed=workload.seed
        )
        self._look: _Look | None = None

    def asked(self, round_: int, broadcast: Any) -> None:
        """Note where a round begins, if it is due."""
        due = round_ % self._every == 0
        gradient = self.sample.gradient(broadcast)[1] if due else None
        self._look = _Look(broadcast, gradient, [], [], []) if due else None

    def reply(self, block: Block) -> None:
        """Note what the replies are, in a round that is due."""
        if self._look is not None:
            self._look.clients.extend(block.clients.tolist())
            self._look.norms.append(norms_of(block))
            self._look.products.append(_products(block.update, self._look.gradient))

    def of(self, record: Record, params: Params) -> dict[str, float] | None:
        """Return the numbers of the round just done; None if it was not due.

        Numbers that would divide by zero (nobody replied, or nothing moved) are absent.

        Args:
            record: The round.
            params: The model after it.

        Returns:
            ``gradient_norm``: |∇f(w_t)|. ``alignment``: the cosine of g_t and ∇f(w_t).
            ``drift``, ``drift_max``: |w_t - w^k_{t+1}|, mean and largest over the cohort.
            ``dissimilarity``: Σ a_k|Δ_k|² over |Σ a_k Δ_k|² for the updates Δ_k and their weights
            a_k in the cohort: 1 if all are equal, the cohort's size if they are orthogonal and
            alike in length. ``step``: |w_{t+1} - w_t|. ``step_ratio``: step / |g_t|, the server
            step that would have gone as far: η for FedAvg, and near η/(1-β) for momentum while
            updates keep their direction.
        """
        look, self._look = self._look, None
        if look is None:
            return None
        found = _numbers(look.gradient, look.params, params, look.norms + look.products)
        full, step, *rest = np.asarray(found, np.float64).tolist()
        numbers = {"gradient_norm": full, "step": step}
        update = record.update_norm
        left_out = {rejected.client for rejected in record.rejected}
        places = [i for i, client in enumerate(look.clients) if client not in left_out]
        places = places[: record.replies]  # those after enough do not count, either
        if not (places and update > 0):
            return numbers
        norms, products = np.reshape(rest, (2, -1))[:, places]
        weights = self._rule.weigh(self._sizes[np.array(look.clients)[places]])
        scale = self._rule.scale(weights.sum(), self._population)
        mean = update / scale / weights.sum()  # |Σ a_k Δ_k|, with weights that add up to 1
        if full > 0:
            numbers["alignment"] = float(weights @ products) * scale / update / full
        return numbers | {
            "drift": float(norms.mean()),
            "drift_max": float(norms.max()),
            "dissimilarity": float(weights @ norms**2 / weights.sum()) / mean**2,
            "step_ratio": step / update,
        }


class _Look(NamedTuple):
    """One round: where it began, and two numbers for each reply, but no reply itself."""

    params: Params
    gradient: Params
    clients: list[int]
    norms: list[Any]
    products: list[jax.Array]


def _gradients(work: LocalWork, sizes: NDArray[np.int64]) -> float:
    """Return how many gradients of one sample a client of mean size takes in a round."""
    mean = float(sizes.mean())
    return work.count(0, round(mean)) * (work.batch_size or mean)


@jax.jit
def _products(rows: Params, gradient: Params) -> jax.Array:
    return jax.lax.map(lambda row: optax.tree.vdot(row, gradient), rows)


@jax.jit
def _numbers(gradient: Params, before: Params, after: Params, replies: list[Any]) -> jax.Array:
    """Return |∇f|, |w_{t+1} - w_t|, then the replies' norms, then their products with ∇f."""
    step = jax.tree.map(jnp.subtract, after, before)
    lengths = jnp.stack([optax.tree.norm(gradient), optax.tree.norm(step)])
    return jnp.concatenate([lengths, *replies])
