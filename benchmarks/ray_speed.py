"""Is Ray as fast as this process? Run: python benchmarks/ray_speed.py [--repeats N] [--json FILE]

Trains LeNet-5 (H=22, batches of 10) on the same clients with the local runtime, with two actors
of one core and with one, in turn, and prints throughput as a ratio to the local runtime's of the
same repeat. Then it measures first rounds, each in a process of its own, once Ray is up.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import jax
import work as w
from ours import population
from rich.console import Console
from rich.table import Table

import fedmom
from fedmom.core.compilation import prepare_process
from fedmom.runtimes.base import Workload
from fedmom.runtimes.cluster import connect
from fedmom.runtimes.cluster.runtime import RayRuntime

WORK = "lenet"
STEPS = w.WORKS[WORK].steps
CLIENT_STEPS = 4_400  # in the timed part of a measurement, about
SIZES = (100, 10)
WAYS = ("local", "ray, 2 actors", "ray, 1 actor")
COLD = {"JAX_ENABLE_COMPILATION_CACHE": "false"}


class Rounds:
    """A run on one runtime, some rounds at a time."""

    def __init__(self, way: str, size: int, data: fedmom.FederatedData) -> None:
        model = fedmom.build_model("lenet5", data.features)
        method = fedmom.Algorithm(fedmom.fedavg(data.clients / size), rule=fedmom.mean())
        work = fedmom.LocalWork(lr=w.LR, steps=STEPS)
        if way == "local":
            runtime = fedmom.LocalRuntime(data, model, work, method)
        else:
            workload = Workload(data, model, work, method)
            runtime = RayRuntime(workload, actors=int(way.split()[1]), sums=True)
        self.runtime = runtime
        self._rounds = fedmom.train(
            fedmom.start(model, method),
            runtime,
            method,
            pace=fedmom.synchronous(fedmom.uniform(data.train.size), size),
            samples=data.train.size,
            rounds=1_000_000,
        )

    def seconds(self, rounds: int) -> float:
        """Return how long so many rounds take."""
        began = time.perf_counter()
        for _ in range(rounds):
            state, _ = next(self._rounds)
        self.params = jax.block_until_ready(state.params)
        return time.perf_counter() - began


def throughput(size: int, repeats: int, data: fedmom.FederatedData) -> dict[str, list[float]]:
    """Return the client-steps per second of every way, repeat by repeat, in turn."""
    runs = {way: Rounds(way, size, data) for way in WAYS}
    for run in runs.values():
        run.seconds(3)  # compiles
    rounds = max(2, round(CLIENT_STEPS / STEPS / size))
    found: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(repeats):
        for way, run in runs.items():
            found[way].append(rounds * size * STEPS / run.seconds(rounds))
    for run in runs.values():
        run.runtime.close()
    return found


def first_round(way: str) -> None:
    """Print the seconds from a runtime's making to the end of its first round."""
    data = population(WORK)
    if way != "local":
        connect.connect()
    began = time.perf_counter()
    run = Rounds(way, 10, data)
    if way != "local":
        run.runtime.actors()
    up = time.perf_counter()
    run.seconds(1)
    end = time.perf_counter()
    print(json.dumps({"with_actors_up": end - up, "in_all": end - began}))


def child(way: str, environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, __file__, "--first", way]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def ratios(found: dict[str, list[float]], way: str, to: str) -> float:
    return statistics.median(a / b for a, b in zip(found[way], found[to], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--first", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    prepare_process()
    if options.first:
        first_round(options.first)
        return
    connect.connect()
    data, console = population(WORK), Console()
    measured: dict[str, object] = {}
    table = Table("M", "local", *(f"{way} / local" for way in WAYS[1:]), "2 actors / 1", box=None)
    for size in SIZES:
        found = throughput(size, options.repeats, data)
        measured[f"M={size}"] = found
        table.add_row(
            str(size),
            f"{1000 / statistics.median(found['local']):.3f} ms",
            *(f"{ratios(found, way, 'local'):.2f}" for way in WAYS[1:]),
            f"{ratios(found, WAYS[1], WAYS[2]):.2f}",
        )
    console.print("Throughput (local: milliseconds per client-step)")
    console.print(table)
    connect.package().shutdown()
    for name, environment in (("compiled before", {}), ("compiling", COLD)):
        here, there = (child(way, environment) for way in WAYS[:2])
        measured[f"first round, {name}"] = {"local": here, "ray": there}
        console.print(
            f"First round, {name}: local {here['in_all']:.2f} s; Ray {there['with_actors_up']:.2f}"
            f" s with its actors up, {there['in_all']:.2f} s with their start."
        )
    if options.json:
        options.json.write_text(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
