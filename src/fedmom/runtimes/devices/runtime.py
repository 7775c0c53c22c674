"""The runtime whose clients are real devices."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MessageType, RecordDict

from fedmom.algorithms.workload import Workload
from fedmom.core.errors import BadReplyError, FedMomError
from fedmom.core.types import Params
from fedmom.runtimes import in_flight
from fedmom.runtimes.base import Block, Clients, Failure, Scores, Snapshot
from fedmom.runtimes.devices import wire
from fedmom.runtimes.devices.link import ABSENT, SECONDS_BETWEEN_LOOKS
from fedmom.runtimes.devices.population import DeviceData, DeviceOptions
from fedmom.runtimes.devices.wire import NEW, Sums, UnusableReplyError

ABSURD = 1e6  # times the median loss of the devices, or times 1 where that is smaller
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before those who did not answer are asked again
FRUITLESS = 3  # answers in a row that cannot be used, after which a device is set aside
SECONDS_ASIDE = 600.0  # then it is asked once more


class _Question(NamedTuple):
    """A client that was asked and has not answered."""

    client: int
    round: int
    broadcast: Any


class DeviceRuntime:
    """Asks devices through Flower and takes their replies, which it checks one by one.

    A device that is offline, fails or does not answer in time is a ``Failure``. A round to which
    fewer than ``least`` devices have answered is repeated: those who failed are asked again. One
    whose answers cannot be used, three times in a row, is set aside for ten minutes; if too few are
    left for the round, the run ends and says who. What clients remember stays on their devices; a
    snapshot holds the rounds whose states count.

    Args:
        workload: What is run; its data is that of ``fedmom.runtimes.devices.population``.
        devices: How many must be there before a run begins.
        deadline: Seconds that a device has to answer.
        least: The fewest replies that make a round.
        max_samples: The most samples that a device may claim.
        max_classes: The most classes that a device may claim, unless most devices claim more.
    """

    runs_method = True

    def __init__(
        self,
        workload: Workload,
        *,
        devices: int = 1,
        deadline: float = 600.0,
        least: int = 1,
        max_samples: int = 100_000,
        max_classes: int = 1000,
    ) -> None:
        DeviceOptions(devices, deadline, least, max_samples, max_classes).checked()
        data = workload.data
        if not isinstance(data, DeviceData) or data.link is None:
            raise FedMomError(
                "runtime flower trains on devices, and there are none here: it runs in a Flower"
                " app. Start it with `fedmom deploy run` (docs/deploy.md)."
            )
        self.workload, self._data, self._link = workload, data, data.link
        self._deadline, self._least = deadline, least
        self._metrics = workload.model.metrics
        self._asked: dict[str, _Question] = {}  # by the message's id
        self._failed: list[tuple[_Question, str]] = []  # not told yet, or asked again
        self._useless: dict[int, int] = {}  # of a client: unusable answers in a row
        self._aside: dict[int, float] = {}  # of a client: until when nobody asks it
        self._committed: list[_Question] = []
        self._rounds: dict[int, int] = {}  # of a client: the round whose state counts
        self._changed: dict[int, int] = {}
        self._saved: list[dict[int, int]] = [{}, {}]  # the former, of the last two snapshots
        self._there: set[int] | None = None  # the clients that were online at the last look
        # A model, and its scores on splits that were not asked for yet.
        self._evaluated: tuple[Any, dict[tuple[str, int | None], Scores]] = (None, {})

    def prepare(self, cohort: int, *, sums: bool) -> None:
        """Do nothing: devices compile for themselves, and answer one by one."""

    def block_sizes(self, round_: int, clients: Clients, broadcast: Any) -> Sequence[int]:  # noqa: ARG002
        """Return one for each client."""
        return [1] * len(clients)

    def ask(self, round_: int, clients: Clients, broadcast: Any) -> None:
        """Send the broadcast to devices."""
        self._send([_Question(client, round_, broadcast) for client in clients.tolist()])

    def replies(self, timeout: float | None = None) -> Iterator[Block | Failure]:
        """Yield replies as they come; ask again where too few do."""
        good, pause, quiet = 0, FIRST_PAUSE, time.monotonic()
        least = min(self._least, len(self._questions()))
        while self._asked or self._failed:
            for answer in self._answers():
                good += 1
                quiet = time.monotonic()
                yield answer
            enough = good >= least
            if timeout is not None and time.monotonic() - quiet > timeout:
                if enough:
                    return
                self._give_up()
            if enough:
                yield from self._failures()
            elif self._failed and not self._asked:
                self._check_possible(good, least)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                self._ask_again(good)
                quiet = time.monotonic()
            if self._asked:
                time.sleep(SECONDS_BETWEEN_LOOKS)

    def under_way(self) -> list[tuple[int, int]]:
        """Return (client, round) of everybody who was asked and has not answered."""
        return [(q.client, q.round) for q in self._questions()]

    def cancel(self) -> None:
        """Forget everybody who was asked and has not answered."""
        for question in self._asked.values():
            self._note("too late", *question[:2])
        self._link.forget(self._asked)
        self._asked, self._failed = {}, []

    @property
    def splits(self) -> Sequence[str]:
        """The splits that have samples."""
        return [name for name in ("train", "test") if self._data.split(name).size.any()]

    def evaluate(self, params: Params, split: str, budget: int | None = None) -> Scores:
        """Let the devices that are online evaluate a model; wait until one has.

        A message costs more than an evaluation, so all splits are asked for in one.
        """
        if split not in self.splits:
            raise FedMomError(f"The devices have no {split} samples to evaluate.")
        asked, waiting = self._evaluated
        if asked is params and (split, budget) in waiting:
            return waiting.pop((split, budget))
        pause, model, fruitless = FIRST_PAUSE, wire.arrays_of(params), 0
        while True:
            scores, faults = self._ask_scores(model, budget)
            if split in scores:
                self._evaluated = (params, {(s, budget): scores[s] for s in scores if s != split})
                return scores[split]
            fruitless += bool(faults)
            if fruitless >= FRUITLESS:
                raise BadReplyError(
                    f"No device could evaluate the model on {split} samples, {FRUITLESS} times in a"
                    f" row ({'; '.join(faults)}). Correct these devices, then resume the run."
                )
            self._tell("no scores", reason=f"no device has evaluated the model on {split} samples")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def commit(self) -> None:
        """Note that a round is done."""
        self._rounds |= self._changed
        self._changed = {}
        self._committed = self._questions()

    def snapshot(self) -> Snapshot:
        """Return whose state counts after which round, and who was asked with what."""
        if self._saved[-1] != self._rounds:
            self._saved = [self._saved[-1], dict(self._rounds)]
        rounds = np.array(sorted(self._rounds.items()), np.int64)
        tensors = {"devices/state_of": rounds} if self._rounds else {}
        return Snapshot(tensors | in_flight.pack(in_flight.of_clients(self._committed)))

    def restore(self, snapshot: Snapshot, broadcast: Any) -> None:
        """Resume from a snapshot: who was asked is asked again."""
        tensors = snapshot.tensors
        self._rounds = dict(tensors.get("devices/state_of", np.zeros((0, 2), int)).tolist())
        self._changed, self._saved = {}, [dict(self._rounds), dict(self._rounds)]
        self._asked, self._failed = {}, []
        self._committed = [
            _Question(client, asked.round, asked.broadcast)
            for asked in in_flight.unpack(tensors, broadcast)
            for client in asked.clients
        ]
        self._send(self._committed)

    def close(self) -> None:
        """Stop waiting for replies."""
        self._link.forget(self._asked)

    def _questions(self) -> list[_Question]:
        return [*self._asked.values(), *(question for question, _ in self._failed)]

    def _online(self) -> dict[int, int]:
        """Return the node of every client that is online; take note of who has come and gone."""
        ids = {node.key: node.id for node in self._link.nodes()}
        keys = [device.key for device in self._data.devices]
        nodes = {client: ids[key] for client, key in enumerate(keys) if key in ids}
        if nodes.keys() != self._there:
            self._there = set(nodes)
            self._tell("online", clients=sorted(nodes))
        return nodes

    def _send(self, questions: Sequence[_Question]) -> None:
        """Send questions of one broadcast, or of several."""
        nodes = self._online()
        for client, until in self._aside.items():
            if until > time.monotonic():
                nodes.pop(client, None)
        models: dict[int, ArrayRecord] = {}
        contents = {
            nodes[question.client]: self._content(question, models)
            for question in questions
            if question.client in nodes
        }
        group = str(questions[0].round + 1) if questions else ""
        sent = self._link.send(MessageType.TRAIN, contents, self._deadline, group)
        for question in questions:
            message = sent.get(nodes.get(question.client, NEW))
            if message:
                self._asked[message] = question
                self._note("asked", *question[:2])
            else:
                self._fail(question, self._why_aside(question.client) or "it is offline")

    def _content(self, question: _Question, models: dict[int, ArrayRecord]) -> RecordDict:
        """Return a task: the model, which is made a record once, and what is this client's own."""
        client, round_, broadcast = question
        if id(broadcast) not in models:
            models[id(broadcast)] = wire.arrays_of(broadcast)
        task = self._task(client, round=round_, oldest=self._saved[0].get(client, NEW))
        return RecordDict({wire.MODEL: models[id(broadcast)], wire.TASK: task})

    def _task(self, client: int, **more: int) -> ConfigRecord:
        """Return what a device is told: the run's settings, and what is this client's own."""
        state = self._changed.get(client, self._rounds.get(client, NEW))  # be it committed or not
        own: dict[str, Any] = {"run": self._data.run, "client": client, "state": state}
        return ConfigRecord({**self._link.settings, **own, **more})

    def _answers(self) -> Iterator[Block]:
        """Yield the replies that are there and can be used; note the others as failures."""
        if not self._asked:
            return
        method, broadcast = self.workload.method, next(iter(self._asked.values())).broadcast
        form = method.forms(broadcast)[-1]
        keeps_state = bool(jax.tree.leaves(jax.eval_shape(method.client.init, broadcast)))
        for answered in self._link.take(list(self._asked), wire.bytes_of(form)):
            question = self._asked.pop(answered.asked)
            try:
                reply = wire.block(*question[:2], answered.got(), form)
            except UnusableReplyError as error:
                self._fail(question, str(error))
                if str(error) not in ABSENT:
                    self._take_note(question.client)
                continue
            self._useless.pop(question.client, None)
            if keeps_state:
                self._changed[question.client] = question.round
            took = round(answered.seconds, 3)
            self._note("answered", *question[:2], seconds=took, bytes=answered.bytes)
            yield reply

    def _fail(self, question: _Question, reason: str) -> None:
        self._failed.append((question, reason))
        self._note("failed", *question[:2], reason=reason)

    def _take_note(self, client: int) -> None:
        """Note that a device has answered what cannot be used; set it aside if it always does."""
        self._useless[client] = self._useless.get(client, 0) + 1
        if self._useless[client] >= FRUITLESS:
            self._aside[client] = time.monotonic() + SECONDS_ASIDE

    def _why_aside(self, client: int) -> str:
        """Return why a device is not asked at present; "" if it is."""
        if self._aside.get(client, 0.0) <= time.monotonic():
            return ""
        return f"it is set aside: {self._useless[client]} answers in a row could not be used"

    def _check_possible(self, good: int, least: int) -> None:
        """Refuse to repeat a round for which those who are set aside are needed."""
        hopeless = [(q, why) for q, why in self._failed if self._why_aside(q.client)]
        if good + len(self._failed) - len(hopeless) >= least:
            return
        round_ = self._failed[0][0].round + 1
        who = "; ".join(f"{self._data.users[q.client]}: {why}" for q, why in hopeless)
        raise BadReplyError(
            f"Round {round_} has {good} of at least {least} replies, and those that it lacks could"
            f" not be used {FRUITLESS} times in a row ({who}). Correct these devices, or use a"
            " smaller least; then resume the run."
        )

    def _failures(self) -> Iterator[Failure]:
        """Tell of those who failed."""
        while self._failed:
            question, reason = self._failed.pop(0)
            yield Failure(question.client, reason, question.round)

    def _give_up(self) -> None:
        """Stop waiting for those who were asked."""
        self._link.forget(self._asked)
        for question in self._asked.values():
            self._fail(question, "it did not answer in time")
        self._asked = {}

    def _ask_again(self, good: int) -> None:
        """Repeat a round for those who failed."""
        again, self._failed = [question for question, _ in self._failed], []
        clients, reason = [q.client for q in again], f"{good} of at least {self._least} replies"
        self._tell("repeated", round=again[0].round + 1, clients=clients, reason=reason)
        self._send(again)

    def _ask_scores(
        self, model: ArrayRecord, budget: int | None
    ) -> tuple[dict[str, Scores], list[str]]:
        """Ask everybody who is online for the scores on every split that somebody has.

        Returns:
            The scores, and whose answers could not be used and why.
        """
        takes = {s: wire.taken(self._data.split(s).size, budget) for s in self.splits}
        nodes = self._online()
        contents = {}
        for client, node in nodes.items():
            task = self._task(client, **{s: int(count[client]) for s, count in takes.items()})
            contents[node] = RecordDict({wire.MODEL: model, wire.TASK: task})
        sent = self._link.send(MessageType.EVALUATE, contents, self._deadline)
        asked = {sent[node]: client for client, node in nodes.items() if sent[node]}
        told: dict[str, dict[int, Sums]] = {split: {} for split in takes}
        faults: list[str] = []
        most = len(takes) * (1 + len(self._metrics)) * wire.BYTES_OF_A_ROW
        while asked:
            for answered in self._link.take(list(asked), most):
                client = asked.pop(answered.asked)
                try:
                    sums = wire.all_sums(answered.got(), takes, client, self.workload.model)
                except UnusableReplyError as error:
                    self._note("failed", client, reason=str(error))
                    if str(error) not in ABSENT:
                        faults.append(f"{self._data.users[client]}: {error}")
                    continue
                self._note("evaluated", client, seconds=round(answered.seconds, 3))
                for split, found in sums.items():
                    told[split][client] = found
            if asked:
                time.sleep(SECONDS_BETWEEN_LOOKS)
        scores = {
            split: self._scores(sums, self._data.split(split).size, takes[split])
            for split, sums in told.items()
            if sums
        }
        return scores, faults

    def _scores(self, told: Mapping[int, Sums], sizes: Clients, counts: Clients) -> Scores:
        """Put together what devices measured, leaving out those who measured something else."""
        usual, _ = Counter(map(_form, told.values())).most_common(1)[0]
        alike = {client: sums for client, sums in told.items() if _form(sums) == usual}
        finite = {k: v for k, v in alike.items() if np.isfinite(np.hstack([*v.values()])).all()}
        kept = finite or alike  # nobody's is: the model's own fault, which the caller tells
        kept = _believable(kept, counts)
        for client in told.keys() - kept.keys():
            self._note(
                "failed", client, reason="its sums are absurd, not finite, or not those asked for"
            )
        clients = sorted(kept)
        sums = {name: np.array([kept[c][name] for c in clients]) for name, _ in usual}
        return Scores(sizes[clients], counts[clients], sums, self._metrics)

    def _note(self, event: str, client: int, round_: int | None = None, **more: Any) -> None:
        place = {} if round_ is None else {"round": round_ + 1}
        self._tell(event, client=client, **place, **more)

    def _tell(self, event: str, **more: Any) -> None:
        self._link.journal({"event": event, **more, "at": round(time.time(), 3)})


def _believable(told: dict[int, Sums], counts: Clients) -> dict[int, Sums]:
    """Leave out devices whose mean loss is absurd next to the others'."""
    losses = {k: float(np.ravel(sums["loss"])[0]) / int(counts[k]) for k, sums in told.items()}
    usual = sorted(losses.values())[(len(losses) - 1) // 2]
    most = ABSURD * max(1.0, abs(usual))
    return {k: sums for k, sums in told.items() if not abs(losses[k]) > most} or told


def _form(sums: Sums) -> tuple[tuple[str, int], ...]:
    """Return the names of sums, and how many numbers each has."""
    return tuple((name, np.size(values)) for name, values in sums.items())
