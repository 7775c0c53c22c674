"""Clients simulated in this process, one after another on each worker thread."""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom import schedules
from fedmom.clients import LocalWork, capacity, compile_client
from fedmom.data.federated import FederatedData, place
from fedmom.models.base import Model, Params
from fedmom.rounds import Reply
from fedmom.sampling import round_key


class LocalRuntime:
    """Runs a cohort on this machine. Replies come in the cohort's order, so sums repeat."""

    def __init__(
        self,
        data: FederatedData,
        model: Model,
        work: LocalWork,
        *,
        seed: int = 0,
        workers: int | None = None,
    ) -> None:
        self._data, self._work, self._seed = data, work, seed
        self._arrays = place(data.arrays)
        self._program = compile_client(model, data.read, work)
        # XLA gains nothing from several threads inside one small client; several clients do.
        # An accelerator runs one program at a time.
        threads = (os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1
        self._workers = workers or threads
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="client")

    def replies(self, params: Params, round_: int, clients: NDArray[np.int64]) -> Iterator[Reply]:
        """Yield the clients' replies in order, never more than one per worker in memory ahead."""
        key = round_key(self._seed, round_)
        waiting: deque[Future[Reply]] = deque()
        for client in clients.tolist():
            waiting.append(self._pool.submit(self._run, params, round_, client, key))
            if len(waiting) > self._workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _run(self, params: Params, round_: int, client: int, key: jax.Array) -> Reply:
        start, size = (int(column[client]) for column in self._data.train)
        delta, loss, norm = self._program(
            params,
            self._arrays,
            start,
            size,
            jax.random.fold_in(key, client),
            self._work.count(round_, size),
            schedules.at(self._work.lr, round_),
            capacity=capacity(self._work, size),
        )
        return Reply(client, delta, float(loss), float(norm))
