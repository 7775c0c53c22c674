"""What an actor does for one run: its clients' work, their sum, and their evaluation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms.base import Rule, unchanged
from fedmom.core.types import Params
from fedmom.runtimes.base import Block, Scores
from fedmom.runtimes.cluster.actor import Job
from fedmom.runtimes.cluster.shipping import Program, Store, loaded, opened
from fedmom.runtimes.local import LocalRuntime
from fedmom.runtimes.sums import AT_ONCE, RunningSum, compiled_add, norms

_add = compiled_add(unchanged)


class Worker:
    """A local runtime, and the sum of what its clients send."""

    def __init__(self, program: Program, data: Any, workers: int) -> None:
        self._rule = program.rule
        self._local = LocalRuntime(program.workload(data), workers=workers)

    @classmethod
    def opened(cls, program: bytes, data: Any, workers: int) -> "Worker | None":
        """Get ready; None where the data is a store that is not on this machine."""
        found = opened(data) if isinstance(data, Store) else data
        return None if found is None else cls(loaded(program), found, workers)

    def run(
        self, job: Job, broadcast: Any, cancelled: Callable[[], bool]
    ) -> tuple[list[Block], dict[str, NDArray[Any]]]:
        """Work for the clients of a job; return their replies and new states."""
        states = self._local.states
        sent = jax.device_put(broadcast, jax.devices()[0])
        states.drop(job.foreign)
        states.take(job.states, sent)
        self._local.prepare(job.cohort, sums=False)
        self._local.ask(job.round, np.array(job.clients), sent)
        collected = _Collected(self._rule if job.sums else None)
        try:
            for block in self._local.replies():
                collected.add(block)
                if cancelled():
                    break
        finally:
            self._local.cancel()
        states.commit()  # what counts, the driver decides
        return collected.blocks(), states.tensors_of(job.clients)

    def evaluate(
        self,
        params: Params,
        where: tuple[Any, ...],
        foreign: list[int],
        states: dict[str, NDArray[Any]],
    ) -> Scores:
        """Evaluate a model on some clients."""
        sent = jax.device_put(params, jax.devices()[0])
        self._local.states.drop(foreign)
        self._local.states.take(states, sent)
        return self._local.evaluate(sent, *where)

    def close(self) -> None:
        """End the threads."""
        self._local.close()


class _Collected:
    """The replies of an actor's clients, added up where a rule allows it.

    A client whose numbers are not finite keeps its own row, so that it can be told from the others,
    and so do all where there is no such rule.
    """

    def __init__(self, rule: Rule | None) -> None:
        self._rule = rule
        self._apart: list[Block] = []
        self._summed: list[Block] = []
        self._sum = RunningSum(_add, AT_ONCE)

    def add(self, block: Block) -> None:
        if self._rule is None or not _all_float(block.update):
            self._apart.append(_as_numpy(block))
            return
        norm = block.metrics.get("norm")
        norm = norms(block.update) if norm is None else norm
        good = np.isfinite(np.asarray(block.metrics["loss"])) & np.isfinite(np.asarray(norm))
        if not good.all():
            self._apart.append(_as_numpy(_rows(block, ~good)))
            block = _rows(block, good)
        if len(block.clients):
            weights = np.asarray(self._rule.weigh(block.samples), np.float32)
            self._sum.take(block.update, block.metrics["loss"], weights)
            self._summed.append(block._replace(update=None))

    def blocks(self) -> list[Block]:
        """Return one row for all that were added up, and the others."""
        if not self._summed:
            return self._apart
        assert self._rule is not None
        total, rows = self._sum.finish()
        if rows.updates:
            total = _add(total, rows)
        clients = np.concatenate([block.clients for block in self._summed])
        samples = np.concatenate([block.samples for block in self._summed])
        weights = self._rule.weigh(samples)
        update, loss, norm = jax.tree.map(np.asarray, _mean(total, np.float32(weights.sum())))
        metrics = {"loss": loss, "norm": norm} | self._metrics(weights)
        version, members = self._summed[0].version, np.array([len(clients)])
        whole = Block(clients, update, samples, metrics, version, members)
        return [whole, *self._apart]

    def _metrics(self, weights: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return the weighted means of what else the clients report."""
        names = [n for n in self._summed[0].metrics if n not in ("loss", "norm")]
        whole = {
            name: np.concatenate([np.asarray(b.metrics[name]) for b in self._summed])
            for name in names
        }
        return {n: np.array([weights @ values / weights.sum()]) for n, values in whole.items()}


def _all_float(update: Params) -> bool:
    """Return whether means of updates are updates: of whole numbers they are not."""
    return all(leaf.dtype in (jnp.float32, jnp.float64) for leaf in jax.tree.leaves(update))


def _rows(block: Block, keep: NDArray[np.bool_]) -> Block:
    """Return some rows of a block that has a client in each."""
    update, metrics = jax.tree.map(
        lambda leaf: np.asarray(leaf)[keep], (block.update, dict(block.metrics))
    )
    return block._replace(
        clients=block.clients[keep], update=update, samples=block.samples[keep], metrics=metrics
    )


def _as_numpy(block: Block) -> Block:
    update, metrics = jax.tree.map(np.asarray, (block.update, dict(block.metrics)))
    return block._replace(update=update, metrics=metrics)


@jax.jit
def _mean(total: Any, weight: jax.Array) -> Any:
    """Return the mean update with its loss and norm, as one row."""
    update, loss = jax.tree.map(lambda leaf: (leaf / weight)[None], tuple(total))
    return update, loss, norms(update)
