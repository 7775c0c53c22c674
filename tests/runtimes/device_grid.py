"""A Grid whose devices live in this process; messages are taken apart and put together as on a
wire."""

import hashlib
import os
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedmom.data.federated import Split
from fedmom.runtimes.devices.client import DeviceClient, Owner, StateFolder, answer
from fedmom.runtimes.devices.link import Link, identity
from fedmom.runtimes.devices.population import Device, population
from fedmom.runtimes.devices.runtime import DeviceRuntime

_PLACES = tempfile.TemporaryDirectory(prefix="devices")  # removed at the end of the process


class LoopGrid(Grid):
    """Lets each node's function answer when replies are asked for.

    ``offline`` nodes are not there; ``change`` may put another reply in place of one.
    """

    def __init__(self, handlers, change=lambda reply: reply):
        self._handlers, self._change = handlers, change
        self._waiting = {}
        self.offline = set()

    def set_run(self, run):
        """There is one run."""

    run = None

    def create_message(self, *_):
        raise NotImplementedError

    def get_node_ids(self):
        return [node for node in self._handlers if node not in self.offline]

    def get_nodes(self):
        return [
            NodeInfo(node_id=n, public_key=key(n), name=f"device-{n}") for n in self.get_node_ids()
        ]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            sent = over_the_wire(message)
            self._waiting[sent.metadata.message_id] = sent
            ids.append(sent.metadata.message_id)
        return ids

    def pull_messages(self, message_ids):
        for message_id in list(message_ids):
            message = self._waiting.pop(message_id)
            reply = self._handlers[message.metadata.dst_node_id](message)
            yield self._change(over_the_wire(reply))

    def send_and_receive(self, *_, **__):
        raise NotImplementedError


def key(node):
    return f"key {node}".encode()


def over_the_wire(message):
    contents = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    name = message.object_id
    copy = inflate_object_from_contents(name, contents)
    copy.metadata.__dict__["_message_id"] = name
    return copy


def part_of(data, k):
    """The data of one client, as its device has it."""
    train, test = (Split(s.start[k : k + 1], s.size[k : k + 1]) for s in (data.train, data.test))
    return replace(data, users=[data.users[k]], train=train, test=test)


def run_name():
    """A name for the runs of this test: its devices remember them, as long as the test goes on."""
    return hashlib.sha256(os.environ["PYTEST_CURRENT_TEST"].encode()).hexdigest()[:16]


def devices(workload, *, folder=None, change=lambda reply: reply, trouble=None, least=1):
    """A runtime on devices that each have one client of the workload's data."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as in a server app
    data = workload.data
    place = Path(folder or _PLACES.name)

    def owner(k):
        mine = part_of(data, k)
        work = replace(workload, data=mine)
        return Owner(
            data=lambda: mine,
            open=lambda task: DeviceClient(
                work, int(task["client"]), StateFolder(place / str(k), str(task["run"]))
            ),
            say=lambda _text: None,
            trouble=trouble or (lambda _error: None),
        )

    owners = {100 + k: owner(k) for k in range(data.clients)}
    grid = LoopGrid({node: partial(answer, owner=owner) for node, owner in owners.items()}, change)
    known = [
        Device(
            identity(key(100 + k)), f"device-{k}", int(data.train.size[k]), int(data.test.size[k])
        )
        for k in range(data.clients)
    ]
    there = population(run_name(), data.features, known, Link(grid))
    runtime = DeviceRuntime(replace(workload, data=there), deadline=60.0, least=least)
    runtime.grid, runtime.owners = grid, owners
    return runtime
