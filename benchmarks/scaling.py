"""What do clients, cohorts and local steps cost? Run: python benchmarks/scaling.py [--write-docs]

Trains LeNet-5 on random images in packed stores, and prints milliseconds per client-step for
more clients in the population (K), more clients in a round (M) and more local steps (H), each as
a ratio to the base case; the peak memory of each; the rounds per second of the smallest work
there is (logistic regression, one step each of two clients, on Synthetic(1, 1) and on the
images); and what an evaluation costs against its bare forward pass. Every measurement is a
process of its own, and the repeats alternate.
"""

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pages
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

import fedmom
from fedmom.data.batches import reader
from fedmom.data.store.reader import load_store
from fedmom.data.store.writer import Packer
from fedmom.runtimes.scoring import CHUNK

ERR = Console(stderr=True)
SAMPLES = 2  # of a client: a million clients are 1.6 GB
CLASSES = 62
WARM_UP = 2  # rounds; the first may run on parameters that are placed otherwise than later ones
CLIENT_STEPS = 6_000  # in the timed part of a measurement, about


class Case(NamedTuple):
    """Clients in the population, clients in a round, local steps; data other than images."""

    k: int = 1_000
    m: int = 10
    h: int = 10
    model: str = "lenet5"
    data: str | None = None


class Cost(NamedTuple):
    """What a case took."""

    ms: float
    rounds_per_second: float
    peak_mb: float


BASE = Case()
GROWING = [
    BASE,
    Case(k=1_000_000),
    Case(m=2),
    Case(m=100),
    Case(m=1000),
    Case(h=1),
    Case(h=100),
]
SMALLEST = {
    "Synthetic(1, 1), 610 parameters": Case(
        m=2, h=1, model="logreg", data="synthetic:alpha=1,beta=1,clients=1000"
    ),
    "images, 48,670 parameters": Case(m=2, h=1, model="logreg"),
}
CASES = [*GROWING, *SMALLEST.values()]


def pack(folder: Path, clients: int) -> None:
    """Stream random clients into a store."""
    rng = np.random.default_rng(0)
    with Packer(
        folder,
        name=f"{clients} clients",
        features=fedmom.Features("image", (28, 28), CLASSES),
        columns={"x": ("uint8", (28, 28)), "y": ("uint8", ())},
        source={"generated": True},
    ) as packer:
        for k in track(
            range(clients), f"packing {clients:,} clients", console=ERR, disable=not ERR.is_terminal
        ):
            x = np.frombuffer(rng.bytes(SAMPLES * 784), np.uint8).reshape(SAMPLES, 28, 28)
            y = rng.integers(0, CLASSES, SAMPLES, np.uint8)
            packer.add(f"u{k}", {"x": x, "y": y}, train=(0, SAMPLES), test=(0, 0))


def measure(folder: str, case: Case) -> Cost:
    """Train in this process, and return what it took once all is compiled."""
    data = fedmom.load_data(case.data) if case.data else load_store(Path(folder))
    model = fedmom.build_model(case.model, data.features)
    work = fedmom.LocalWork(lr=0.001, steps=case.h)
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(learning_rate=case.k / case.m), work)
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
    rounds = max(2, CLIENT_STEPS // (case.m * case.h))
    loop = fedmom.train(runtime, pace=fedmom.synchronous(case.m), rounds=rounds + WARM_UP)
    for _ in range(WARM_UP):
        next(loop)
    began = time.perf_counter()
    for state, _ in loop:
        last = state
    jax.block_until_ready(last.params)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cost(1000 * seconds / (rounds * case.m * case.h), rounds / seconds, peak)


EVALUATED = {"lenet5": "glyphs", "char_lstm": "shakespeare:roles=20,samples=1000"}


def evaluation(name: str) -> float:
    """Return the time of an evaluation over that of the forward pass alone, in equal batches."""
    data = fedmom.load_data(EVALUATED[name])
    model = fedmom.build_model(name, data.features)
    params = model.init(jax.random.key(0))
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), fedmom.LocalWork(steps=1))
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
    split = data.train
    rows = np.concatenate(
        [np.arange(b, b + n) for b, n in zip(split.start, split.size, strict=True)]
    )
    rows = rows[: len(rows) - len(rows) % CHUNK]  # whole batches
    read = reader(data.features)
    inputs = [read(data.arrays, r)[0] for r in rows.reshape(-1, CHUNK)]
    forward = jax.jit(lambda p, x: model.apply(p, x, None))

    def bare() -> None:
        jax.block_until_ready([forward(params, x) for x in inputs])

    ratios = []
    for _ in range(6):
        spent = []
        for work in (lambda: fedmom.evaluate(runtime, params, "train"), bare):
            began = time.perf_counter()
            work()
            spent.append(time.perf_counter() - began)
        ratios.append(spent[0] / spent[1])
    return statistics.median(ratios[1:])  # the first pair compiles


def measure_all(stores: dict[int, Path], repeats: int) -> dict[Case, list[Cost]]:
    """Measure every case, each time in a new process, so that its peak memory is its own."""
    costs: dict[Case, list[Cost]] = {case: [] for case in CASES}
    with Progress(console=ERR, disable=not ERR.is_terminal) as progress:
        bar = progress.add_task("measuring", total=repeats * len(CASES))
        for _ in range(repeats):
            for case in CASES:
                costs[case].append(apart(measure, str(stores[case.k]), case))
                progress.advance(bar)
    return costs


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


COLUMNS = ["K", "M", "H", "ms per client-step", "ratio", "peak MB"]


def rows(costs: dict[Case, list[Cost]]) -> list[list[str]]:
    """One row for each case; ratios are to the base case of the same repeat."""
    found = []
    for case in GROWING:
        ratios = [c.ms / b.ms for c, b in zip(costs[case], costs[BASE], strict=True)]
        found.append(
            [
                *(f"{n:,}" for n in case[:3]),
                f"{statistics.median(c.ms for c in costs[case]):.3f}",
                f"{statistics.median(ratios):.2f}",
                f"{statistics.median(c.peak_mb for c in costs[case]):,.0f}",
            ]
        )
    return found


def print_table(cells: list[list[str]]) -> None:
    """Print the rows under their columns."""
    shown = Table(box=None, title="LeNet-5; ratios to the first row")
    for column in COLUMNS:
        shown.add_column(column, justify="right")
    for row in cells:
        shown.add_row(*row)
    Console().print(shown)


def sentences(costs: dict[Case, list[Cost]]) -> list[str]:
    """What an evaluation costs, and how quick the smallest rounds are."""
    said = [
        f"An evaluation of {name} takes {apart(evaluation, name):.2f} times the bare forward pass."
        for name in EVALUATED
    ]
    for name, case in SMALLEST.items():
        rate = statistics.median(c.rounds_per_second for c in costs[case])
        said.append(f"Logistic regression, H=1, M=2, {name}: {rate:,.0f} rounds per second.")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write-docs", action="store_true", help="renew docs/performance.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stores = {k: Path(folder) / str(k) for k in sorted({case.k for case in CASES})}
        for k, store in stores.items():
            pack(store, k)
        costs = measure_all(stores, options.repeats)
    cells, said = rows(costs), sentences(costs)
    print_table(cells)
    for sentence in said:
        Console().print(sentence)
    if options.write_docs:
        listed = "".join(f"- {sentence}\n" for sentence in said)
        pages.write_section("scaling", f"{pages.markdown(COLUMNS, cells)}\n{listed}")


if __name__ == "__main__":
    main()
