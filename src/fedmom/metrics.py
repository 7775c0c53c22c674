"""Loss and accuracy over all clients: means weighted by samples, percentiles over clients."""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.data.federated import FederatedData, Reader, Split, place
from fedmom.errors import FedMomError
from fedmom.models.base import Model, Params

CHUNK = 1024  # samples in a call
BATCH_ON_CPU = 128  # samples in a product: larger ones leave the cache


@dataclass(frozen=True)
class Metrics:
    """One split of one model. Means weigh clients by samples; percentiles weigh them alike."""

    loss: float
    accuracy: float
    accuracy_p10: float
    accuracy_p50: float
    accuracy_p90: float

    def row(self, round_: int, split: str) -> dict[str, Any]:
        """Return the line of ``evals.jsonl``."""
        return {"round": round_, "split": split, **asdict(self)}


class Evaluator:
    """Evaluates models on both splits of a dataset, many clients in one product.

    ``budget`` bounds the samples per split: when there are more, every client is thinned to
    evenly spaced samples, the largest clients first, and keeps its full weight n_k in the
    means. None evaluates everything.
    """

    def __init__(self, model: Model, data: FederatedData, budget: int | None = None) -> None:
        self._arrays = place(data.arrays)
        self._plans = {
            name: _Plan(data.split(name), budget)
            for name in ("train", "test")
            if data.split(name).size.any()
        }
        self._score = _compile_score(model, data.read)

    @property
    def splits(self) -> list[str]:
        """The splits that have samples."""
        return list(self._plans)

    def coverage(self, split: str) -> tuple[int, int]:
        """Return how many samples are evaluated, and how many there are."""
        plan = self._plans[split]
        return len(plan.positions), int(plan.weights.sum())

    def __call__(self, params: Params, split: str) -> Metrics:
        """Return the metrics of a model on a split."""
        plan = self._plans[split]
        losses = np.zeros(len(plan.positions))
        hits = np.zeros(len(plan.positions))

        def score(first: int) -> None:
            rows = plan.positions[first : first + CHUNK]
            padded = np.pad(rows, (0, CHUNK - len(rows)), mode="edge")
            loss, hit = self._score(params, self._arrays, padded)
            losses[first : first + CHUNK] = np.asarray(loss)[: len(rows)]
            hits[first : first + CHUNK] = np.asarray(hit)[: len(rows)]

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(score, range(0, len(plan.positions), CHUNK)))
        return plan.summary(losses, hits)


class _Plan:
    """Which positions of a split are evaluated, and whose they are."""

    def __init__(self, split: Split, budget: int | None) -> None:
        present = np.flatnonzero(split.size)
        start, size = split.start[present], split.size[present]
        self.weights = size
        self.taken = np.minimum(size, _cap(size, budget))
        self.owner = np.repeat(np.arange(len(present)), self.taken)
        rank = np.arange(len(self.owner)) - np.repeat(
            np.cumsum(self.taken) - self.taken, self.taken
        )
        self.positions = (
            start[self.owner] + rank * size[self.owner] // self.taken[self.owner]
        ).astype(np.int32)

    def summary(self, losses: NDArray[np.float64], hits: NDArray[np.float64]) -> Metrics:
        per_client = [np.bincount(self.owner, v) / self.taken for v in (losses, hits)]
        loss, accuracy = (float(np.average(v, weights=self.weights)) for v in per_client)
        if not math.isfinite(loss):
            raise FedMomError("The model's loss is not finite. Take a smaller --lr.")
        p10, p50, p90 = (float(p) for p in np.percentile(per_client[1], (10, 50, 90)))
        return Metrics(loss, accuracy, p10, p50, p90)


def _cap(sizes: NDArray[np.int64], budget: int | None) -> int:
    """Return the largest c >= 1 such that Σ min(size, c) keeps to the budget, if one does."""
    low, high = 1, int(sizes.max())
    if budget is None or int(sizes.sum()) <= budget:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        fits = int(np.minimum(sizes, middle).sum()) <= budget
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


@lru_cache(maxsize=16)  # runs of one process share it
def _compile_score(model: Model, read: Reader) -> Callable[..., tuple[jax.Array, jax.Array]]:
    batch = BATCH_ON_CPU if jax.default_backend() == "cpu" else CHUNK

    @jax.jit
    def score(
        params: Params, arrays: dict[str, jax.Array], positions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def one_batch(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
            x, y = read(arrays, rows)
            logits = model.apply(params, x, None)
            return model.loss(logits, y), jnp.argmax(logits, axis=-1) == y

        loss, hit = jax.lax.map(one_batch, positions.reshape(-1, batch))
        return loss.reshape(-1), hit.reshape(-1)

    return score
