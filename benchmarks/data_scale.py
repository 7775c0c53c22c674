"""Does the size of a population cost anything? Run: python benchmarks/data_scale.py

Builds two generated stores, of 1,000 clients with 50,000 samples and of 1,000,000 clients with
50,000,000 samples, and prints what the large one costs, as ratios to the small one: opening it,
drawing a cohort, and a round of training. The memory of each packing is printed as well.
"""

import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fedmom
from fedmom.data.store.reader import load_store
from fedmom.data.store.writer import Packer

FEATURES = fedmom.Features("vector", (8,), 2)
SAMPLES = 50  # of a client
ERR = Console(stderr=True)


def pack(folder: Path, clients: int) -> None:
    """Stream generated clients into a store."""
    rng = np.random.default_rng(0)
    with Packer(
        folder,
        name=f"{clients} clients",
        features=FEATURES,
        columns={"x": ("uint8", (8,)), "y": ("uint8", ())},
        source={"generated": True},
    ) as packer:
        for k in track(
            range(clients), f"packing {clients:,} clients", console=ERR, disable=not ERR.is_terminal
        ):
            x = rng.integers(0, 256, (SAMPLES, 8), np.uint8)
            y = (x[:, 0] > x[:, 1]).astype(np.uint8)
            packer.add(f"u{k}", {"x": x, "y": y}, train=(0, 45), test=(45, 5))


def measured_pack(folder: str, clients: int, results) -> None:
    """Pack in a process of its own, and report its time and peak memory."""
    began = time.perf_counter()
    pack(Path(folder), clients)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    results.put((time.perf_counter() - began, peak))


def measure(folder: Path) -> dict[str, float]:
    """Return medians of the costs of a store, in milliseconds."""
    times: dict[str, list[float]] = {"open": [], "cohort": [], "round": []}
    for _ in range(5):
        began = time.perf_counter()
        data = load_store(folder)
        times["open"].append(time.perf_counter() - began)
    pace = fedmom.synchronous(10)
    for t in range(200):
        began = time.perf_counter()
        pace.ask(0, t, data.train.size, set())
        times["cohort"].append(time.perf_counter() - began)
    model = fedmom.build_model("logreg", data.features)
    algorithm = fedmom.Algorithm(fedmom.servers.fedmom(), fedmom.LocalWork(lr=0.1, steps=5))
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
    loop = fedmom.train(runtime, pace=pace, rounds=220)
    times["round"] = [record.seconds for _, record in loop][20:]
    return {name: 1000 * statistics.median(values) for name, values in times.items()}


def main() -> None:
    sizes = (1_000, 1_000_000)
    context = multiprocessing.get_context("spawn")
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for clients in sizes:
            results = context.Queue()
            store = Path(folder) / str(clients)
            process = context.Process(target=measured_pack, args=(str(store), clients, results))
            process.start()
            seconds, peak = results.get()
            process.join()
            rows[clients] = {"pack": 1000 * seconds, "peak MB": peak, **measure(store)}
    table = Table(box=None, title="Costs in milliseconds (medians), and the large over the small")
    for column in ("", *(f"{n:,} clients" for n in sizes), "ratio"):
        table.add_column(column, justify="right")
    for name in rows[sizes[0]]:
        small, large = (rows[n][name] for n in sizes)
        table.add_row(name, f"{small:,.3f}", f"{large:,.3f}", f"{large / small:,.2f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
