"""On how many cores do threads help? Run: python benchmarks/many_cores.py [--write-docs]

Clients run on threads of one process. XLA computes without Python's lock, but what Python does
around every call, one thread does at a time. The processor time of the threads that run Python
(the loop's and the clients') is an upper bound of that; XLA has threads of its own. A round cannot
take less than Python's share of it, so threads stop helping at

    cores = processor time of a client / processor time of Python for a client

Python's share is measured on clients of one step, whose calls follow each other as closely as they
do where there are many cores. On two cores it sleeps between longer clients, and waking up costs it
more. Everything is measured on the machine at hand but the number of cores, which is computed.
"""

import argparse
import time
from typing import NamedTuple

import jax
import numpy as np
import pages
from rich.console import Console

import fedmom
from fedmom.runtimes import local

CLIENTS, SAMPLES, PER_ROUND = 200, 20, 100
ROUNDS = 6


class Work(NamedTuple):
    """A model and the local steps that its clients take, on images of 28x28 in 62 classes."""

    label: str
    model: str
    steps: int


WORKS = [
    Work("LeNet-5", "lenet5", 22),
    Work("LeNet-5", "lenet5", 5),
    Work("Logistic regression", "logreg", 22),
]


class Cost(NamedTuple):
    """Processor time of a client, in microseconds: of all threads, and of those that run Python."""

    whole: float
    python: float


def population() -> fedmom.FederatedData:
    rng = np.random.default_rng(0)
    count = CLIENTS * SAMPLES
    x = rng.integers(0, 256, (count, 28, 28), np.uint8)
    return fedmom.from_arrays(x, rng.integers(0, 62, count), np.repeat(np.arange(CLIENTS), SAMPLES))


def measure(data: fedmom.FederatedData, name: str, steps: int, per_call: int) -> Cost:
    """Play rounds with ``per_call`` clients in a call; the first ones compile."""
    model = fedmom.build_model(name, data.features)
    work = fedmom.LocalWork(lr=0.01, steps=steps)
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), work)
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
    local.SHORT, local.at_once = 0, lambda *_: per_call
    rounds = fedmom.train(runtime, pace=fedmom.synchronous(PER_ROUND), rounds=ROUNDS + 2)
    for _ in range(2):
        next(rounds)
    threads = [time.pthread_getcpuclockid(thread.ident) for thread in runtime._pool._threads]

    def now() -> np.ndarray:
        return np.array(
            [time.process_time(), time.thread_time() + sum(map(time.clock_gettime, threads))]
        )

    began = now()
    for state, _ in rounds:
        jax.block_until_ready(state.params)
    taken = (now() - began) * 1e6 / (ROUNDS * PER_ROUND)
    runtime.close()
    return Cost(*taken.tolist())


def rows() -> list[list[str]]:
    """A row for every work: one client in a call, and as many as the runtime takes."""
    data, choose, found = population(), local.at_once, []
    for label, name, steps in WORKS:
        model = fedmom.build_model(name, data.features)
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        numbers = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        for per_call in dict.fromkeys((1, choose(PER_ROUND, numbers * 10 * steps))):
            whole = measure(data, name, steps, per_call).whole
            python = measure(data, name, 1, per_call).python
            cells = (steps, per_call, f"{whole:,.0f}", f"{python:.0f}", f"{whole / python:.0f}")
            found.append([label, *map(str, cells)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write-docs", action="store_true", help="renew docs/performance.md")
    options = parser.parse_args()
    heading = ["work", "H", "clients in a call", "a client (µs)", "Python (µs)", "cores, computed"]
    table = pages.markdown(heading, rows())
    Console().print(table, markup=False)
    if options.write_docs:
        pages.write_section("many cores", table)


if __name__ == "__main__":
    main()
