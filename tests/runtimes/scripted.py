"""A runtime for tests: it answers as it is told, in any order, late, not at all, or wrongly."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedmom.algorithms import schedules
from fedmom.algorithms.local_work import capacity
from fedmom.algorithms.workload import Workload
from fedmom.core.prng import clients_key
from fedmom.data.batches import place
from fedmom.runtimes import in_flight
from fedmom.runtimes.base import Block, Failure, Snapshot
from fedmom.runtimes.client_programs import ClientTask, compiled
from fedmom.runtimes.client_states import ClientStates
from fedmom.runtimes.scoring import Scorer

Question = tuple[int, int, Any]  # client, round, broadcast


class Scripted:
    """Trains clients one by one, when their reply is taken.

    ``order`` puts the questions under way into the order of their replies; ``lost`` clients never
    answer; ``failing`` ones say why; ``change`` may put another block in place of a reply.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        order: Callable[[list[Question]], list[Question]] = lambda questions: questions,
        lost: set[int] | None = None,
        failing: dict[int, str] | None = None,
        change: Callable[[Block], Block | list[Block]] = lambda block: block,
    ) -> None:
        self.workload = workload
        self._data, self._client = workload.data, workload.method.client
        self._work, self._seed = workload.work, workload.seed
        self._arrays = place(workload.data.arrays)
        self._scorer = Scorer(workload, self._arrays)
        self._program = compiled(workload, "one")
        self._states = ClientStates(self._client)
        self._order, self._change = order, change
        self.lost, self.failing = lost or set(), failing or {}
        self._asked: list[Question] = []
        self._committed: list[Question] = []

    runs_method = True

    def prepare(self, cohort, *, sums):
        """Nothing to prepare."""

    def block_sizes(self, round_, clients, broadcast):  # noqa: ARG002
        return ()

    def ask(self, round_, clients, broadcast):
        self._asked += [(client, round_, broadcast) for client in clients.tolist()]

    def replies(self, timeout=None) -> Iterator[Block | Failure]:
        del timeout  # who does not answer is known at once
        while self._asked:
            question = self._order(list(self._asked))[0]
            self._asked.remove(question)
            client, round_, broadcast = question
            if client in self.lost:
                continue
            if client in self.failing:
                yield Failure(client, self.failing[client], round_)
                continue
            changed = self._change(self._answer(client, round_, broadcast))
            yield from [changed] if isinstance(changed, Block) else changed

    def _answer(self, client, round_, broadcast) -> Block:
        start, size = int(self._data.train.start[client]), int(self._data.train.size[client])
        task = ClientTask(client, start, size, self._work.count(round_, size), round_)
        update, state, metrics = self._program(
            broadcast,
            self._states.stacked([client], broadcast),
            self._arrays,
            self.workload.frozen,
            np.array([task], np.int32),
            clients_key(self._seed),
            schedules.at(self._work.lr, round_),
            capacity=capacity(self._work, size),
        )
        clients = np.array([client])
        self._states.put(clients, state)
        return Block(clients, update, np.array([size]), metrics, round_)

    def under_way(self):
        return [(client, round_) for client, round_, _ in self._asked]

    def cancel(self):
        self._asked = []

    @property
    def splits(self):
        return self._scorer.splits

    def evaluate(self, params, split, budget=None):
        if self._client.personal is None:
            return self._scorer(params, split, budget)
        return self._scorer.personal(
            lambda k: self._client.personal(params, self._states.get(k, params)), split, budget
        )

    def commit(self):
        self._states.commit()
        self._committed = list(self._asked)

    def snapshot(self):
        asked = in_flight.pack(in_flight.of_clients(self._committed))
        return Snapshot(self._states.tensors() | asked)

    def restore(self, snapshot, broadcast):
        self._states.load(snapshot.tensors, broadcast)
        self._asked = [
            (client, asked.round, asked.broadcast)
            for asked in in_flight.unpack(snapshot.tensors, broadcast)
            for client in asked.clients
        ]
        self.commit()

    def close(self):
        """Nothing is held."""
