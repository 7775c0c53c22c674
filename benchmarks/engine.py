"""Is the engine fast? Run: python benchmarks/engine.py [--quick] [--write-docs]

Measures FedMom and its peers on the same work, alternating, on this machine. Every peer gets
a virtual environment of its own (made on the first run, in the cache folder) and a small
program in ``benchmarks/peers``, set up as well as we know how. Prints milliseconds per
client-step, which is wall time / (rounds x M x H) with all overheads, and the peers' ratios to
ours within each repeat; draws the ratios; and keeps everything that was measured as JSON.
Published tasks, run whole, are in ``benchmarks/published.py``.
"""

import argparse
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import pages
from environments import ENVIRONMENTS, home, make_environment
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

HERE = Path(__file__).resolve().parent
ERR = Console(stderr=True)
KEYS = ("ms_per_client_step", "first_round_s", "pss_mb")
LIMIT = 600  # seconds for one run of one peer
PACKAGES = ["jax", "torch", "pfl", "fedjax", "flwr", "ray", "tensorflow-federated", "tensorflow"]


@dataclass(frozen=True)
class Peer:
    """A program to be measured, and roughly how many ms a client-step takes it."""

    label: str
    script: str
    environment: str | None
    rough: dict[str, float]
    caches: bool = False  # whether it has compilations that a cache can keep
    options: tuple[str, ...] = ()


OURS = Peer("FedMom", "ours.py", None, {"lenet": 0.4, "lstm": 1.0, "leafcnn": 8}, True)
PEERS = [
    Peer(
        "PyTorch, workers",
        "torch_workers.py",
        "torch",
        {"lenet": 0.7, "lstm": 2, "leafcnn": 12},
    ),
    Peer("PyTorch, 1 thread", "torch_loop.py", "torch", {"lenet": 1.4, "lstm": 4}),
    Peer(
        "torch.compile, workers",
        "torch_workers.py",
        "torch",
        {"lenet": 0.6, "leafcnn": 12},
        caches=True,
        options=("--compile",),
    ),
    Peer(
        "torch.compile, 1 thread",
        "torch_loop.py",
        "torch",
        {"lenet": 1.2},
        caches=True,
        options=("--compile",),
    ),
    Peer("pfl-research", "pfl_peer.py", "pfl", {"lenet": 0.9, "lstm": 2.3}),
    Peer("FedJAX", "fedjax_peer.py", "fedjax", {"lenet": 1.5, "lstm": 8}, True),
    Peer("Flower", "flower_peer.py", "flower", {"lenet": 1.8, "lstm": 4}),
    Peer("TFF", "tff_peer.py", "tff", {"lenet": 3, "lstm": 14}),
]


class Cell(NamedTuple):
    """A column of the table."""

    work: str
    clients: int
    steps: int
    label: str


CELLS = [
    Cell("lenet", 2, 22, "LeNet, M=2"),
    Cell("lenet", 10, 22, "LeNet, M=10"),
    Cell("lstm", 2, 10, "LSTM, M=2"),
    Cell("lstm", 10, 10, "LSTM, M=10"),
    Cell("leafcnn", 2, 22, "LEAF's CNN, M=2"),
]
WARM = "first round, warm"
COLUMNS = [*(c.label for c in CELLS), "first round", WARM, "memory"]
# A first round compiles everything.
COLD = {"JAX_ENABLE_COMPILATION_CACHE": "false", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
Results = dict[str, dict[str, list[float]]]  # [peer][column] -> one number per repeat
Show = Callable[[Results, str, str], str]


def python_of(peer: Peer) -> Path:
    """The interpreter that runs a peer."""
    if peer.environment is None:
        return Path(sys.executable)
    return home() / peer.environment / "bin" / "python"


def installed(peers: list[Peer]) -> list[Peer]:
    """Return the peers that can be had here; say which cannot, and why."""
    faults = {}
    for name in dict.fromkeys(p.environment for p in peers if p.environment):
        with ERR.status(f"making the environment of {name}"):
            faults[name] = make_environment(name)
        if faults[name]:
            ERR.print(f"left out: {name} cannot be installed: {faults[name]}", markup=False)
    return [p for p in peers if not faults.get(p.environment)]


def run(peer: Peer, cell: Cell, rounds: int, extra: dict[str, str]) -> dict[str, float] | None:
    """Run a peer's program in a session of its own; return what it measured."""
    command = [str(python_of(peer)), str(HERE / "peers" / peer.script), "--work", cell.work]
    command += ["--clients-per-round", str(cell.clients), "--rounds", str(rounds)]
    command += peer.options
    # Bytecode is kept, as it is of every installed package: ours runs from its sources here.
    dropped = ("BENCHMARK_BEGAN", "JAX_COMPILATION_CACHE_DIR", "PYTHONPATH", "XLA_FLAGS")
    dropped += ("PYTHONDONTWRITEBYTECODE",)
    environment = {k: v for k, v in os.environ.items() if k not in dropped} | extra
    # Files, not pipes: what a peer leaves running would hold a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=err, start_new_session=True
        )
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            ERR.print(f"{peer.label}, {cell.label}: stopped after {LIMIT} s", markup=False)
        finally:
            end_session(process)
        out.seek(0)
        lines = [line for line in out if line.startswith('{"ms_per_client_step"')]
        if lines:
            return json.loads(lines[-1])
        err.seek(0)
        last = (err.read().strip().splitlines() or ["no message"])[-1]
        ERR.print(f"failed: {peer.label}, {cell.label}: {last}", markup=False)
        return None


def end_session(process: subprocess.Popen) -> None:
    """End whatever a run has left behind in its own group of processes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


class Task(NamedTuple):
    """One run of one peer, and the columns that its result fills."""

    peer: Peer
    cell: Cell
    rounds: int
    warm: bool  # for the first round only

    @property
    def cold(self) -> bool:
        """Whether all is compiled anew: where the first round is measured, not its steps alone."""
        return self.cell is CELLS[0] and not self.warm


def tasks(peers: list[Peer], seconds: float, repeat: int) -> Iterator[Task]:
    """Yield the runs of a repeat, peers alternating; every other repeat in the reverse order."""
    order = peers[:: -1 if repeat % 2 else 1]
    for cell in CELLS:
        for peer in order:
            if rough := peer.rough.get(cell.work):
                rounds = max(2, round(1000 * seconds / (rough * cell.clients * cell.steps)))
                yield Task(peer, cell, rounds, warm=False)
    for peer in order:
        if peer.caches:
            yield Task(peer, CELLS[0], 1, warm=True)


def cached_compilations(peer: Peer) -> dict[str, str]:
    """Settings that make JAX and PyTorch keep their compilations, as FedMom does by itself."""
    folder = str(home() / f"compiled-{peer.script}")
    return {
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "TORCHINDUCTOR_CACHE_DIR": folder,
    }


def columns_of(task: Task, result: dict[str, float]) -> Iterator[tuple[str, float]]:
    """Yield the columns that a result fills."""
    if task.warm:
        yield WARM, result["first_round_s"]
        return
    yield task.cell.label, result["ms_per_client_step"]
    if task.cell is CELLS[0]:
        yield "first round", result["first_round_s"]
        yield "memory", result["pss_mb"]


def measure(
    peers: list[Peer], repeats: int, seconds: float, keep: Callable[[Results], None]
) -> Results:
    """Run everything; a run that fails leaves nan, so that repeats stay side by side.

    What is measured so far is kept after every run: stopping it loses nothing.
    """
    results: Results = {p.label: {} for p in peers}
    plan = [list(tasks(peers, seconds, r)) for r in range(repeats)]
    with Progress(console=ERR) as progress:
        bar = progress.add_task("measuring", total=sum(map(len, plan)))
        for peer in peers:
            if peer.caches:  # fill the cache, so that every warm start finds it
                run(peer, CELLS[0], 1, cached_compilations(peer))
        for task in (t for repeat in plan for t in repeat):
            progress.update(bar, description=f"{task.peer.label}: {task.cell.label}")
            extra = COLD if task.cold else cached_compilations(task.peer)
            result = run(task.peer, task.cell, task.rounds, extra)
            for column, value in columns_of(task, result or dict.fromkeys(KEYS, float("nan"))):
                results[task.peer.label].setdefault(column, []).append(value)
            keep(results)
            progress.advance(bar)
    return results


def median(values: Iterable[float]) -> float | None:
    """The median of what was measured; None where nothing was."""
    real = [v for v in values if v == v]
    return statistics.median(real) if real else None


def ratio(results: Results, peer: str, column: str) -> float | None:
    """The median over repeats of the peer's number to ours in the same repeat."""
    ours, theirs = (results[p].get(column, []) for p in (OURS.label, peer))
    return median(t / o for t, o in zip(theirs, ours, strict=False))


def number(results: Results, peer: str, column: str) -> str:
    """The median of a column, to be shown."""
    value = median(results[peer].get(column, []))
    if value is None:
        return "failed" if column in results[peer] else ""
    return f"{value:.0f}" if column == "memory" else f"{value:.2f}"


def times(results: Results, peer: str, column: str) -> str:
    """The ratio of a column to ours, to be shown."""
    value = ratio(results, peer, column)
    return "" if value is None else f"{value:.2f}x"


def heading(column: str) -> str:
    """A column's name with its unit."""
    units = {"first round": "s", WARM: "s", "memory": "MB"}
    return f"{column} ({units.get(column, 'ms')})"


def print_table(title: str, show: Show, results: Results) -> None:
    """Print a table with a row for each peer."""
    table = Table(box=None, title=title)
    table.add_column("", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column if show is times else heading(column), justify="right")
    for peer in results:
        table.add_row(peer, *(show(results, peer, c) for c in COLUMNS))
    Console().print(table)


def markdown_table(results: Results) -> str:
    """Both tables in one, for the documentation."""
    rows = []
    for peer in results:
        cells = [number(results, peer, c) for c in COLUMNS]
        if peer != OURS.label:
            ratios = [times(results, peer, c) for c in COLUMNS]
            cells = [f"{n} ({r})" if r else n for n, r in zip(cells, ratios, strict=True)]
        rows.append([peer, *cells])
    return pages.markdown(["", *map(heading, COLUMNS)], rows)


def draw(results: Results, path: Path) -> None:
    """Draw the ratios as bars: how many times our time a peer takes."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    peers = [p for p in results if p != OURS.label]
    cells = [c.label for c in CELLS]
    figure, axes = plt.subplots(figsize=(8, 1 + 0.9 * max(1, len(peers))), layout="constrained")
    height = 0.8 / len(cells)
    for i, cell in enumerate(cells):
        bars = [(n + i * height, ratio(results, p, cell)) for n, p in enumerate(peers)]
        bars = [(at, value) for at, value in bars if value is not None]
        drawn = axes.barh(*zip(*bars, strict=True), height, label=cell) if bars else None
        if drawn:
            axes.bar_label(drawn, fmt=" %.1f", fontsize=7)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks(ticks := [0.5, 1, 2, 5, 10, 20], [f"{t:g}x" for t in ticks])
    axes.set_yticks([n + 0.4 - height / 2 for n in range(len(peers))], peers)
    axes.invert_yaxis()
    axes.set_xlabel("time per client-step over FedMom's (1 = as fast; log scale)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def versions(peer: Peer) -> str:
    """The versions of what a peer's environment holds."""
    code = (
        "import importlib.metadata as m, sys\n"
        "for n in sys.argv[1:]:\n"
        "    try: print(n, m.version(n))\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    command = [str(python_of(peer)), "-c", code, *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True)
    return ", ".join(done.stdout.split("\n")).strip(", ")


def machine() -> str:
    """What this machine is."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((x.split(":")[1].strip() for x in info if x.startswith("model name")), "CPU")
    kilobytes = int(Path("/proc/meminfo").read_text().split()[1])
    system = ".".join(platform.release().split(".")[:2])
    return (
        f"{model}, {os.cpu_count()} cores, {kilobytes / 2**20:.0f} GB of memory, no accelerator"
        f" used; {platform.system()} {system}, Python {platform.python_version()}"
    )


def write_docs(record: dict, results: Results) -> None:
    """Put the results into docs/performance.md, and the figure next to it."""
    about = "\n".join(f"- {k}: {v}" for k, v in record["versions"].items())
    pages.write_section(
        "results",
        f"{record['date']}, {record['repeats']} repeats. {record['machine']}.\n\n"
        f"{markdown_table(results)}\n"
        f"![How many times FedMom's time the peers take](performance.png)\n\n"
        f"Versions:\n\n{about}\n",
    )
    draw(results, pages.DOCS / "performance.png")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=",".join(ENVIRONMENTS), help="default: %(default)s")
    parser.add_argument("--repeats", type=int, help="default: 5, or 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="rough numbers in five minutes")
    parser.add_argument("--write-docs", action="store_true", help="renew docs/performance.md")
    options = parser.parse_args()
    unknown = set(filter(None, options.peers.split(","))) - set(ENVIRONMENTS)
    if unknown:
        parser.error(f"there is no peer {unknown.pop()!r}; choose from {', '.join(ENVIRONMENTS)}")
    options.repeats = options.repeats or (1 if options.quick else 5)
    return options


def main() -> None:
    options = arguments()
    home().mkdir(parents=True, exist_ok=True)
    chosen = options.peers.split(",")
    peers = [OURS, *installed([p for p in PEERS if p.environment in chosen])]
    record = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "repeats": options.repeats,
        "versions": {p.label: versions(p) for p in peers},
    }

    def keep(results: Results) -> None:
        (home() / "engine.json").write_text(json.dumps(record | {"results": results}, indent=1))

    results = measure(peers, options.repeats, 1.5 if options.quick else 4, keep)
    draw(results, home() / "engine.png")
    print_table("Medians; ms are per client-step", number, results)
    print_table("Ratios to FedMom", times, results)
    Console().print(f"raw numbers: {home() / 'engine.json'}, figure: {home() / 'engine.png'}")
    if options.write_docs:
        write_docs(record, results)


if __name__ == "__main__":
    main()
