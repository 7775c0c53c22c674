"""A runtime in a simulated world: the same clients, some of them away, slow or lost."""

import heapq
import json
from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from fedmom.algorithms.workload import Workload
from fedmom.core.arguments import checked, checked_class
from fedmom.core.errors import FedMomError
from fedmom.core.types import SIMULATED, Params
from fedmom.runtimes import in_flight
from fedmom.runtimes.base import Block, Budget, Clients, Failure, Runtime, Scores, Snapshot
from fedmom.runtimes.in_flight import Question
from fedmom.training.pace import Pace
from fedmom.world.base import Moment, Task, Truths, World
from fedmom.world.conditions import Limit, conditions_of, parts_of
from fedmom.world.pace import WorldPace
from fedmom.world.shares import Crowd

WAIT = 60.0  # simulated seconds until the server looks again, where nobody was there
STATE = "world/state"  # of a snapshot: JSON, as bytes
NOBODY = -1


class _Event(NamedTuple):
    """A reply, or the news that there will be none. Sorted by time, then as they were asked."""

    seconds: float
    number: int
    client: int
    round: int
    reason: str


class _Moved(NamedTuple):
    """What a world has come to: the time, how many were asked, and who is under way with what."""

    now: float
    numbered: int
    events: list[_Event]
    sent: dict[int, Any]


@checked
def in_world(workload: Workload, world: World | Sequence[World] | str) -> Workload:
    """Return a workload whose clients take the steps that a world lets them take.

    Args:
        workload: What is run.
        world: The parts of the world, or their names joined by +.

    Returns:
        The workload that the runtime is to be made from.

    Examples:
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=4")
        >>> model = fedmom.build_model("logreg", data.features)
        >>> work = fedmom.LocalWork(lr=0.01, steps=10)
        >>> workload = fedmom.Workload(data, model, fedmom.Algorithm(fedmom.servers.fedavg(), work))
        >>> slow = in_world(workload, "partial:share=1.0")
        >>> all(1 <= slow.work.taken(0, k, 50) <= 10 for k in range(4))
        True
    """
    conditions = conditions_of(parts_of(world), workload)
    if not conditions.changes_steps:
        return workload
    work = replace(workload.work, limit=Limit(conditions))
    return replace(workload, algorithm=workload.algorithm._replace(work=work))


@checked_class
class WorldRuntime:
    """Runs the clients of another runtime in a simulated world.

    Whether a client is there, how long it takes and whether it replies are functions of (seed,
    round, client) and of the simulated time, so they are the same on every runtime. Clients whose
    replies would not count are not computed.

    Args:
        runtime: Where the clients live, made from ``in_world(workload, world)``.
        pace: Whom to ask and when to step.
        world: The parts of the world, or their names joined by +.

    Examples:
        >>> import fedmom
        >>> data = fedmom.load_data("synthetic:clients=20")
        >>> model = fedmom.build_model("logreg", data.features)
        >>> work = fedmom.LocalWork(lr=0.01, steps=2)
        >>> workload = fedmom.Workload(data, model, fedmom.Algorithm(fedmom.servers.fedavg(), work))
        >>> local = fedmom.LocalRuntime(in_world(workload, "dropout:rate=0.5"))
        >>> runtime = WorldRuntime(local, fedmom.synchronous(8), "dropout:rate=0.5")
        >>> for state, record in fedmom.train(runtime, pace=runtime.pace, rounds=2):
        ...     print(record.replies + len(record.rejected), record.simulated_seconds)
        8 60.0
        8 60.0
    """

    def __init__(self, runtime: Runtime, pace: Pace, world: World | Sequence[World] | str) -> None:
        self._inner, self._plain = runtime, pace
        self._conditions = conditions = conditions_of(parts_of(world), runtime.workload)
        self._check()
        self._samples = runtime.workload.data.train.size
        self._waits = pace.takes_sums and not pace.keeps_late  # for all replies
        self._crowd = Crowd(conditions, runtime.workload)
        self._now, self._began, self._is_open = 0.0, 0.0, False
        self._round = 0
        self._asked_now: list[_Event] = []
        self._events: list[_Event] = []
        self._sent: dict[int, Any] = {}  # broadcasts by round
        self._numbered = 0
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._factors: dict[int, float] = {}
        self._committed = _Moved(0.0, 0, [], {})
        self.pace: Pace = WorldPace(pace, self._here)

    def _check(self) -> None:
        """Refuse a world that would silently not apply."""
        world, workload = self._conditions, self._inner.workload
        if world.changes_steps and workload.work.limit is None:
            raise FedMomError(
                "In this world clients take fewer steps, which the runtime has to know. Make it"
                " from fedmom.in_world(workload, world)."
            )
        if world.least and self._plain.keeps_late:
            raise FedMomError(
                f"deadline: least={world.least} is about rounds that end; this pace keeps late"
                " replies for later rounds. Leave it out."
            )
        if not world.reweighs:
            return
        world.check_chances()
        method = workload.method
        if self._plain.keeps_late:
            raise FedMomError(
                "reweighed needs the probability that a reply is among those that count, which is"
                " not known for a pace that keeps late replies. Use synchronous or over_selected."
            )
        if method.stages or method.rule.needs != "sum":
            raise FedMomError(
                f"reweighed multiplies updates by numbers, which is right for their mean alone, not"
                f" for {[s.name for s in method.stages] or method.rule.name}. Leave it out."
            )

    @property
    def workload(self) -> Workload:
        """What is run."""
        return self._inner.workload

    @property
    def runs_method(self) -> bool:
        """As of the runtime inside."""
        return self._inner.runs_method

    @property
    def splits(self) -> Sequence[str]:
        """The splits that have samples."""
        return self._inner.splits

    @property
    def simulated_seconds(self) -> float:
        """How long the last round took, in simulated time."""
        return self._now - self._began

    @property
    def counts(self) -> Mapping[str, float]:
        """Who was asked and replied in the last round, by quarters of the clients."""
        return dict(self._counts)

    def prepare(self, cohort: int, *, sums: bool) -> None:
        """Note what a run will look like."""
        self._inner.prepare(cohort, sums=sums and not self._conditions.reweighs)

    def block_sizes(self, round_: int, clients: Clients, broadcast: Any) -> Sequence[int]:
        """Return how many clients each block of replies would hold, if it is known."""
        if not self._waits:
            return ()
        moment = Moment(round_, self._now + self._pause)
        reasons = self._conditions.outcomes(moment, self._task(round_, clients)).reasons
        there = clients[[not reason for reason in reasons]]
        return self._inner.block_sizes(round_, there, broadcast) if len(there) else ()

    def ask(self, round_: int, clients: Clients, broadcast: Any) -> None:
        """Note when each client will reply, if it will."""
        self._begin()
        self._round = round_
        task = self._task(round_, clients)
        outcomes = self._conditions.outcomes(Moment(round_, self._now), task)
        for client, seconds, reason in zip(
            clients.tolist(), outcomes.seconds.tolist(), outcomes.reasons, strict=True
        ):
            event = _Event(self._now + seconds, self._numbered, client, round_, reason)
            self._asked_now.append(event)
            heapq.heappush(self._events, event)
            self._numbered += 1
        self._sent[round_] = broadcast
        self._count("asked", task)

    def replies(self, timeout: float | None = None) -> Iterator[Block | Failure]:
        """Yield replies in the order of the simulated time."""
        self._begin()
        self._is_open = False
        asked, self._asked_now = self._asked_now, []
        if not self._events:
            yield from self._nobody()
            return
        if self._conditions.reweighs:
            names = np.array([event.client for event in asked], np.int64)
            task = self._task(self._round, names)
            counted = len(asked) if self._waits else self._plain.rows
            moment = Moment(self._round, self._now)
            self._factors = self._crowd.factors(moment, task, counted)
        wanted = len(self._events) if self._waits else self._plain.rows
        while self._events:
            have_come = yield from self._answers(*self._due(wanted), timeout)
            if not have_come:
                return
            wanted = 1

    def under_way(self) -> list[tuple[int, int]]:
        """Return (client, round) of everybody who was asked and has not answered."""
        return [(event.client, event.round) for event in sorted(self._events)]

    def cancel(self) -> None:
        """Forget everybody who was asked and has not answered."""
        self._events.clear()
        self._asked_now.clear()
        self._sent.clear()
        self._is_open = False
        self._inner.cancel()

    def evaluate(self, params: Params, split: str, budget: Budget = None) -> Scores:
        """Let the clients evaluate a model: all of them, whatever the world."""
        return self._inner.evaluate(params, split, budget)

    def commit(self) -> None:
        """Note that a round is done."""
        self._inner.commit()
        waited = {event.round for event in self._events}
        self._sent = {round_: sent for round_, sent in self._sent.items() if round_ in waited}
        self._committed = _Moved(self._now, self._numbered, sorted(self._events), dict(self._sent))

    def snapshot(self) -> Snapshot:
        """Return the clients' states, the simulated time and who is under way."""
        now, numbered, events, sent = self._committed
        state = json.dumps({"now": now, "numbered": numbered, "events": [list(e) for e in events]})
        questions = [
            Question(r, deque(e.client for e in events if e.round == r), broadcast)
            for r, broadcast in sent.items()
        ]
        own = {STATE: np.frombuffer(state.encode(), np.uint8), **in_flight.pack(questions)}
        inner = self._inner.snapshot().tensors
        return Snapshot({k: v for k, v in inner.items() if not k.startswith("asked/")} | own)

    def restore(self, snapshot: Snapshot, broadcast: Any) -> None:
        """Resume from a snapshot."""
        self.cancel()
        tensors = snapshot.tensors
        inner = {k: v for k, v in tensors.items() if not k.startswith(("asked/", "world/"))}
        self._inner.restore(Snapshot(inner), broadcast)
        state = json.loads(bytes(tensors[STATE]).decode())
        self._now = self._began = float(state["now"])
        self._events = [_Event(*event) for event in state["events"]]
        heapq.heapify(self._events)
        self._numbered = state["numbered"]
        self._sent = {q.round: q.broadcast for q in in_flight.unpack(tensors, broadcast)}
        self.commit()

    def close(self) -> None:
        """Release threads and connections."""
        self._inner.close()

    @property
    def _pause(self) -> float:
        return 0.0 if self._is_open else self._conditions.pause

    def _begin(self) -> None:
        """Begin a round, if the last one has ended."""
        if not self._is_open:
            self._began = self._now
            self._now += self._conditions.pause
            self._is_open = True
            self._counts.clear()

    def _here(self, round_: int, clients: Clients) -> Truths:
        """Return who is there, at the beginning of the round that follows."""
        moment = Moment(round_, self._now + self._pause)
        return self._conditions.available(moment, clients)

    def _task(self, round_: int, clients: Clients) -> Task:
        samples = self._samples[clients]
        work = self.workload.work
        steps = np.array([work.count(round_, size) for size in samples.tolist()], np.int64)
        return self._conditions.task(clients, samples, steps)

    def _nobody(self) -> Iterator[Failure]:
        """End a round for which nobody was there: without a step, and not at once."""
        if self._conditions.has_availability:
            if not self._conditions.pause:
                self._now += WAIT
            yield Failure(NOBODY, f"{SIMULATED}nobody was there", self._round)

    def _due(self, wanted: int) -> tuple[list[_Event], list[_Event]]:
        """Take the next events until so many replies are among them; return replies and others."""
        replies: list[_Event] = []
        others: list[_Event] = []
        while self._events and len(replies) < wanted:
            event = heapq.heappop(self._events)
            self._now = max(self._now, event.seconds)
            (others if event.reason else replies).append(event)
        if self._waits:  # sums are as without a world
            replies.sort(key=lambda event: event.number)
        if len(replies) < min(self._conditions.least, wanted) and not self._events:
            fewest = f"{len(replies)} of at least {self._conditions.least} replies"
            why = f"{SIMULATED}the round had {fewest}"
            others += [event._replace(reason=why) for event in replies]
            replies = []
        return replies, others

    def _answers(
        self, replies: list[_Event], others: list[_Event], timeout: float | None
    ) -> Generator[Block | Failure, None, bool]:
        """Let clients compute what is due; return whether all of it has come in time."""
        for event in others:
            yield Failure(event.client, event.reason, event.round)
        first = 0
        for place, event in enumerate(replies):
            last = place + 1
            if last == len(replies) or replies[last].round != event.round:
                names = np.array([e.client for e in replies[first:last]], np.int64)
                self._inner.ask(event.round, names, self._sent[event.round])
                first = last
        waiting = {event.client: event for event in replies}
        try:
            for answer in self._inner.replies(timeout) if replies else ():
                for client in _clients_of(answer):
                    waiting.pop(client, None)
                yield answer if isinstance(answer, Failure) else self._reply(answer)
        finally:  # the round may have enough before all is taken
            if waiting:
                self._inner.cancel()
                for event in waiting.values():
                    heapq.heappush(self._events, event)
        return not waiting

    def _reply(self, block: Block) -> Block:
        weight = self._plain.weight(self._round - block.version)
        self._count("replied", self._task(block.version, block.clients), weight)
        return self._reweighed(block)

    def _reweighed(self, block: Block) -> Block:
        if not self._conditions.reweighs:
            return block
        factors = np.array([self._factors[c] for c in block.clients.tolist()], np.float32)
        update = jax.tree.map(
            lambda leaf: leaf * factors.reshape(-1, *[1] * (leaf.ndim - 1)), block.update
        )
        metrics = {name: value for name, value in block.metrics.items() if name != "norm"}
        return block._replace(update=update, metrics=metrics)

    def _count(self, what: str, task: Task, weight: float = 1.0) -> None:
        """Count clients by the quarter that they belong to."""
        for name, places in self._crowd.places(self._round, task).items():
            for place in places:
                self._counts[f"{what}/{name}/{place + 1}"] += 1
                if what == "replied" and self._plain.keeps_late:
                    self._counts[f"weight/{name}/{place + 1}"] += weight


def _clients_of(answer: Block | Failure) -> list[int]:
    if isinstance(answer, Failure):
        return [answer.client]
    found: list[int] = answer.clients.tolist()
    return found
