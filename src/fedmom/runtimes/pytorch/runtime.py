"""Clients that train a PyTorch module in PyTorch, in worker processes on this machine."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms import schedules
from fedmom.algorithms.base import Client, reported
from fedmom.algorithms.client import Kept
from fedmom.algorithms.workload import Broadcast, Workload
from fedmom.core.arguments import checked, checked_class
from fedmom.core.errors import FedMomError
from fedmom.core.prng import clients_key, fold_in
from fedmom.core.threefry import folded
from fedmom.core.types import Params
from fedmom.data.batches import place, reader
from fedmom.models.variables import Variables
from fedmom.runtimes.base import Block, Budget, Clients, Failure, Scores
from fedmom.runtimes.client_programs import Answer, kept
from fedmom.runtimes.client_states import Simulated
from fedmom.runtimes.in_flight import Question
from fedmom.runtimes.pytorch import memory, setting_up
from fedmom.runtimes.pytorch.memory import Memory
from fedmom.runtimes.pytorch.pool import AHEAD, Pool, TorchJob
from fedmom.runtimes.pytorch.worker import Answer as Reply
from fedmom.runtimes.pytorch.worker import Scoring, Training
from fedmom.runtimes.scoring import Scorer, compile_measures

OUTPUTS = 2**25  # bytes of outputs that a worker returns at once, if one sample has not more
ROWS = 128  # samples that it evaluates at once, as on a CPU in JAX


@dataclass(eq=False)
class _Ticket:
    """A client that a worker has: where its model comes from, and where its own one goes."""

    question: Question
    client: int
    model: int
    result: int
    answer: Reply | None = None
    is_cancelled: bool = False


class TorchTrained(NamedTuple):
    """Stands where a client finds its ``LocalProblem``: the training is done already."""

    params: Params
    state: Any
    loss: jax.Array
    kept: Kept | None = None

    def train(self, _params: Params, _key: jax.Array) -> tuple[Params, jax.Array]:
        """Return what PyTorch has made of the parameters, and the mean loss."""
        if self.kept is not None:
            self.kept.variables = self.kept.variables._replace(state=self.state)
        return self.params, self.loss


@checked_class
class TorchRuntime(Simulated):
    """Trains a PyTorch module in PyTorch itself, in processes on this machine.

    For modules that cannot be converted to JAX, such as those with control flow that depends on
    data. Batches are those of the other runtimes; dropout draws from PyTorch's generator, seeded
    by (seed, round, client). Stages run in this process, on what clients have trained. A client
    whose training raises an exception is a ``Failure``, as is one that ends two processes.

    Args:
        workload: What is run; its model is a PyTorch module, and its clients do local training.
        workers: Processes, of one thread each; by default one per core.
    """

    def __init__(self, workload: Workload, *, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise FedMomError(f"workers={workers} must be at least 1.")
        count = workers or os.cpu_count() or 1
        parts = setting_up.of(workload)
        super().__init__(workload, Scorer(workload, {}, count, score=self._score))
        self._arrays = place(self._data.arrays)
        self._key = clients_key(workload.seed)
        self._words: dict[Question, dict[int, Any]] = {}  # the keys of its clients
        self._program = None if workload.method.is_plain else _compiled(self._client)
        self._measures = compile_measures(workload.model, reader(self._data.features))
        self._layout = {**parts.setup.params, **parts.setup.buffers}
        self._tickets: dict[tuple[Question, int], _Ticket] = {}
        self._answered: set[Question] = set()  # those that somebody has answered
        self._evaluated = 0  # the slot of the model that is evaluated
        self._lay_out(parts, count)

    def _lay_out(self, parts: setting_up.Parts, workers: int) -> None:
        """Divide the shared memory: models, results, outputs, samples; and start the workers."""
        under_way, room = workers * AHEAD, parts.slot
        # One model for each client under way and one to evaluate; results are also waited for.
        models, results = under_way + 1, under_way + 2
        self._models = _Models(models, room)
        self._results = [(models + number) * room for number in reversed(range(results))]
        first = (models + results) * room
        self._rows = _rows(parts.form)
        self._outputs = memory.Place(0, (self._rows, *parts.form), "<f4")
        size = memory.rounded(self._outputs.bytes, memory.PAGE)
        self._places = [first + number * size for number in range(workers)]
        arrays, end = setting_up.shared(self._data.arrays, first + workers * size)
        self._shared = Memory.new(end)
        for name, where in arrays.items():
            if isinstance(where, memory.Place):
                np.copyto(self._shared.array(where), self._data.arrays[name])
        setup = parts.setup._replace(arrays=arrays, outputs=self._outputs)
        self._pool = Pool(setting_up.pickled(setup), self._shared, self._places)

    def prepare(self, cohort: int, *, sums: bool) -> None:
        """Nothing is compiled for a number of clients, and replies are sent one by one."""

    def block_sizes(self, round_: int, clients: Clients, broadcast: Any) -> list[int]:  # noqa: ARG002
        """Return how many clients each block of replies would hold: one."""
        return [1] * len(clients)

    def replies(self, timeout: float | None = None) -> Iterator[Block | Failure]:
        """Train the clients and yield their replies in the order in which they were asked."""
        while self._asked:
            question = self._asked[0]
            self._hand_out()
            # Without a ticket while all workers are still at what was cancelled.
            while (ticket := self._next()) is None or ticket.answer is None:
                if not self._receive(timeout):
                    return
                self._hand_out()
            question.clients.popleft()
            reply = self._taken(ticket)
            if not question.clients:
                self._asked.popleft()
                self._finish(question, reply)
            yield reply

    def cancel(self) -> None:
        """Forget everybody who was asked; what workers are doing is not used."""
        for ticket in self._tickets.values():
            ticket.is_cancelled = True
            if ticket.answer is not None:
                self._results.append(ticket.result)
        for known in (self._tickets, self._answered, self._words):
            known.clear()
        super().cancel()

    @checked
    def evaluate(self, params: Params, split: str, budget: Budget = None) -> Scores:
        """Let the workers apply the module to the clients' samples.

        Args:
            params: The model's parameters.
            split: ``train`` or ``test``.
            budget: How many samples to evaluate at most; None: all.

        Returns:
            Sums per client.
        """
        self._scorer.check(params)
        while self._pool.is_busy:
            self._receive(None)
        self._evaluated = self._model_of(object(), params)
        return self._scorer(params, split, budget)

    @property
    def processes(self) -> list[int]:
        """The ids of the worker processes."""
        return self._pool.processes

    def close(self) -> None:
        """End the processes."""
        self._pool.close()
        self._shared.close()

    def _next(self) -> _Ticket | None:
        """Return the ticket of the client whose reply comes next, if a worker has it."""
        question = self._asked[0]
        return self._tickets.get((question, question.clients[0]))

    def _hand_out(self) -> None:
        """Give clients to the workers, in order, as many as they have room for."""
        room = min(self._pool.room, len(self._results))
        for question in self._asked if room else ():
            for client in question.clients:
                if (question, client) in self._tickets:
                    continue
                if not room:
                    return
                room -= 1
                self._submit(question, client)

    def _submit(self, question: Question, client: int) -> None:
        slot = self._model_of(question, _model_in(question.broadcast))
        ticket = _Ticket(question, client, slot, self._results.pop())
        self._tickets[question, client] = ticket
        self._models.users[slot] += 1
        start, size = (int(each[client]) for each in self._data.train)
        task = Training(
            model=self._models.base(slot),
            result=ticket.result,
            words=self._words_of(question)[client],
            start=start,
            size=size,
            steps=self._work.taken(question.round, client, size),
            lr=schedules.at(self._work.lr, question.round),
        )
        self._pool.submit(TorchJob(task, ticket))

    def _words_of(self, question: Question) -> dict[int, Any]:
        """Return the keys of clients in a round, as two words each."""
        if question not in self._words:
            key, clients = np.asarray(jax.random.key_data(self._key)), list(question.clients)
            words = folded(folded(key, question.round), clients).T.tolist()
            self._words[question] = dict(zip(clients, map(tuple, words), strict=True))
        return self._words[question]

    def _model_of(self, owner: Any, params: Params) -> int:
        """Return which slot holds a model, and put it there if none does."""
        slot, is_new = self._models.of(owner)
        if is_new:
            has = {**params.trained, **params.state} if isinstance(params, Variables) else params
            into = self._shared.arrays(self._layout, self._models.base(slot))
            for name, array in into.items():
                np.copyto(array, np.asarray(has[name]))
        return slot

    def _receive(self, timeout: float | None) -> bool:
        """Note what workers say; return whether one said something in time."""
        answered = self._pool.receive(timeout)
        for job, answer in answered or ():
            ticket = job.owner
            self._models.users[ticket.model] -= 1
            ticket.answer = answer
            if ticket.is_cancelled:
                self._results.append(ticket.result)
        return answered is not None

    def _taken(self, ticket: _Ticket) -> Block | Failure:
        """Return a client's reply, as its method makes it of what it has trained."""
        del self._tickets[ticket.question, ticket.client]
        client, question, answer = ticket.client, ticket.question, ticket.answer
        assert answer is not None
        if answer.loss is None:
            self._results.append(ticket.result)
            return Failure(client, answer.reason, question.round)
        self._answered.add(question)
        found = self._shared.arrays(self._layout, ticket.result)
        result = {name: array[None].copy() for name, array in found.items()}
        self._results.append(ticket.result)
        clients = np.array([client])
        update: Params = result
        metrics: dict[str, Any] = {"loss": _one(answer.loss), "norm": _one(answer.norm)}
        if self._program is not None:
            states = self.states.stacked([client], question.broadcast)
            numbers = np.array([question.round, client], np.int32)
            update, states, metrics = self._program(
                question.broadcast, states, result, metrics["loss"], self._key, numbers
            )
            self.states.put(clients, states)
        return Block(clients, update, self._data.train.size[clients], metrics, question.round)

    def _finish(self, question: Question, last: Block | Failure) -> None:
        """Forget a question; if all of its clients have failed, others would, too: end."""
        if question not in self._answered and isinstance(last, Failure):
            raise FedMomError(
                f"All clients of round {question.round + 1} failed. The last: {last.reason}."
            )
        self._answered.discard(question)
        self._words.pop(question, None)

    def _score(
        self, _params: Params, _arrays: Any, positions: NDArray[np.int32]
    ) -> tuple[NDArray[Any], ...]:
        """Return losses and metrics of samples, which a worker applies the module to."""
        size = min(self._rows, len(positions))
        parts = []
        for first in range(0, len(positions), size):
            rows = positions[first : first + size].astype(np.int64)
            at, answer = self._pool.call(Scoring(self._models.base(self._evaluated), rows))
            try:
                if answer.reason:
                    raise FedMomError(f"The module cannot be evaluated: {answer.reason}.")
                outputs = self._shared.array(self._outputs, self._places[at])[:size].copy()
            finally:
                self._pool.free(at)
            parts.append(self._measures(outputs, self._arrays, rows.astype(np.int32)))
        return tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))


class _Models:
    """Which slot holds whose model, and how many clients under way need it."""

    def __init__(self, count: int, room: int) -> None:
        self._owners: list[Any] = [None] * count
        self.users, self._room = [0] * count, room

    def base(self, slot: int) -> int:
        """Return where a slot begins."""
        return slot * self._room

    def of(self, owner: Any) -> tuple[int, bool]:
        """Return the slot of an owner, and whether it is new: then it is the lowest free one."""
        for slot, known in enumerate(self._owners):
            if known is owner:
                return slot, False
        slot = self.users.index(0)
        self._owners[slot] = owner
        return slot, True


def _model_in(broadcast: Any) -> Any:
    """Return the model among what clients receive."""
    return broadcast.method if isinstance(broadcast, Broadcast) else broadcast


def _rows(form: Sequence[int]) -> int:
    """Return how many samples are evaluated at once: a power of two."""
    most = max(1, OUTPUTS // (4 * int(np.prod(form, dtype=np.int64))))
    return min(ROWS, 1 << (most.bit_length() - 1))


@lru_cache(maxsize=32)
def _compiled(client: Client) -> Callable[..., Answer]:
    """Return ``program(broadcast, states, trained, loss, key, (round, client))``, of one client.

    It is the method's client, which finds its training done: what is left are the stages.
    """

    @jax.jit
    def program(
        broadcast: Any, states: Any, trained: Any, loss: Any, key: jax.Array, numbers: jax.Array
    ) -> Answer:
        own = fold_in(fold_in(key, numbers[0]), numbers[1])
        before, has, loss = jax.tree.map(lambda leaf: leaf[0], (states, trained, loss))
        names = _trained(_model_in(broadcast))
        params = {name: has[name] for name in names}
        state = {name: value for name, value in has.items() if name not in names}
        returned = client.run(broadcast, before, TorchTrained(params, state, loss), own)
        update, after, metrics = reported(returned, "run of the client")
        answer = update, kept(before, after, (update, metrics)), dict(metrics)
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], answer)

    return program


def _trained(model: Any) -> Params:
    return model.trained if isinstance(model, Variables) else model


def _one(value: float | None) -> NDArray[np.float32]:
    return np.array([value], np.float32)
