"""The contract suite on real nodes: both ends of a Flower app whose server is pytest.

The suite runs in the server app, where there is a Grid (tests/deploy/test_contract_on_nodes.py
starts it). Its methods and models are functions of tests, so they are sent to the nodes as they
are; each node trains on its own client's part of the data.
"""

import base64
from dataclasses import replace
from pathlib import Path

from ray import cloudpickle

from fedmom.runtimes.devices.client import DeviceClient, Owner, StateFolder, answer
from fedmom.runtimes.devices.link import Link, identity
from fedmom.runtimes.devices.population import Device, natural, population
from fedmom.runtimes.devices.runtime import DeviceRuntime
from tests.runtimes.device_grid import part_of, run_name

GRID = None  # Flower's, in a server app


def devices(workload):
    """A runtime on the nodes that are online, each of which is one client."""
    nodes = sorted(GRID.get_nodes(), key=lambda node: natural(node.name))
    data, sizes = workload.data, (workload.data.train.size, workload.data.test.size)
    assert len(nodes) == data.clients
    known = [
        Device(identity(node.public_key), node.name, *(int(size[k]) for size in sizes))
        for k, node in enumerate(nodes)
    ]
    link = Link(GRID)
    link.settings = {"workload": base64.b64encode(cloudpickle.dumps(workload)).decode()}
    there = population(run_name(), data.features, known, link)
    return DeviceRuntime(replace(workload, data=there), deadline=100.0, least=1)


def respond(message, context):
    """What a node does with a message."""
    place = Path(str(context.node_config["folder"]))

    def opened(task):
        work = cloudpickle.loads(base64.b64decode(task["workload"]))
        number = int(str(context.node_config["client"]))
        assert number == task["client"]
        mine = replace(work, data=part_of(work.data, number))
        return DeviceClient(mine, number, StateFolder(place / "state", str(task["run"])))

    def keep(text):
        with (place / "device.log").open("a") as log:
            log.write(f"{text}\n")

    return answer(message, Owner(data=lambda: None, open=opened, say=keep, trouble=keep))
