"""A trivial round on three real nodes of this machine: FedMom's app and Flower's own FedAvg.

    pip install -e '.[flower]'
    python benchmarks/flower_round.py --rounds 8

Both apps send a model of 610 numbers and take next to no time to train it, so that what is
measured is the way there and back. Each runs on nodes started by ``flower-supernode`` and on nodes
started by ``fedmom deploy device``, one after another, with TLS and keys. Prints the median seconds
of a round.
"""

import argparse
import itertools
import json
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from fedmom.flower import launch
from fedmom.flower.control import Control
from fedmom.flower.layout import create, open_device
from fedmom.flower.running import ENDED

DATA = "synthetic:clients=3"
SERVER = """
import json, time
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    def aggregate_train(self, server_round, replies):
        result = super().aggregate_train(server_round, replies)
        self.ends.append(time.time())
        return result


@app.main()
def main(grid, context):
    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=3,
                     min_available_nodes=3)
    strategy.ends = []
    first = ArrayRecord([np.zeros((60, 10), np.float32), np.zeros(10, np.float32)])
    strategy.start(grid=grid, initial_arrays=first, num_rounds=context.run_config["rounds"])
    with open(context.run_config["out"], "w") as file:
        json.dump(strategy.ends, file)
"""
CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    arrays = message.content["arrays"].to_numpy_ndarrays()
    content = RecordDict({"arrays": ArrayRecord([0.9 * a for a in arrays]),
                          "metrics": MetricRecord({"num-examples": 10})})
    return Message(content, reply_to=message)
"""


def peer_app(folder, ours):
    """Flower's FedAvg with a client in NumPy, in the layout of our own app."""
    package = folder / "fedmom_app"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "server_app.py").write_text(SERVER)
    (package / "client_app.py").write_text(CLIENT)
    (folder / "pyproject.toml").write_text((ours / "pyproject.toml").read_text())
    return folder


def nodes(stack, deployment, kind):
    """Start three nodes, by Flower's program or by ours."""
    for number in (1, 2, 3):
        device = open_device(deployment.path / "devices" / f"device-{number}")
        port = launch.free_port()
        command = launch.supernode(device, port, DATA, str(number - 1))
        if kind == "flower-supernode":
            flower = [sys.executable, "-c", "from flwr.supernode.cli import *; flower_supernode()"]
            command = [*flower, *command[command.index("--superlink") :]]
        env = launch.environment(device.path / "flwr", FEDMOM_CACHE=str(device.path / "cache"))
        stack.enter_context(launch.running(command, device.path / "log", env, device.path))


def wait(condition):
    while not condition():
        time.sleep(0.5)


def run(deployment, values, app=None):
    """Run an app to its end."""
    with Control(deployment) as control:
        run_id = control.start(values, app)
        wait(lambda: control.run(run_id).status in ENDED)
        ended = control.run(run_id)
    if ended.status != "completed":
        raise SystemExit(f"a run ended as {ended.status}: {ended.details}")


def measure(deployment, peer, rounds, place):
    """Return the median seconds of a round of Flower's app and of ours, on the nodes there are."""
    out = place / "peer.json"
    run(deployment, {"rounds": rounds + 1, "out": str(out)}, peer)
    ends = json.loads(out.read_text())
    theirs = statistics.median(b - a for a, b in itertools.pairwise(ends))
    settings = {"rounds": rounds + 1, "clients-per-round": 3, "local-steps": 1, "eval-every": 10**6}
    runtime = "flower:devices=3,deadline=300"
    run(deployment, {**settings, "runtime": runtime, "out": str(place / "ours")})
    rows = [json.loads(line) for line in (place / "ours" / "rounds.jsonl").open()]
    return theirs, statistics.median(row["seconds"] for row in rows[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ending it ends the nodes, too
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        place = Path(folder)
        deployment = create(place / "fl", f"127.0.0.1:{launch.free_port()}", 3)
        env = launch.environment(deployment.server / "flwr")
        log = deployment.server / "log"
        command = launch.superlink(deployment)
        stack.enter_context(launch.running(command, log, env, deployment.path))
        peer = peer_app(place / "peer" / "app", deployment.app)
        with Control(deployment) as control:
            wait(control.is_up)
            control.update_keys()
            print(f"{'nodes':24}{'Flower FedAvg':>16}{'FedMom':>12}   seconds a round")
            base = None
            for kind in ("flower-supernode", "fedmom deploy device"):
                with ExitStack() as there:
                    nodes(there, deployment, kind)
                    wait(lambda: sum(node.online for node in control.nodes()) == 3)
                    own = place / kind.replace(" ", "-")
                    own.mkdir()
                    theirs, ours = measure(deployment, peer, rounds, own)
                base = base or theirs
                print(f"{kind:24}{theirs:16.2f}{ours:12.2f}", flush=True)
                wait(lambda: not any(node.online for node in control.nodes()))
            print(f"FedMom as deployed / Flower's stock app: {ours / base:.2f}")


if __name__ == "__main__":
    main()
