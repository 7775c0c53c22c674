"""A client on its own device: what it remembers, how it trains, and what it answers.

It runs the same compiled program as in every other runtime.
"""

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flwr.app import ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from fedmom.algorithms import schedules
from fedmom.algorithms.local_work import capacity
from fedmom.algorithms.workload import Workload
from fedmom.core.compilation import keep_programs
from fedmom.core.files import inner_folder, read_file, write_atomic
from fedmom.core.prng import clients_key
from fedmom.core.tensor_files import packed, unpacked
from fedmom.core.types import Params, Say
from fedmom.data.batches import place
from fedmom.data.federated import FederatedData
from fedmom.data.rows.values import listed
from fedmom.data.schema import Schema
from fedmom.runtimes.base import Scores
from fedmom.runtimes.client_programs import ClientTask, compiled
from fedmom.runtimes.devices import wire
from fedmom.runtimes.devices.wire import NEW
from fedmom.runtimes.scoring import Scorer


class StateFolder:
    """A client's states, one file for each round that it answered.

    The server says from which round's state to start, and which ones nobody will ask for again.
    So a device does the right thing after its own restart, and after one of the server's, which
    may repeat rounds.

    Args:
        folder: Where the device keeps what it remembers.
        run: The run's name, a few letters and digits.
    """

    def __init__(self, folder: Path, run: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise ValueError("the run's name is not of digits and the letters a to f")
        self._folder = inner_folder(inner_folder(folder) / run)

    def load(self, round_: int, form: Any) -> Any | None:
        """Return the state after a round, or None where there is none that can be used."""
        leaves, structure = jax.tree.flatten(form)
        with contextlib.suppress(OSError, ValueError, KeyError):
            tensors = unpacked(read_file(self._file(round_), most=None))
            kept = [tensors[str(i)] for i in range(len(leaves))]
            forms = [[(leaf.shape, leaf.dtype) for leaf in each] for each in (kept, leaves)]
            if forms[0] == forms[1]:
                return jax.tree.unflatten(structure, kept)
        return None

    def save(self, round_: int, state: Any, oldest: int) -> None:
        """Keep the state after a round; forget those before ``oldest``."""
        self._folder.mkdir(parents=True, exist_ok=True)
        tensors = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        write_atomic(self._file(round_), *packed(tensors))
        for file in self._folder.glob("round-*.safetensors"):
            if file < self._file(oldest):
                file.unlink(missing_ok=True)

    def _file(self, round_: int) -> Path:
        return self._folder / f"round-{max(round_, 0):08d}.safetensors"


class Trained(NamedTuple):
    """What a client sends back, and what it did for that."""

    update: Params
    metrics: dict[str, float]  # the loss, and what else the method's client reports
    samples: int
    steps: int


class DeviceClient:
    """A client on its own device.

    Args:
        workload: What is run. Its data has one client, this one.
        number: The client's number in the run.
        states: Where it keeps its state between rounds.
    """

    def __init__(self, workload: Workload, number: int, states: StateFolder) -> None:
        keep_programs()
        self.workload, self._number, self._states = workload, number, states
        self._arrays = place(workload.data.arrays)

    def train(self, round_: int, broadcast: Any, start: int = NEW, oldest: int = NEW) -> Trained:
        """Answer a round.

        Args:
            round_: The round.
            broadcast: What the server sent.
            start: The round whose state the client starts from; NEW if it has none.
            oldest: The first round whose state may be asked for again.
        """
        work, data = self.workload.work, self.workload.data
        first, size = int(data.train.start[0]), int(data.train.size[0])
        task = ClientTask(self._number, first, size, work.count(round_, size), round_)
        update, after, metrics = compiled(self.workload, "one")(
            jax.device_put(broadcast, jax.devices()[0]),
            jax.tree.map(lambda leaf: np.asarray(leaf)[None], self._state(broadcast, start)),
            self._arrays,
            self.workload.frozen,
            np.array([task], np.int32),
            clients_key(self.workload.seed),
            schedules.at(work.lr, round_),
            capacity=capacity(work, size),
        )
        if jax.tree.leaves(after):
            self._states.save(round_, jax.tree.map(lambda leaf: leaf[0], after), oldest)
        mine = jax.tree.map(lambda leaf: np.asarray(leaf[0]), update)
        numbers = {name: float(value[0]) for name, value in metrics.items() if name != "norm"}
        return Trained(mine, numbers, size, int(task.steps))

    def evaluate(self, params: Params, split: str, budget: int, start: int = NEW) -> Scores:
        """Evaluate a model on at most ``budget`` of the client's own samples."""
        personal = self.workload.method.client.personal
        if personal is not None:
            params = personal(params, self._state(params, start))
        return Scorer(self.workload, self._arrays)(params, split, budget)

    def _state(self, broadcast: Any, start: int) -> Any:
        """Return the client's state; one that was deleted or never was is made new."""
        fresh = self.workload.method.client.init(broadcast)
        has_kept = start != NEW and jax.tree.leaves(fresh)
        kept = self._states.load(start, fresh) if has_kept else None
        return fresh if kept is None else kept


Worked = tuple[RecordDict, str, str, str]  # the reply; what was asked, was done and is sent


class Owner(NamedTuple):
    """What a device's owner has set up."""

    data: Callable[[], FederatedData]  # the device's own data, with one client
    open: Callable[[ConfigRecord], DeviceClient]  # the client that a task is for
    say: Say  # tells the owner what is asked and what leaves the device
    trouble: Callable[[BaseException], None]  # keeps what went wrong, on the device


def answer(message: Message, owner: Owner) -> Message:
    """Do what a message asks for. An error leaves the device as its name, without data or paths."""
    began = time.perf_counter()
    try:
        content = _do(message, owner, began)
    except Exception as error:
        owner.trouble(error)
        reply = failed(message, error)
        owner.say(f"It failed. The server was told: {reply.error.reason}.")
        return reply
    return Message(content, reply_to=message)


def failed(message: Message, error: Exception) -> Message:
    """Return what a server is told of an error: its name."""
    reason = f"{type(error).__name__} on the device, whose own log says more"
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def _do(message: Message, owner: Owner, began: float) -> RecordDict:
    kind = message.metadata.message_type.partition(".")[0]
    if kind == MessageType.QUERY:
        return _describe(owner)
    task = message.content[wire.TASK]
    if not isinstance(task, ConfigRecord):
        raise TypeError("the task is not a record of settings")
    work = _train if kind == MessageType.TRAIN else _evaluate
    reply, asked, did, sent = work(message.content, task, owner.open(task))
    owner.say(
        f"{asked} ({_bytes(wire.size_of(message.content))} came). {did} in"
        f" {time.perf_counter() - began:.1f} s. Sent, in {_bytes(wire.size_of(reply))}: {sent}."
    )
    return reply


def _describe(owner: Owner) -> RecordDict:
    """Tell how many samples there are and what a model must accept: nothing of the samples."""
    data = owner.data()
    train, test = int(data.train.size[0]), int(data.test.size[0])
    facts = MetricRecord({"train": train, "test": test})
    schema = Schema.of(data)
    kind = ConfigRecord({"schema": schema.to_json().decode()})
    reply = RecordDict({wire.FACTS: facts, wire.TASK: kind})
    owner.say(
        f"The server asked what is here. Sent, in {_bytes(wire.size_of(reply))}: how many samples"
        f" there are ({train} training, {test} test), their kind ({schema.kind}), shape and"
        f" number of labels{_names_sent(schema)}."
    )
    return reply


def _names_sent(schema: Schema) -> str:
    """Return which names a schema tells, for the device's owner."""
    columns = [] if schema.columns is None else [column.name for column in schema.columns.inputs]
    what = "characters" if schema.kind == "text" else "labels"
    sent = {"names of columns": columns, f"names of {what}": schema.class_names or ()}
    return "".join(f", {kind} ({listed(names)})" for kind, names in sent.items() if names)


def _train(content: RecordDict, task: ConfigRecord, client: DeviceClient) -> Worked:
    round_, start, oldest = (_whole(task, name) for name in ("round", "state", "oldest"))
    broadcast = wire.tree_of(content, wire.MODEL, client.workload.broadcast_form())
    done = client.train(round_, broadcast, start, oldest)
    facts = MetricRecord({**done.metrics, "samples": done.samples})
    reply = RecordDict({wire.UPDATE: wire.arrays_of(done.update), wire.FACTS: facts})
    more = "".join(f", {name}" for name in done.metrics if name != "loss")
    did = f"Took {done.steps} steps on {done.samples} samples"
    loss = f"the loss {done.metrics['loss']:.4g}"
    sent = f"an update of the model, {loss}{more} and the number of samples"
    return reply, f"Round {round_ + 1}: asked to train", did, sent


def _evaluate(content: RecordDict, task: ConfigRecord, client: DeviceClient) -> Worked:
    start = _whole(task, "state")
    counts = {s: n for s in ("train", "test") if s in task and (n := _whole(task, s))}
    params = wire.tree_of(content, wire.MODEL, client.workload.params())
    facts: dict[str, int | float | list[int] | list[float]] = {}
    names: dict[str, None] = {}
    for split, count in counts.items():
        scores = client.evaluate(params, split, count, start)
        facts[f"{split}/evaluated"] = int(scores.evaluated[0])
        for name, sums in scores.sums.items():
            facts[f"{split}/sum/{name}"] = np.asarray(sums[0], np.float64).tolist()
            names[name] = None
    which = " and ".join(f"{count} {split} samples" for split, count in counts.items())
    reply = RecordDict({wire.FACTS: MetricRecord(facts)})
    sent = f"these numbers, and the sums of {', '.join(names)}"
    return reply, "Asked to evaluate a model", f"Did so on {which},", sent


def _whole(task: ConfigRecord, name: str) -> int:
    value = task[name]
    if type(value) is not int:
        raise TypeError(f"{name} is not a whole number")
    return value


def _bytes(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1000:,.0f} kB"
