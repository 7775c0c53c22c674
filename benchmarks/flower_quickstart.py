"""Flower's PyTorch quickstart and the same module in FedMom: the same data, settings and net.

    pip install 'fedmom[flower,torch]' 'flwr[simulation]==1.41.*'
    python benchmarks/flower_quickstart.py

The quickstart's CNN (two convolutions, three dense layers) on made-up pictures of ten classes, ten
clients of 200, five of them a round, an epoch of SGD with momentum 0.9 and batches of 32. Each
program runs in a process of its own, in turn; printed are the medians of the seconds from start to
end, of those for the rounds alone, and of the accuracy on samples that no client has.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from torch import nn

CLIENTS, SAMPLES, COHORT, ROUNDS, BATCH, LR = 10, 200, 5, 20, 32, 0.02


class Net(nn.Module):
    """The quickstart's CNN, for pictures of one channel."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(256, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


def pictures(clients, seed):
    """Pictures of ten patterns, moved and noisy: (clients, samples, 28, 28), and their classes."""
    patterns = np.kron(np.random.default_rng(0).normal(size=(10, 7, 7)), np.ones((4, 4)))
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, (clients, SAMPLES))
    moves = rng.integers(-4, 5, (clients, SAMPLES, 2))
    x = np.array(
        [
            [np.roll(patterns[c], move, (0, 1)) for c, move in zip(*pair, strict=True)]
            for pair in zip(y, moves, strict=True)
        ]
    )
    return (x + 1.5 * rng.normal(size=x.shape)).astype(np.float32), y


def first_net():
    torch.manual_seed(0)
    return Net()


def accuracy(net):
    x, y = (part.reshape(-1, *part.shape[2:]) for part in pictures(2, seed=2))
    with torch.no_grad():
        return float((net.eval()(torch.from_numpy(x)[:, None]).argmax(1).numpy() == y).mean())


def fedmom_program():
    import fedmom

    x, y = pictures(CLIENTS, seed=1)
    owner = np.repeat(np.arange(CLIENTS), SAMPLES)
    data = fedmom.from_arrays(x.reshape(-1, 28, 28), y.reshape(-1), owner)
    begun = time.perf_counter()
    run = fedmom.run(
        data,
        model=first_net(),
        algorithm="fedavg",
        weighting="cohort",
        solver="sgd:momentum=0.9",
        rounds=ROUNDS,
        clients_per_round=COHORT,
        local_epochs=1,
        batch_size=BATCH,
        lr=LR,
        eval_every=ROUNDS,
        out=tempfile.mkdtemp(),
        progress=False,
    )
    seconds = time.perf_counter() - begun
    return seconds, accuracy(run.to_torch(Net()))


def flower_program():
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server, found = ClientApp(), ServerApp(), []

    @client.train()
    def train(message, context):
        torch.set_num_threads(1)
        k = context.node_config["partition-id"]
        x, y = (torch.from_numpy(part[k]) for part in pictures(CLIENTS, seed=1))
        net = Net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), LR, momentum=0.9)
        for rows in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows, None]), y[rows]).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(y)})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server.main()
    def main(grid, _context):
        strategy = FedAvg(fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0)
        begun = time.perf_counter()
        first = ArrayRecord(first_net().state_dict())
        result = strategy.start(grid, initial_arrays=first, num_rounds=ROUNDS)
        seconds = time.perf_counter() - begun
        net = Net()
        net.load_state_dict(result.arrays.to_torch_state_dict())
        found.extend((seconds, accuracy(net)))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=resources)
    return tuple(found)


PROGRAMS = {"Flower": flower_program, "FedMom": fedmom_program}


def measured(name):
    begun = time.perf_counter()
    call = [sys.executable, __file__, "--only", name]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    rounds, right = json.loads(done.stdout.splitlines()[-1])
    return time.perf_counter() - begun, rounds, right


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PROGRAMS)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(PROGRAMS[options.only]()))
        return
    rows = {name: [] for name in PROGRAMS}
    for _ in range(options.times):
        for name, found in rows.items():
            found.append(measured(name))
            print(name, found[-1], file=sys.stderr, flush=True)
    print("| | whole program, s | rounds, s | accuracy |\n|---|--:|--:|--:|")
    for name, found in rows.items():
        whole, rounds, right = map(statistics.median, zip(*found, strict=True))
        print(f"| {name} | {whole:.1f} | {rounds:.1f} | {right:.3f} |")


if __name__ == "__main__":
    main()
