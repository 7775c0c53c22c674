"""What a device does with a message, and what it tells its owner."""

import json
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from fedmom.core.types import Say
from fedmom.data.federated import FederatedData
from fedmom.runtimes.devices import wire
from fedmom.runtimes.devices.client import DeviceClient

Open = Callable[[ConfigRecord], DeviceClient]


class Owner(NamedTuple):
    """What a device's owner has set up."""

    data: Callable[[], FederatedData]  # the device's own data, with one client
    open: Open  # the client that a task is for
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
    client = owner.open(task)
    if kind == MessageType.TRAIN:
        return _train(message.content, task, client, owner.say, began)
    return _evaluate(message.content, task, client, owner.say, began)


def _describe(owner: Owner) -> RecordDict:
    """Tell how many samples there are and what a model must accept: nothing of the samples."""
    data = owner.data()
    train, test = int(data.train.size[0]), int(data.test.size[0])
    reply = RecordDict(
        {
            wire.FACTS: MetricRecord({"train": train, "test": test}),
            wire.TASK: ConfigRecord({"features": json.dumps(data.features)}),
        }
    )
    owner.say(
        f"The server asked what is here. Sent, in {_bytes(wire.size_of(reply))}: how many samples"
        f" there are ({train} training, {test} test), their kind ({data.features.kind}), shape and"
        " number of labels."
    )
    return reply


def _train(
    content: RecordDict, task: ConfigRecord, client: DeviceClient, say: Say, began: float
) -> RecordDict:
    round_, start, oldest = (_whole(task, name) for name in ("round", "state", "oldest"))
    broadcast = wire.tree_of(content, wire.MODEL, client.broadcast_form())
    done = client.train(round_, broadcast, start, oldest)
    reply = RecordDict(
        {
            wire.UPDATE: wire.arrays_of(done.update),
            wire.FACTS: MetricRecord({**done.metrics, "samples": done.samples}),
        }
    )
    more = "".join(f", {name}" for name in done.metrics if name != "loss")
    say(
        f"Round {round_ + 1}: asked to train ({_bytes(wire.size_of(content))} came). Took"
        f" {done.steps} steps on {done.samples} samples in {time.perf_counter() - began:.1f} s."
        f" Sent, in {_bytes(wire.size_of(reply))}: an update of the model, the loss"
        f" {done.metrics['loss']:.4g}{more} and the number of samples."
    )
    return reply


def _evaluate(
    content: RecordDict, task: ConfigRecord, client: DeviceClient, say: Say, began: float
) -> RecordDict:
    start = _whole(task, "state")
    counts = {split: _whole(task, split) for split in ("train", "test") if split in task}
    params = wire.tree_of(content, wire.MODEL, client.params_form())
    facts: dict[str, int | float | list[int] | list[float]] = {}
    names: dict[str, None] = {}
    for split, count in counts.items():
        if count:
            scores = client.evaluate(params, split, count, start)
            facts[f"{split}/evaluated"] = int(scores.evaluated[0])
            facts |= {
                f"{split}/sum/{name}": np.asarray(sums[0], np.float64).tolist()
                for name, sums in scores.sums.items()
            }
            names |= dict.fromkeys(scores.sums)
    which = " and ".join(f"{count} {split} samples" for split, count in counts.items() if count)
    reply = RecordDict({wire.FACTS: MetricRecord(facts)})
    say(
        f"Asked to evaluate a model ({_bytes(wire.size_of(content))} came). Did so on {which}, in"
        f" {time.perf_counter() - began:.1f} s. Sent, in {_bytes(wire.size_of(reply))}: these"
        f" numbers, and the sums of {', '.join(names)}."
    )
    return reply


def _whole(task: ConfigRecord, name: str) -> int:
    value = task[name]
    if type(value) is not int:
        raise TypeError(f"{name} is not a whole number")
    return value


def _bytes(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1000:,.0f} kB"
