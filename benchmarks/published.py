"""Published simulator tasks. Run: python benchmarks/published.py --mnist FOLDER [--no-flower]

The tasks are those of the table in FLUTE's README (github.com/microsoft/msrflute): FedAvg, 10
clients in a round, one local epoch of SGD. Logistic regression on MNIST is run whole, in a new
process, first compiling and then with its programs kept; Flower's simulation does the same work
on the same clients beside it. FEMNIST and Shakespeare are run for some rounds on the data that
is at hand, and the published number of rounds is extrapolated from those after the first.
FLUTE's times are of its authors' machines.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import engine
import numpy as np
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
CLIENTS, PER_ROUND, BATCH, LR, ROUNDS, EVERY = 1_000, 10, 10, 0.03, 100, 20
# Two pieces of the images sorted by label, of one or two digits, for every client.
PARTITION = f"shards:clients={CLIENTS},per_client=2"
FLUTE = {"FLUTE, CPU": "3:20", "Flower 1.0, CPU": "30:14"}


class Part(NamedTuple):
    """A task that is run for some of its rounds, with our model that comes nearest."""

    name: str
    model: str
    batch: int
    lr: float
    rounds: int  # as published
    published: str  # FLUTE's time, on GPUs


PARTS = {
    "femnist": Part("FEMNIST", "leaf_cnn", 20, 0.1, 1500, "8:22"),
    "shakespeare": Part("Shakespeare", "char_lstm:hidden=256", 4, 0.8, 1200, "21:50"),
}
MEASURED = 20  # rounds of a part


def timed(command: list[str], environment: dict[str, str] | None = None) -> tuple[float, str]:
    """Return the seconds of a whole process, and what it printed."""
    began = time.perf_counter()
    done = subprocess.run(
        command, env=os.environ | (environment or {}), capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return time.perf_counter() - began, done.stdout


def fedmom(*words: str, environment: dict[str, str] | None = None) -> float:
    return timed([sys.executable, "-m", "fedmom", *words], environment)[0]


def run_words(data: str, model: str, batch: int, lr: float, rounds: int, out: Path) -> list[str]:
    """Return the command of a run: FedAvg as the table's frameworks have it."""
    settings = {
        "data": data,
        "model": model,
        "algorithm": "fedavg",
        "weighting": "cohort",
        "clients-per-round": PER_ROUND,
        "local-epochs": 1,
        "batch-size": batch,
        "lr": lr,
        "rounds": rounds,
        "eval-every": EVERY,
        "out": out,
    }
    return [
        "run",
        *(word for name, value in settings.items() for word in (f"--{name}", str(value))),
    ]


def accuracy(folder: Path) -> float:
    rows = [json.loads(line) for line in (folder / "evals.jsonl").read_text().splitlines()]
    return [row["accuracy"] for row in rows if row["split"] == "test"][-1]


def mnist(images: str, folder: Path, table: Table, *, flower: bool) -> None:
    """Run logistic regression on MNIST, ours and Flower's."""
    store = folder / "store"
    fedmom("data", "prepare", images, "--partition", PARTITION, "--out", str(store))
    words = run_words(str(store), "logreg", BATCH, LR, ROUNDS, folder / "cold")
    cache = {"FEDMOM_CACHE": str(folder / "cache")}
    cold = fedmom(*words, environment=cache)
    words[-1] = str(folder / "warm")
    warm = fedmom(*words, environment=cache)
    ours = f"{100 * accuracy(folder / 'warm'):.0f} %"
    table.add_row("FedMom, programs kept", f"{warm:.1f} s", "1", ours)
    table.add_row("FedMom, compiling", f"{cold:.1f} s", f"{cold / warm:.1f}", ours)
    if flower:
        _flower(store, folder, table, warm)
    for name, text in FLUTE.items():
        minutes, seconds = map(int, text.split(":"))
        taken = 60 * minutes + seconds
        table.add_row(f"{name} (published)", f"{taken} s", f"{taken / warm:.0f}", "80 %")


def _flower(store: Path, folder: Path, table: Table, warm: float) -> None:
    from fedmom.data.store import open_store

    fault = engine.make_environment("flower")
    if fault:
        table.add_row("Flower", f"cannot be installed: {fault}", "", "")
        return
    data = open_store(store)
    x = (data.arrays["x"].reshape(len(data.arrays["x"]), -1) / np.float32(255)).astype(np.float32)
    for name, values in (("x", x), ("y", data.arrays["y"])):
        np.save(folder / f"{name}.npy", values)
    np.savez(folder / "splits.npz", train=np.stack(data.train), test=np.stack(data.test))
    python = engine.home() / "flower" / "bin" / "python"
    work = {
        "folder": str(folder),
        "rounds": ROUNDS,
        "per_round": PER_ROUND,
        "batch": BATCH,
        "lr": LR,
        "every": EVERY,
    }
    seconds, printed = timed(
        [str(python), str(HERE / "peers" / "flower_published.py")],
        {"BENCHMARK_WORK": json.dumps(work)},
    )
    result = json.loads(printed.splitlines()[-1])
    table.add_row(
        f"Flower {result['version']}",
        f"{seconds:.1f} s",
        f"{seconds / warm:.1f}",
        f"{100 * result['accuracy']:.0f} %",
    )


def part(name: str, data: str, folder: Path, table: Table) -> None:
    """Run some rounds of a task, and extrapolate to all."""
    task, out = PARTS[name], folder / name
    words = run_words(data, task.model, task.batch, task.lr, MEASURED + 1, out)
    fedmom(*words)
    rows = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    each = float(np.mean([row["seconds"] for row in rows[1:]]))
    whole = each * task.rounds
    table.add_row(
        task.name,
        f"{each:.2f} s",
        f"{whole / 60:.0f} min for {task.rounds:,} rounds",
        task.published,
        f"{task.model} on {data}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", help="the folder of MNIST's idx files")
    parser.add_argument("--femnist", default="glyphs", help="FEMNIST, as for run --data")
    parser.add_argument("--shakespeare", default="shakespeare", help="as for run --data")
    parser.add_argument("--no-flower", action="store_true")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.mnist:
            table = Table("logistic regression on MNIST", "time", "ratio", "accuracy", box=None)
            mnist(options.mnist, folder, table, flower=not options.no_flower)
            console.print(table)
        table = Table(
            *("task", "a round", "extrapolated", "FLUTE, GPU (published)", "ours"), box=None
        )
        for task in PARTS:
            part(task, getattr(options, task), folder, table)
        console.print(table)


if __name__ == "__main__":
    main()
