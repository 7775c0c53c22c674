"""Clients on the machines of a Ray cluster: the same rounds, on more cores."""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms.workload import Workload
from fedmom.core.arguments import checked, checked_class
from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.runtimes.base import Block, Budget, Clients, Failure, Scores, Snapshot
from fedmom.runtimes.client_states import Simulated
from fedmom.runtimes.cluster import connect
from fedmom.runtimes.cluster.actor import ActorReply, Job
from fedmom.runtimes.cluster.actors import RunActor, RunActors, pool_of
from fedmom.runtimes.cluster.balance import Speed, deal
from fedmom.runtimes.cluster.connect import losses, unwrapped
from fedmom.runtimes.in_flight import Question
from fedmom.runtimes.scoring import ClientRange, Scorer

OnLoss = Literal["redo", "drop"]
ROWS = 8  # clients in a job whose replies are sent one by one
TRIES = 3  # actors that an evaluation may lose


@dataclass(eq=False)
class _Sent:
    """A job that an actor has."""

    actor: RunActor
    question: Question
    clients: list[int]
    broadcast: Any  # its reference
    cost: float
    is_again: bool


class _Arrived(NamedTuple):
    """An answer that is not taken yet, with the new states of the job's clients."""

    sent: _Sent
    answer: Block | Failure
    states: dict[str, NDArray[Any]]


@checked_class
class RayRuntime(Simulated):
    """Runs clients on actors of a Ray cluster.

    Actors hold the data, mapped into memory or shared by all actors of a machine, and the
    compiled programs. In a round each gets a reference to the model and the numbers of its
    clients, and sends back their replies, or one sum of them. Clients keep their states where
    they were last at work. The driver has a copy of those that count, so that nothing is lost
    with an actor.

    Args:
        workload: What is run.
        address: ``host:port`` of the cluster, or ``auto``; by default Ray is started on this
            machine, unless RAY_ADDRESS is set.
        actors: How many actors; by default as many as the cluster has room for, also when
            machines join or leave.
        cpus: CPUs of each actor.
        on_loss: What becomes of the clients of an actor that is lost: ``redo`` asks them again,
            once; ``drop`` counts them as failed.
        sums: Let each actor add up its clients' updates, where nothing needs them one by one.

    Examples:
        >>> import fedmom
        >>> def on_the_cluster(workload: fedmom.Workload) -> fedmom.RayRuntime:
        ...     return fedmom.RayRuntime(workload, address="auto", actors=8)
    """

    def __init__(
        self,
        workload: Workload,
        *,
        address: str | None = None,
        actors: int | None = None,
        cpus: int = 1,
        on_loss: OnLoss = "redo",
        sums: bool = True,
    ) -> None:
        for name, value in (("actors", actors), ("cpus", cpus)):
            if value is not None and value < 1:
                raise FedMomError(f"{name}={value} must be at least 1.")
        if on_loss not in ("redo", "drop"):
            raise FedMomError(f"on_loss={on_loss} must be redo or drop.")
        self._ray = connect.connect(address)
        super().__init__(workload, Scorer(workload, {}))
        self._on_loss, self._may_sum, self._sums = on_loss, sums, False
        self._cohort = 0
        self._actors = RunActors(self._ray, pool_of(self._ray, cpus), workload, actors)
        self._homes: dict[int, RunActor] = {}  # of clients with a state: who has it as it counts
        self._sent: dict[Any, _Sent] = {}
        self._arrived: deque[_Arrived] = deque()

    def prepare(self, cohort: int, *, sums: bool) -> None:
        """Note what a run will look like.

        Args:
            cohort: How many clients are usually asked at once.
            sums: Whether actors may add up their clients' replies.
        """
        self._cohort, self._sums = cohort, sums and self._may_sum

    def block_sizes(self, round_: int, clients: Clients, broadcast: Any) -> Sequence[int]:  # noqa: ARG002
        """Return nothing: which actor answers first is not known."""
        return ()

    def replies(self, timeout: float | None = None) -> Iterator[Block | Failure]:
        """Yield replies as they come, until every asked client has answered or failed."""
        while self._sent or self._arrived:
            if not self._arrived and not self._receive(timeout):
                return
            while self._arrived:
                yield self._take(self._arrived.popleft())

    def cancel(self) -> None:
        """Forget everybody who was asked and has not answered; actors stop after a client."""
        for ref in self._sent:
            self._ray.cancel(ref)
        self._sent.clear()
        self._arrived.clear()
        super().cancel()

    def actors(self) -> list[tuple[str, int]]:
        """Return the node and the process of every actor that can work now."""
        actors = self._actors.ready()
        return self._ray.get([actor.handle.process.remote() for actor in actors])

    @checked
    def evaluate(self, params: Params, split: str, budget: Budget = None) -> Scores:
        """Let the actors evaluate a model, each on some of the clients."""
        self._scorer.check(params)
        plan = self._scorer.plan(split, budget)
        sent = self._put(params)
        left = plan.parts(len(self._actors.ready()))
        done: dict[ClientRange, Scores] = {}
        for _ in range(TRIES):
            actors = itertools.cycle(self._actors.ready())
            asked = [
                (part, actor, self._evaluate(actor, sent, (split, budget, part)))
                for part, actor in zip(left, actors, strict=False)
            ]
            done |= {part: scores for part, *at in asked if (scores := self._got(*at)) is not None}
            left = [part for part in left if part not in done]
            if not left:
                return _joined([done[part] for part in sorted(done)])
        raise FedMomError(f"Actors were lost {TRIES} times during an evaluation.")

    def restore(self, snapshot: Snapshot, broadcast: Any) -> None:
        """Resume from a snapshot."""
        self._homes.clear()
        super().restore(snapshot, broadcast)

    def close(self) -> None:
        """Let the actors forget this run. They stay, for the next one of this process."""
        self.cancel()
        self._actors.close()

    def _send(self, question: Question) -> None:
        super()._send(question)
        sent = self._put(question.broadcast)
        self._share_out(question, list(question.clients), sent, is_again=False)

    def _put(self, tree: Any) -> Any:
        """Put arrays into the object store, once for all actors."""
        return self._ray.put(jax.tree.map(np.asarray, tree))

    def _share_out(
        self, question: Question, clients: list[int], broadcast: Any, *, is_again: bool
    ) -> None:
        actors = self._actors.ready()
        costs = np.array([self._cost(question.round, client) for client in clients])
        places = {actor: place for place, actor in enumerate(actors)}
        homes = [places.get(self._homes[c]) if c in self._homes else None for c in clients]
        speeds = Speed.compared([actor.speed for actor in actors])
        for actor, share in zip(actors, deal(costs, speeds, homes), strict=True):
            size = len(share) if self._sums else ROWS
            for first in range(0, len(share), size or 1):
                part = share[first : first + size]
                names, cost = [clients[place] for place in part], float(costs[part].sum())
                self._submit(_Sent(actor, question, names, broadcast, cost, is_again))

    def _cost(self, round_: int, client: int) -> float:
        """Return the samples that a client goes through in a round."""
        size = int(self._data.train.size[client])
        return float(self._work.count(round_, size) * (self._work.batch_size or size))

    def _submit(self, sent: _Sent) -> None:
        foreign = [c for c in sent.clients if self._homes.pop(c, None) is not sent.actor]
        states = self.states.tensors_of(foreign)
        cohort = self._cohort or len(sent.question.clients)
        job = Job(sent.question.round, sent.clients, foreign, states, cohort, self._sums)
        run = sent.actor.handle.run
        self._sent[run.remote(self._actors.run, job, sent.broadcast)] = sent

    def _receive(self, timeout: float | None) -> bool:
        """Wait for the next job that is done; return whether one came in time."""
        done, _ = self._ray.wait(list(self._sent), timeout=timeout)
        for ref in done:
            sent = self._sent.pop(ref)
            reply: ActorReply | None = self._got(sent.actor, ref)
            if reply is None:
                self._lost(sent)
            else:
                sent.actor.speed.note(sent.cost, reply.seconds)
                self._arrived += [_Arrived(sent, block, reply.states) for block in reply.blocks]
        return bool(done)

    def _take(self, arrived: _Arrived) -> Block | Failure:
        """Note that clients have answered, and their new states."""
        sent, answer, states = arrived
        question = sent.question
        names = [answer.client] if isinstance(answer, Failure) else answer.clients.tolist()
        question.answered(names)
        if not question.clients:
            self._asked.remove(question)
        if states:
            rows = np.isin(states["states/clients"], names)
            own = {name: values[rows] for name, values in states.items()}
            self.states.take(own, question.broadcast)
            self._homes |= dict.fromkeys(names, sent.actor)
        return answer

    def _lost(self, sent: _Sent) -> None:
        """Ask the clients of a lost actor again, or count them as failed."""
        if self._on_loss == "redo" and not sent.is_again:
            self._share_out(sent.question, sent.clients, sent.broadcast, is_again=True)
            return
        reason = "its actor was lost again" if sent.is_again else "its actor was lost"
        failures = (Failure(client, reason, sent.question.round) for client in sent.clients)
        self._arrived += [_Arrived(sent, failure, {}) for failure in failures]

    def _evaluate(
        self, actor: RunActor, params: Any, where: tuple[str, int | None, ClientRange]
    ) -> Any:
        clients: list[int] = []
        if self._client.personal is not None:
            split, budget, (first, last) = where
            clients = self._scorer.plan(split, budget).clients[first:last].tolist()
        states = self.states.tensors_of(clients)
        return actor.handle.evaluate.remote(self._actors.run, params, where, clients, states)

    def _got(self, actor: RunActor, ref: Any) -> Any:
        """Return what an actor sent; None if it was lost, and the run resumes without it."""
        try:
            return self._ray.get(ref)
        except losses():
            self._actors.lose(actor)
            return None
        except self._ray.exceptions.RayTaskError as error:
            raise unwrapped(error) from None


def _joined(parts: Sequence[Scores]) -> Scores:
    samples, evaluated, sums, metrics = zip(*parts, strict=True)
    joined = {name: np.concatenate([each[name] for each in sums]) for name in sums[0]}
    return Scores(np.concatenate(samples), np.concatenate(evaluated), joined, metrics[0])
