"""Is Ray as fast as this process? Run: python benchmarks/ray_speed.py [--repeats N] [--write-docs]

Trains LeNet-5 (H=22, batches of 10) on the same clients with the local runtime, with two actors
of one core and with one, in turn, and prints throughput as a ratio to the local runtime's of the
same repeat. Actors are held to a core each: otherwise one alone would add its clients' updates up
on the other core. Beside it stands what the machine allows: the work of two processes of one core
that know nothing of each other, over that of one. Then it measures first rounds, each in a process
of its own, once Ray is up.
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
import pages
import work as w
from ours import population
from rich.console import Console
from rich.table import Table

import fedmom
from fedmom.core.compilation import prepare_process
from fedmom.runtimes.cluster import connect

WORK = "lenet"
STEPS = w.WORKS[WORK].steps
CLIENT_STEPS = 4_400  # in the timed part of a measurement, about
SIZES = (100, 10)
WAYS = ("local", "ray, 2 actors", "ray, 1 actor")
COLUMNS = [
    "M",
    "local, ms per client-step",
    "two actors / local",
    "one actor / local",
    "two actors / one",
]
HELD: dict[int, int] = {}  # cores of actors, by their processes
COLD = {"JAX_ENABLE_COMPILATION_CACHE": "false"}


def hold_to_cores(runtime: fedmom.RayRuntime) -> None:
    """Give each actor one core, in turn, with all of its threads. Runs share actors."""
    cores = sorted(os.sched_getaffinity(0))
    for _, process in sorted(runtime.actors()):
        if process not in HELD:
            HELD[process] = cores[len(HELD) % len(cores)]
            for thread in Path(f"/proc/{process}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {HELD[process]})


class Rounds:
    """A run on one runtime, some rounds at a time."""

    def __init__(
        self, way: str, size: int, data: fedmom.FederatedData, workers: int | None = None
    ) -> None:
        model = fedmom.build_model("lenet5", data.features)
        work = fedmom.LocalWork(lr=w.LR, steps=STEPS)
        method = fedmom.Algorithm(fedmom.servers.fedavg(data.clients / size), work)
        workload = fedmom.Workload(data, model, method)
        if way == "local":
            runtime = fedmom.LocalRuntime(workload, workers=workers)
        else:
            runtime = fedmom.RayRuntime(workload, actors=int(way.split()[1]))
            hold_to_cores(runtime)
        self.runtime = runtime
        self._rounds = fedmom.train(runtime, pace=fedmom.synchronous(size), rounds=1_000_000)

    def seconds(self, rounds: int) -> float:
        """Return how long some rounds take."""
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


def lone(core: int) -> None:
    """Print the client-steps per second of a process that has one core, whenever it is asked."""
    os.sched_setaffinity(0, {core})
    run = Rounds("local", 50, population(WORK), workers=1)
    run.seconds(2)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(CLIENT_STEPS / run.seconds(CLIENT_STEPS // STEPS // 50), flush=True)


def ideal(repeats: int) -> list[float]:
    """Return the work of two processes at once over that of one, repeat by repeat."""
    environment = {"NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--lone", str(core)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        for core in sorted(os.sched_getaffinity(0))[:2]
    ]

    def rates(asked: list[subprocess.Popen]) -> list[float]:
        for process in asked:
            process.stdin.write("\n")
            process.stdin.flush()
        return [float(process.stdout.readline()) for process in asked]

    for process in processes:
        process.stdout.readline()
    found = [sum(rates(processes)) / rates(processes[:1])[0] for _ in range(repeats)]
    for process in processes:
        process.communicate()
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


def ratios(found: dict[str, list[float]], way: str, to: str) -> str:
    """Return the median ratio of two ways, and the lowest and highest of all repeats."""
    each = [a / b for a, b in zip(found[way], found[to], strict=True)]
    return f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"


def row(size: int, found: dict[str, list[float]]) -> list[str]:
    return [
        str(size),
        f"{1000 / statistics.median(found['local']):.3f}",
        *(ratios(found, way, "local") for way in WAYS[1:]),
        ratios(found, WAYS[1], WAYS[2]),
    ]


def first_rounds(repeats: int) -> list[str]:
    """Return what first rounds take, each in a process of its own, as sentences."""
    said = []
    for name, environment in (("programs kept on disk", {}), ("compiling", COLD)):
        pairs = [[child(way, environment) for way in WAYS[:2]] for _ in range(repeats)]
        here = statistics.median(local["in_all"] for local, _ in pairs)
        up, whole = (
            statistics.median(ray[key] for _, ray in pairs) for key in ("with_actors_up", "in_all")
        )
        said.append(
            f"First round, {name}: local {here:.2f} s; two actors {up:.2f} s ({up / here:.2f}"
            f" times) once they are up, {whole:.2f} s with their start."
        )
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--write-docs", action="store_true", help="renew docs/scale.md")
    parser.add_argument("--first", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--lone", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    prepare_process()
    if options.first:
        first_round(options.first)
        return
    if options.lone is not None:
        lone(options.lone)
        return
    connect.connect()
    data, console = population(WORK), Console(width=120)
    rows = [row(size, throughput(size, options.repeats, data)) for size in SIZES]
    connect.package().shutdown()
    table = Table(*COLUMNS, box=None)
    for cells in rows:
        table.add_row(*cells)
    console.print(table)
    allowed = ideal(options.repeats)
    said = [
        "Two processes of one core that know nothing of each other do"
        f" {statistics.median(allowed):.2f} ({min(allowed):.2f} to {max(allowed):.2f}) times the"
        " work of one.",
        *first_rounds(repeats=3),
    ]
    for sentence in said:
        console.print(sentence)
    if options.write_docs:
        listed = "".join(f"- {sentence}\n" for sentence in said)
        pages.write_section("speed", f"{pages.markdown(COLUMNS, rows)}\n{listed}", pages.SCALE)


if __name__ == "__main__":
    main()
