"""Is memory flat? Run: python benchmarks/ray_memory.py [--clients K] [--rounds T] [--write-docs]

Trains logistic regression on a packed store of a million clients, a thousand in a round, on two
Ray actors, and prints the memory of the driver, of an actor and of Ray's object store after
every tenth of the run. Growth is told from the end of the second tenth on, once all is compiled.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pages
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fedmom
from fedmom.core.compilation import prepare_process
from fedmom.data.store.writer import Packer
from fedmom.runtimes.cluster import connect

FEATURES, CLASSES, SAMPLES = 16, 10, 2
COLUMNS = ["round", "driver, MB", "an actor, MB", "object store, MB", "ms a round"]
CONSOLE = Console()


class Row(NamedTuple):
    """Megabytes after a round, and the time of a round since the row before."""

    round: int
    driver: float
    actor: float
    store: float
    milliseconds: float


def pack(folder: Path, clients: int) -> None:
    """Stream random clients into a store."""
    rng = np.random.default_rng(0)
    with Packer(
        folder,
        name=f"{clients} clients",
        features=fedmom.Features("vector", (FEATURES,), CLASSES),
        columns={"x": ("float32", (FEATURES,)), "y": ("uint8", ())},
        source={"generated": True},
    ) as packer:
        for k in track(range(clients), "packing", console=CONSOLE, transient=True):
            rows = {
                "x": rng.standard_normal((SAMPLES, FEATURES), np.float32),
                "y": rng.integers(0, CLASSES, SAMPLES, np.uint8),
            }
            packer.add(str(k), rows, train=(0, SAMPLES), test=(0, 0))


def resident_mb(process: int) -> float:
    """Return a process's own memory in megabytes, without the files and objects it maps."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


def object_store_mb() -> float:
    """Return what Ray's object store holds on this machine."""
    from ray._private.internal_api import node_stats

    node = connect.package().nodes()[0]
    stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"])
    return stats.store_stats.object_store_bytes_used / 2**20


def rows_of(data: fedmom.FederatedData, per_round: int, rounds: int) -> list[Row]:
    """Train, and return the memory after every tenth of the rounds."""
    model = fedmom.build_model("logreg", data.features)
    work = fedmom.LocalWork(lr=0.01, steps=2)
    method = fedmom.Algorithm(fedmom.servers.fedmom(), work, rule=fedmom.mean("cohort"))
    runtime = fedmom.RayRuntime(fedmom.Workload(data, model, method), actors=2)
    actor, every, rows = runtime.actors()[0][1], max(1, rounds // 10), []
    began = time.perf_counter()
    for _, record in fedmom.train(runtime, pace=fedmom.synchronous(per_round), rounds=rounds):
        if record.round % every == 0:
            took = 1000 * (time.perf_counter() - began) / every
            memory = resident_mb(os.getpid()), resident_mb(actor), object_store_mb()
            rows.append(Row(record.round, *memory, took))
            began = time.perf_counter()
    runtime.close()
    return rows


def grown(rows: list[Row]) -> str:
    first, last = rows[1], rows[-1]
    return (
        f"Grown from round {first.round} to round {last.round}: driver"
        f" {last.driver - first.driver:+.1f} MB, actor {last.actor - first.actor:+.1f} MB, object"
        f" store {last.store - first.store:+.1f} MB."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--per-round", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--write-docs", action="store_true", help="renew docs/scale.md")
    options = parser.parse_args()
    prepare_process()
    connect.connect()
    with tempfile.TemporaryDirectory() as folder:
        pack(Path(folder) / "store", options.clients)
        data = fedmom.load_data(str(Path(folder) / "store"))
        rows = rows_of(data, options.per_round, options.rounds)
    said = (
        f"{options.clients:,} clients, {options.per_round:,} in a round, {options.rounds} rounds,"
        f" two actors. {grown(rows)}"
    )
    cells = [
        [str(r.round), *(f"{x:.1f}" for x in (r.driver, r.actor, r.store)), f"{r.milliseconds:.0f}"]
        for r in rows
    ]
    table = Table(*COLUMNS, box=None)
    for row in cells:
        table.add_row(*row)
    CONSOLE.print(table)
    CONSOLE.print(said)
    if options.write_docs:
        text = f"{pages.markdown(COLUMNS, cells)}\n{said}\n"
        pages.write_section("memory", text, pages.SCALE)


if __name__ == "__main__":
    main()
