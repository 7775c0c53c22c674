"""Clients simulated in this process: on worker threads, or many at once on an accelerator."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom import schedules
from fedmom.clients import (
    LocalWork,
    Task,
    capacity,
    compile_client,
    compile_cohort,
    compile_few,
)
from fedmom.data.federated import FederatedData, place
from fedmom.models.base import Model, Params
from fedmom.rounds import Reply
from fedmom.sampling import clients_key

# Parameters x samples x steps of a client that is not worth handing to another thread, nor a call
# of its own. Counted, not timed: the way a round is computed must not depend on a clock.
SHORT = 500_000
# Short clients in one call: enough to hide its cost, few enough to compile quickly.
FEW_AT_ONCE = 8
# Clients in one call on an accelerator: enough to fill it, few enough for its memory.
CLIENTS_AT_ONCE = 32


class LocalRuntime:
    """Runs a cohort on this machine. Replies come in the cohort's order, so sums repeat.

    On a CPU, clients run on ``workers`` threads (one for each core), each in a program of its
    own: XLA gains little from several threads inside one small client. The shortest run one
    after another, a few in one call. On an accelerator, clients run ``vectorized``: one program
    for many. All give the same up to rounding.
    """

    def __init__(
        self,
        data: FederatedData,
        model: Model,
        work: LocalWork,
        *,
        seed: int = 0,
        workers: int | None = None,
        vectorized: bool | None = None,
    ) -> None:
        self._data, self._work = data, work
        self._arrays = place(data.arrays)
        self._key = clients_key(seed)
        if vectorized is None:
            vectorized = jax.default_backend() != "cpu"
        self._vectorized = vectorized
        self._cohort = compile_cohort(model, data.read, work)
        self._one = compile_client(model, data.read, work)
        self._few = compile_few(model, data.read, work)
        self._workers = workers or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="client")

    def replies(self, params: Params, round_: int, clients: NDArray[np.int64]) -> Iterator[Reply]:
        """Yield the clients' replies in order, few of them in memory at a time."""
        tasks = [self._task(round_, client) for client in clients.tolist()]
        lr = schedules.at(self._work.lr, round_)
        if self._vectorized:
            return self._at_once(params, lr, tasks)
        if self._short(params, tasks):
            return self._few_at_once(params, lr, tasks)
        return self._threaded(params, lr, tasks)

    def _short(self, params: Params, tasks: Sequence[Task]) -> bool:
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        samples = max(task.steps * (self._work.batch_size or task.size) for task in tasks)
        return size * samples < SHORT

    def _task(self, round_: int, client: int) -> Task:
        start, size = int(self._data.train.start[client]), int(self._data.train.size[client])
        return Task(client, start, size, self._work.count(round_, size), round_)

    def _run(self, params: Params, lr: float, task: Task) -> Reply:
        numbers, room = np.array(task, np.int32), capacity(self._work, task.size)
        done = self._one(params, self._arrays, numbers, self._key, lr, capacity=room)
        jax.tree.map(lambda leaf: leaf.block_until_ready(), done)
        return Reply(task.client, *done)

    def _threaded(self, params: Params, lr: float, tasks: Sequence[Task]) -> Iterator[Reply]:
        waiting: deque[Future[Reply]] = deque()
        for task in tasks:
            waiting.append(self._pool.submit(self._run, params, lr, task))
            if len(waiting) > self._workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _few_at_once(self, params: Params, lr: float, tasks: Sequence[Task]) -> Iterator[Reply]:
        """Start the clients; their replies may still be under way."""
        for part, numbers, room in self._parts(tasks, FEW_AT_ONCE):
            done = self._few(params, self._arrays, numbers, self._key, lr, capacity=room)
            for task, update in zip(part, done, strict=True):
                yield Reply(task.client, *update)

    def _at_once(self, params: Params, lr: float, tasks: Sequence[Task]) -> Iterator[Reply]:
        for part, numbers, room in self._parts(tasks, CLIENTS_AT_ONCE):
            deltas, losses, norms = self._cohort(
                params, self._arrays, numbers, self._key, lr, capacity=room
            )
            for i, task in enumerate(part):
                yield Reply(task.client, jax.tree.map(lambda d: d[i], deltas), losses[i], norms[i])  # noqa: B023

    def _parts(
        self, tasks: Sequence[Task], size: int
    ) -> Iterator[tuple[Sequence[Task], NDArray[np.int32], int]]:
        """Cut the tasks into parts of a size, with their numbers and the room they need."""
        for first in range(0, len(tasks), size):
            part = tasks[first : first + size]
            room = max(capacity(self._work, task.size) for task in part)
            yield part, np.array(part, np.int32), room
