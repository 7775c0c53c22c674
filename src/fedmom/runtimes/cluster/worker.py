"""What an actor does for one run: its clients' work, their sum, and their evaluation."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedmom.algorithms.base import Algorithm, Rule, norms
from fedmom.core.types import Params
from fedmom.runtimes.base import Block, Scores
from fedmom.runtimes.cluster.actor import Job
from fedmom.runtimes.cluster.handover import Program, Store, loaded, opened
from fedmom.runtimes.local import LocalRuntime

_norms = jax.jit(norms)
AT_ONCE = 8  # blocks that are added up in one call, which costs Python more than XLA


class Worker:
    """A local runtime, and the sum of what its clients send."""

    def __init__(self, program: Program, data: Any, workers: int) -> None:
        self._rule = program.rule
        # The client has its stages in it already, so the method here is a client and no more.
        method = Algorithm(optax.identity(), client=program.client)
        self._local = LocalRuntime(
            data,
            program.model,
            program.work,
            method,
            seed=program.seed,
            workers=workers,
            cohort=program.cohort,
        )

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
        self._local.ask(job.round, np.array(job.clients), sent)
        total = _Sum(self._rule)
        try:
            for block in self._local.replies():
                total.add(block)
                if cancelled():
                    break
        finally:
            self._local.cancel()
        states.commit()  # what counts, the driver decides
        return total.blocks(), states.tensors_of(job.clients)

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


class _Sum:
    """Adds up the replies of an actor's clients, where a rule allows it.

    A client whose numbers are not finite keeps a row of its own, so that it can be told from
    the others, and so do all where there is no such rule.
    """

    def __init__(self, rule: Rule | None) -> None:
        self._rule = rule
        self._apart: list[Block] = []
        self._clients: list[NDArray[np.int64]] = []
        self._samples: list[NDArray[np.int64]] = []
        self._total: Any = None
        self._waiting: list[Any] = []  # to be added up
        self._version = 0

    def add(self, block: Block) -> None:
        if self._rule is None or not _all_float(block.update):
            self._apart.append(_as_numpy(block))
            return
        norm = block.metrics.get("norm")
        norm = _norms(block.update) if norm is None else norm
        loss = block.metrics["loss"]
        good = np.isfinite(np.asarray(loss)) & np.isfinite(np.asarray(norm))
        if not good.all():
            self._apart.append(_as_numpy(_rows(block, ~good)))
            block = _rows(block, good)
        if not len(block.clients):
            return
        weights = np.asarray(self._rule.weigh(block.samples), np.float32)
        self._waiting.append((weights, (block.update, block.metrics["loss"])))
        if len(self._waiting) == AT_ONCE:
            self._total = _added(self._total, self._waiting)
            self._waiting = []
        self._clients.append(block.clients)
        self._samples.append(block.samples)
        self._version = block.version

    def blocks(self) -> list[Block]:
        """Return one row for all that were added up, and the others."""
        if not self._clients:
            return self._apart
        for rows in self._waiting:  # one by one: every number of them would be compiled
            self._total = _added(self._total, [rows])
        self._waiting = []
        clients, samples = np.concatenate(self._clients), np.concatenate(self._samples)
        assert self._rule is not None
        update, loss, norm = jax.tree.map(
            np.asarray, _mean(self._total, np.float32(self._rule.weigh(samples).sum()))
        )
        whole = Block(
            clients,
            update,
            samples,
            {"loss": loss, "norm": norm},
            self._version,
            np.array([len(clients)]),
        )
        return [whole, *self._apart]


def _all_float(update: Params) -> bool:
    """Tell whether means of updates are updates: of whole numbers they are not."""
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
def _added(total: Any, blocks: Sequence[tuple[jax.Array, Any]]) -> Any:
    """Return Σ a_k of (update, loss), added to a total if there is one."""
    for weights, rows in blocks:
        summed = jax.tree.map(partial(jnp.tensordot, weights, axes=1), rows)
        total = summed if total is None else jax.tree.map(jnp.add, total, summed)
    return total


@jax.jit
def _mean(total: Any, weight: jax.Array) -> Any:
    """Return the mean update with its loss and norm, as one row."""
    update, loss = jax.tree.map(lambda leaf: (leaf / weight)[None], total)
    return update, loss, norms(update)
