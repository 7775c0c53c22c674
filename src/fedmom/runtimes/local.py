"""Clients simulated in this process: on worker threads, or many at once on an accelerator."""

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom import schedules
from fedmom.clients import LocalWork, Task, capacity, compile_client, compile_cohort
from fedmom.data.federated import FederatedData, place
from fedmom.models.base import Model, Params
from fedmom.rounds import Reply
from fedmom.sampling import clients_key

# A client shorter than this is not worth handing to another thread.
SECONDS_WORTH_A_THREAD = 0.001
# Clients in one call on an accelerator: enough to fill it, few enough for its memory.
CLIENTS_AT_ONCE = 32


class LocalRuntime:
    """Runs a cohort on this machine. Replies come in the cohort's order, so sums repeat.

    On a CPU, clients run on ``workers`` threads (one for each core), each in a program of its
    own: XLA gains little from several threads inside one small client. On an accelerator,
    they run ``vectorized``: one program for many clients. Both give the same up to rounding.
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
        self._program = (compile_cohort if vectorized else compile_client)(model, data.read, work)
        self._workers = workers or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="client")
        self._step_seconds = float("inf")  # the quickest local step seen

    def replies(self, params: Params, round_: int, clients: NDArray[np.int64]) -> Iterator[Reply]:
        """Yield the clients' replies in order, few of them in memory at a time."""
        tasks = [self._task(round_, client) for client in clients.tolist()]
        lr = schedules.at(self._work.lr, round_)
        if self._vectorized:
            return self._at_once(params, lr, tasks)
        longest = self._step_seconds * max(task.steps for task in tasks)
        if self._workers == 1 or longest < SECONDS_WORTH_A_THREAD:
            return (self._run(params, lr, task) for task in tasks)
        return self._threaded(params, lr, tasks)

    def _task(self, round_: int, client: int) -> Task:
        start, size = int(self._data.train.start[client]), int(self._data.train.size[client])
        return Task(client, start, size, self._work.count(round_, size), round_)

    def _run(self, params: Params, lr: float, task: Task) -> Reply:
        """Start a client; its reply may still be under way."""
        numbers, room = np.array(task, np.int32), capacity(self._work, task.size)
        done = self._program(params, self._arrays, numbers, self._key, lr, capacity=room)
        return Reply(task.client, *done)

    def _run_and_wait(self, params: Params, lr: float, task: Task) -> Reply:
        began = time.perf_counter()
        reply = self._run(params, lr, task)
        jax.tree.map(lambda leaf: leaf.block_until_ready(), (reply.delta, reply.norm))
        seconds = (time.perf_counter() - began) / task.steps
        self._step_seconds = min(self._step_seconds, seconds)
        return reply

    def _threaded(self, params: Params, lr: float, tasks: Sequence[Task]) -> Iterator[Reply]:
        waiting: deque[Future[Reply]] = deque()
        for task in tasks:
            waiting.append(self._pool.submit(self._run_and_wait, params, lr, task))
            if len(waiting) > self._workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _at_once(self, params: Params, lr: float, tasks: Sequence[Task]) -> Iterator[Reply]:
        for first in range(0, len(tasks), CLIENTS_AT_ONCE):
            part = tasks[first : first + CLIENTS_AT_ONCE]
            room = max(capacity(self._work, task.size) for task in part)
            deltas, losses, norms = self._program(
                params, self._arrays, np.array(part, np.int32), self._key, lr, capacity=room
            )
            for i, task in enumerate(part):
                yield Reply(task.client, jax.tree.map(lambda d: d[i], deltas), losses[i], norms[i])  # noqa: B023
