"""Clients simulated in this process: on worker threads, or many at once on an accelerator."""

import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from fedmom.algorithms import schedules
from fedmom.algorithms.local_work import capacity
from fedmom.algorithms.workload import Workload
from fedmom.core.arguments import checked, checked_class
from fedmom.core.compilation import keep_programs
from fedmom.core.errors import FedMomError
from fedmom.core.prng import clients_key
from fedmom.core.types import Params
from fedmom.data.batches import place
from fedmom.runtimes.base import Block, Budget, Clients, Scores
from fedmom.runtimes.client_programs import Answer, ClientTask, Way, compiled
from fedmom.runtimes.client_states import Simulated
from fedmom.runtimes.in_flight import Question
from fedmom.runtimes.local_devices import on_all, on_first
from fedmom.runtimes.scoring import ClientRange, Scorer

# Parameters x samples x steps of a client that is not worth handing to another thread, nor a call
# of its own. Counted, not timed: the way a round is computed must not depend on a clock.
SHORT = 500_000
# The same product of a client that takes about as long as Python takes over one call, which one
# thread does at a time: on the quickest models, where it counts (benchmarks/many_cores.py).
CALL = 1_000_000
# Short clients in one call: enough to hide its cost, few enough to compile quickly.
FEW_AT_ONCE = 8
# Clients in one call on an accelerator: enough to fill it, few enough for its memory.
CLIENTS_AT_ONCE = 32


Part = Sequence[ClientTask]  # of a question: those that share a call


@checked_class
class LocalRuntime(Simulated):
    """Runs clients on this machine. They answer in the order they were asked, so sums repeat.

    On a CPU, clients run on worker threads, each in a program of its own: XLA gains little from
    several threads inside one small client. Where there are many, a thread takes a few in one
    call; the shortest all run one after another. On an accelerator, clients run vectorized: one
    program for many; where there are several accelerators, each has a share of them, a copy of
    the data and of the model. All give the same up to rounding. A client runs when its reply is
    waited for, so work that is cancelled costs nothing.

    Args:
        workload: What is run.
        workers: Threads; by default one per core.
        vectorized: Run many clients in one program; by default on accelerators only.

    Examples:
        >>> import numpy as np
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=4")
        >>> model = fedmom.build_model("logreg", data.features)
        >>> work = fedmom.LocalWork(lr=0.01, steps=2)
        >>> workload = fedmom.Workload(data, model, fedmom.Algorithm(fedmom.servers.fedavg(), work))
        >>> runtime = fedmom.LocalRuntime(workload)
        >>> runtime.ask(0, np.array([1, 3]), fedmom.start(workload).params)
        >>> [block.clients.tolist() for block in runtime.replies()]
        [[1, 3]]
    """

    def __init__(
        self, workload: Workload, *, workers: int | None = None, vectorized: bool | None = None
    ) -> None:
        if workers is not None and workers < 1:
            raise FedMomError(f"workers={workers} must be at least 1.")
        keep_programs()
        self._arrays = place(workload.data.arrays)
        super().__init__(workload, Scorer(workload, self._arrays, workers))
        self._key = clients_key(workload.seed)
        self._cohort: int | None = None
        self._vectorized = jax.default_backend() != "cpu" if vectorized is None else vectorized
        devices = len(jax.local_devices()) if self._vectorized else 1
        self._devices = devices
        given = self._arrays, workload.frozen  # what clients compute with, besides the broadcast
        self._given = given if devices == 1 else on_all(given)
        ways: tuple[Way, ...] = ("one", "few", "many", "dealt")
        self._programs = {way: compiled(workload, way) for way in ways}
        self._sent = 0  # numbers in a broadcast, once that is known
        self._workers = workers or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="client")

    def prepare(self, cohort: int, *, sums: bool) -> None:  # noqa: ARG002
        """Note how many clients are usually asked at once.

        Args:
            cohort: Where another number is asked, clients run in calls of few different sizes,
                since each size is compiled.
            sums: Not used: replies are added up by the loop.
        """
        self._cohort = cohort

    def replies(self, timeout: float | None = None) -> Iterator[Block]:  # noqa: ARG002
        """Run the clients and yield their replies in order, few of them in memory at a time."""
        while self._asked:
            question = self._asked[0]
            for tasks, (update, states, metrics) in self._answers(question):
                for _ in tasks:
                    question.clients.popleft()
                if not question.clients:
                    self._asked.popleft()
                clients = np.array([task.client for task in tasks])
                self.states.put(clients, states)
                samples = np.array([task.size for task in tasks])
                yield Block(clients, update, samples, metrics, question.round)

    def block_sizes(self, round_: int, clients: Clients, broadcast: Any) -> list[int]:
        """Return how many clients each block of replies would hold.

        Args:
            round_: The round.
            clients: Who would be asked.
            broadcast: What they would receive.

        Returns:
            The sizes, in the order of the replies.
        """
        tasks = [self._task(round_, client) for client in clients.tolist()]
        return [len(part) for part in self._plan(broadcast, tasks)[1]]

    @checked
    def evaluate(
        self,
        params: Params,
        split: str,
        budget: Budget = None,
        part: ClientRange | None = None,
    ) -> Scores:
        """Evaluate a model on the clients' samples, with their own models if they have any.

        Args:
            params: The model's parameters.
            split: ``train`` or ``test``.
            budget: How many samples to evaluate at most; None: all.
            part: Some of the clients that are evaluated, where the others are elsewhere.

        Returns:
            Sums per client.
        """
        self._scorer.check(params)
        personal = self._client.personal
        if personal is None:
            return self._scorer(params, split, budget, part)
        return self._scorer.personal(
            lambda client: personal(params, self.states.get(client, params)), split, budget, part
        )

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _answers(self, question: Question) -> Iterator[tuple[Part, Answer]]:
        """Run the clients of a question, in order."""
        tasks = [self._task(question.round, client) for client in question.clients]
        lr = schedules.at(self._work.lr, question.round)
        way, parts = self._plan(question.broadcast, tasks)
        if way is None:
            yield from self._threaded(question.broadcast, lr, parts)
            return
        broadcast = on_all(question.broadcast) if way == "dealt" else question.broadcast
        for part in parts:
            yield part, self._run(broadcast, lr, part, way)

    def _plan(self, broadcast: Any, tasks: Part) -> tuple[Way | None, Iterator[Part]]:
        """Return the way that clients run (None: on threads), and those that share a call."""
        if self._vectorized:
            way: Way = "many" if self._devices == 1 else "dealt"
            return way, _parts(tasks, CLIENTS_AT_ONCE * self._devices, self._cohort)
        product = self._product(broadcast, tasks)
        if product < SHORT:
            return "few", _parts(tasks, FEW_AT_ONCE, self._cohort)
        return None, _parts(tasks, at_once(self._cohort or len(tasks), product), self._cohort)

    def _threaded(
        self, broadcast: Any, lr: float, parts: Iterator[Part]
    ) -> Iterator[tuple[Part, Answer]]:
        """Run a call per thread, and one ahead so that no thread waits."""
        waiting: deque[tuple[Part, Future[Answer]]] = deque()
        try:
            for part in parts:
                waiting.append((part, self._pool.submit(self._wait, broadcast, lr, part)))
                if len(waiting) > self._workers:
                    part, future = waiting.popleft()
                    yield part, future.result()
            while waiting:
                part, future = waiting.popleft()
                yield part, future.result()
        finally:
            for _, future in waiting:
                future.cancel()

    def _wait(self, broadcast: Any, lr: float, part: Part) -> Answer:
        answer = self._run(broadcast, lr, part, "one" if len(part) == 1 else "few")
        jax.block_until_ready(answer)  # type: ignore[no-untyped-call]
        return answer

    def _run(self, broadcast: Any, lr: float, part: Part, way: Way) -> Answer:
        # Every device needs as many tasks as the others; the last one fills the room, unused.
        room = -len(part) % self._devices if way == "dealt" else 0
        tasks = [*part, *[part[-1]] * room]
        answer = self._programs[way](
            broadcast,
            self.states.stacked([task.client for task in tasks], broadcast),
            *self._given,
            np.array(tasks, np.int32),
            self._key,
            lr,
            capacity=max(capacity(self._work, task.size) for task in part),
        )
        return answer if way != "dealt" else on_first(answer, len(part))

    def _task(self, round_: int, client: int) -> ClientTask:
        start, size = int(self._data.train.start[client]), int(self._data.train.size[client])
        return ClientTask(client, start, size, self._work.taken(round_, client, size), round_)

    def _product(self, broadcast: Any, tasks: Part) -> int:
        """Return parameters x samples x steps of the longest client."""
        self._sent = self._sent or sum(map(np.size, jax.tree.leaves(broadcast)))
        samples = max(task.steps * (self._work.batch_size or task.size) for task in tasks)
        return self._sent * int(samples)


def at_once(clients: int, product: int) -> int:
    """Return how many clients to run in one call on a thread, whatever the number of cores.

    M / k calls start one after another and the last of them runs k clients: with c and w, the
    times of a call and of a client, M/k * c + k * w is least at k = sqrt(M * c / w). It is a
    power of two that divides M, so that there is one program to compile.

    Args:
        clients: M.
        product: Parameters x samples x steps of a client.

    Examples:
        >>> at_once(100, 13_500_000), at_once(1_000, 13_500_000), at_once(10, 13_500_000)
        (2, 8, 1)
    """
    best = math.sqrt(clients * CALL / product)
    sizes = (size for size in (8, 4, 2) if size <= best and clients % size == 0)
    return next(sizes, 1)


def _parts(tasks: Part, most: int, usual: int | None) -> Iterator[Part]:
    """Cut tasks into the parts of one call each: every size of a part is compiled.

    The usual number of tasks makes as few parts of at most ``most`` as it takes, of sizes as equal
    as can be. Any other makes parts of that size, then of a quarter of it, and so on down to 1.
    """
    usual = usual or len(tasks)
    size = -(-usual // -(-usual // most))
    first = 0
    while first < len(tasks):
        while len(tasks) != usual and size > len(tasks) - first:
            size = max(1, size // 4)
        yield tasks[first : first + size]
        first += size
