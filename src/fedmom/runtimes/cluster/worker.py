"""What an actor does for one run: its clients' work, their sum, and their evaluation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms.base import Rule, unchanged
from fedmom.algorithms.workload import Workload
from fedmom.core.types import Params
from fedmom.data.federated import FederatedData
from fedmom.runtimes import sums
from fedmom.runtimes.base import Block, Scores
from fedmom.runtimes.cluster.actor import Job
from fedmom.runtimes.cluster.shipping import loaded
from fedmom.runtimes.local import LocalRuntime
from fedmom.runtimes.sums import AT_ONCE, OWN, RunningSum, compiled_add, norms

_add = compiled_add(unchanged)


class Worker:
    """A local runtime, and the sum of what its clients send."""

    def __init__(self, pickled: bytes, data: FederatedData, workers: int) -> None:
        program = loaded(pickled)
        self._rule = program.rule
        self.local = LocalRuntime(Workload(data, *program[:4]), workers=workers)

    def run(
        self, job: Job, broadcast: Any, cancelled: Callable[[], bool]
    ) -> tuple[list[Block], dict[str, NDArray[Any]]]:
        """Work for the clients of a job; return their replies and new states."""
        sent = self._received(broadcast, job.foreign, job.states)
        self.local.prepare(job.cohort, sums=False)
        self.local.ask(job.round, np.array(job.clients), sent)
        collected = _Collected(self._rule if job.sums else None)
        try:
            for block in self.local.replies():
                collected.add(block)
                if cancelled():
                    break
        finally:
            self.local.cancel()
        self.local.states.commit()  # what counts, the driver decides
        return collected.blocks(), self.local.states.tensors_of(job.clients)

    def evaluate(
        self,
        params: Params,
        where: tuple[Any, ...],
        foreign: list[int],
        states: dict[str, NDArray[Any]],
    ) -> Scores:
        """Evaluate a model on some clients; ``where`` is the split, the budget and the part."""
        return self.local.evaluate(self._received(params, foreign, states), *where)

    def _received(self, tree: Any, foreign: list[int], states: dict[str, NDArray[Any]]) -> Any:
        """Return arrays that were sent, on this device, and take the states that came along."""
        sent = jax.device_put(tree, jax.devices()[0])
        self.local.states.drop(foreign)
        self.local.states.take(states, sent)
        return sent


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
            self._apart.append(_rows(block, slice(None)))
            return
        good = sums.finite_rows(block.metrics["loss"], sums.norms_of(block))
        if not good.all():
            self._apart.append(_rows(block, ~good))
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
        metrics = {"loss": loss, "norm": norm}
        for name in (n for n in self._summed[0].metrics if n not in OWN):
            values = np.concatenate([np.asarray(b.metrics[name]) for b in self._summed])
            metrics[name] = np.array([weights @ values / weights.sum()])
        version, members = self._summed[0].version, np.array([len(clients)])
        return [Block(clients, update, samples, metrics, version, members), *self._apart]


def _all_float(update: Params) -> bool:
    """Return whether means of updates are updates: of whole numbers they are not."""
    return all(leaf.dtype in (jnp.float32, jnp.float64) for leaf in jax.tree.leaves(update))


def _rows(block: Block, keep: NDArray[np.bool_] | slice) -> Block:
    """Return some rows of a block that has a client in each, as NumPy's arrays."""
    update, metrics = jax.tree.map(
        lambda leaf: np.asarray(leaf)[keep], (block.update, dict(block.metrics))
    )
    return block._replace(
        clients=block.clients[keep], update=update, samples=block.samples[keep], metrics=metrics
    )


@jax.jit
def _mean(total: Any, weight: jax.Array) -> Any:
    """Return the mean update with its loss and norm, as one row."""
    update, loss = jax.tree.map(lambda leaf: (leaf / weight)[None], tuple(total))
    return update, loss, norms(update)
