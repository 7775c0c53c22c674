"""Published simulator tasks. Run: python benchmarks/published.py --mnist FOLDER [--write-docs]

The tasks are those of the table in FLUTE's README (github.com/microsoft/msrflute): FedAvg, 10
clients in a round, one local epoch of SGD. Logistic regression on MNIST is run whole, in a new
process, first compiling and then with its programs kept; Flower's simulation does the same work
on the same clients. FEMNIST and Shakespeare are run for some rounds, with FLUTE's nets
and as many steps as an epoch of an average client has, on the data that is at hand; the
published number of rounds is extrapolated from those after the first. FLUTE's times are of its
authors' machines. A task is run if its data is given (``--mnist``, ``--femnist``,
``--shakespeare``); ``--write-docs`` renews docs/scale.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import engine
import numpy as np
import pages
from rich.console import Console
from rich.table import Table

from fedmom.core.compilation import prepare_process

HERE = Path(__file__).resolve().parent
CLIENTS, PER_ROUND, BATCH, LR, ROUNDS, EVERY = 1_000, 10, 10, 0.03, 100, 20
# Two pieces of the images sorted by label, of one or two digits, for every client.
PARTITION = f"shards:clients={CLIENTS},per_client=2"
FLUTE = {"FLUTE, CPU": "3:20", "Flower 1.0, CPU": "30:14"}


class Part(NamedTuple):
    """A task that is run for some of its rounds, with the same net on our data."""

    name: str
    net: str
    batch: int
    lr: float
    apart: int  # positions between samples: FLUTE cuts texts into pieces, ours overlap
    rounds: int  # as published
    published: str  # FLUTE's time, on GPUs
    measured: int  # rounds, after the first

    def steps(self, sizes: np.ndarray) -> int:
        """Return the steps of an epoch of an average client, with FLUTE's samples."""
        return max(1, round(float(sizes.mean()) / self.apart / self.batch))


PARTS = {
    "femnist": Part("FEMNIST", "cnn", 20, 0.1, 1, 1500, "8:22", 5),
    "shakespeare": Part("Shakespeare", "rnn", 4, 0.8, 80, 1200, "21:50", 3),
}
MNIST = ["logistic regression on MNIST", "time", "ratio", "accuracy", ""]
PARTLY = ["task", "a round, measured", "extrapolated", "FLUTE on GPUs, published"]


def timed(words: list[str], environment: dict[str, str] | None = None) -> tuple[float, str]:
    """Return the seconds of a whole process, and what it printed."""
    began = time.perf_counter()
    done = subprocess.run(
        words, env=os.environ | (environment or {}), capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return time.perf_counter() - began, done.stdout


def command(*words: str, environment: dict[str, str] | None = None) -> float:
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


def mnist(images: str, folder: Path, *, flower: bool) -> list[list[str]]:
    """Run logistic regression on MNIST, ours and Flower's; return the rows of a table."""
    store = folder / "store"
    command("data", "prepare", images, "--partition", PARTITION, "--out", str(store))
    words = run_words(str(store), "logreg", BATCH, LR, ROUNDS, folder / "cold")
    cache = {"FEDMOM_CACHE": str(folder / "cache")}
    cold = command(*words, environment=cache)
    words[-1] = str(folder / "warm")
    warm = command(*words, environment=cache)
    ours = f"{100 * accuracy(folder / 'warm'):.0f} %"
    rows = [
        ["FedMom, programs kept on disk", f"{warm:.1f} s", "1", ours, "measured"],
        ["FedMom, compiling", f"{cold:.1f} s", f"{cold / warm:.1f}", ours, "measured"],
    ]
    if flower:
        rows.append(_flower(store, folder, warm))
    for name, text in FLUTE.items():
        minutes, seconds = map(int, text.split(":"))
        taken = 60 * minutes + seconds
        rows.append([name, f"{taken} s", f"{taken / warm:.0f}", "80 %", "published"])
    return rows


def _flower(store: Path, folder: Path, warm: float) -> list[str]:
    from fedmom.data.store.reader import load_store

    fault = engine.make_environment("flower")
    if fault:
        return ["Flower", f"cannot be installed: {fault}", "", "", ""]
    data = load_store(store)
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
    return [
        f"Flower {result['version']}, its simulation with NumPy clients",
        f"{seconds:.1f} s",
        f"{seconds / warm:.1f}",
        f"{100 * result['accuracy']:.0f} %",
        "measured",
    ]


def part(name: str, data: str) -> list[str]:
    """Run some rounds of a task, and extrapolate to all."""
    prepare_process()
    import flute_nets

    import fedmom

    task, population = PARTS[name], fedmom.load_data(data)
    model = getattr(flute_nets, task.net)(population)
    steps = task.steps(population.train.size)
    work = fedmom.LocalWork(lr=task.lr, steps=steps, batch_size=task.batch)
    method = fedmom.Algorithm(fedmom.servers.fedavg(), work, rule=fedmom.mean("cohort"))
    runtime = fedmom.LocalRuntime(fedmom.Workload(population, model, method))
    rounds = fedmom.train(runtime, pace=fedmom.synchronous(PER_ROUND), rounds=1 + task.measured)
    each = statistics.mean([record.seconds for _, record in rounds][1:])
    return [
        f"{task.name}, {population.clients} clients, H={steps}",
        f"{each:.2f} s (mean of {task.measured})",
        f"{each * task.rounds / 60:.0f} min for {task.rounds:,} rounds",
        f"{task.published} min",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", help="the folder of MNIST's idx files")
    parser.add_argument("--femnist", help="FEMNIST, as for run --data")
    parser.add_argument("--shakespeare", help="Shakespeare, as for run --data")
    parser.add_argument("--no-flower", action="store_true")
    parser.add_argument("--write-docs", action="store_true", help="renew docs/scale.md")
    options = parser.parse_args()
    if options.mnist:
        with tempfile.TemporaryDirectory() as folder:
            rows = mnist(options.mnist, Path(folder), flower=not options.no_flower)
        show("mnist", MNIST, rows, write=options.write_docs)
    given = {task: data for task in PARTS if (data := getattr(options, task))}
    for task, data in given.items():
        show(task, PARTLY, [part(task, data)], write=options.write_docs)


def show(section: str, columns: list[str], rows: list[list[str]], *, write: bool) -> None:
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)
    if write:
        pages.write_section(section, pages.markdown(columns, rows), pages.SCALE)


if __name__ == "__main__":
    main()
