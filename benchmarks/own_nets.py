"""Is the net that you bring fast? Run: python benchmarks/own_nets.py [--nets lstm] [--write-docs]

Trains seven nets written in flax, given to ``fedmom.model`` as they are, and the same nets in a
PyTorch loop written by hand: two processes of one thread each, which share models in memory, with
images laid out channels last where that is faster. Both do FedAvg with M clients, an epoch each, on
the same random data. Rounds alternate between the two. Prints milliseconds per client-step (wall
time of a round / (M x H), with all overheads; medians), and the ratio of ours to PyTorch's: the
median over the repeats of the ratio of one round to the one next to it, and the same of processor
time, which other work on the machine disturbs less. Below 1, FedMom is faster.

Takes the interpreter's own PyTorch, or makes an environment with one (see engine.py).
"""

import argparse
import datetime
import importlib.util
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pages
from engine import machine
from environments import home, make_environment
from rich.console import Console

PEERS = Path(__file__).resolve().parent / "peers"
sys.path.append(str(PEERS))
import own_work  # noqa: E402

LABELS = {
    "mlp": "MLP 784-200-200",
    "cnn28": "CNN 28x28, 32-64",
    "cnn32": "CNN 32x32x3, 32-64-64",
    "resnet20": "ResNet-20, group norm",
    "mobilenet": "depthwise net, group norm",
    "lstm": "LSTM 128, T=80",
    "transformer": "transformer 4x128, T=128",
}
HEADING = ["net", "batch", "M", "FedMom (ms)", "PyTorch (ms)", "ratio", "CPU ratio"]


class Side:
    """A program of ``benchmarks/peers`` that plays rounds when it is told to."""

    def __init__(self, python: str, script: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [python, str(PEERS / script)], stdin=pipe, stdout=pipe, text=True
        )

    def ask(self, **request: object) -> dict[str, float]:
        """Send a request, and return the answer."""
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[1]} has ended without an answer.")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def torch_python() -> str:
    """An interpreter that has PyTorch."""
    if importlib.util.find_spec("torch"):
        return sys.executable
    if fault := make_environment("torch"):
        raise SystemExit(f"PyTorch cannot be installed: {fault}")
    return str(home() / "torch" / "bin" / "python")


def row(ours: Side, theirs: Side, net: str, batch: int, clients: int, repeats: int) -> list[str]:
    """Measure one case; return its row of the table."""
    sides = {"ours": ours, "theirs": theirs}
    found = {name: {"wall": [], "cpu": []} for name in sides}
    for side in sides.values():
        side.ask(net=net, batch=batch, clients=clients)
    for _ in range(repeats):
        for name, side in sides.items():
            for key, seconds in side.ask(play=True).items():
                found[name][key].append(1000 * seconds / (clients * own_work.steps(net, batch)))

    def ratio(key: str) -> str:
        pairs = zip(found["ours"][key], found["theirs"][key], strict=True)
        return f"{statistics.median(o / t for o, t in pairs):.2f}"

    walls = [f"{statistics.median(found[name]['wall']):.2f}" for name in sides]
    return [LABELS[net], str(batch), str(clients), *walls, ratio("wall"), ratio("cpu")]


def arguments() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", default=",".join(LABELS), help="default: %(default)s")
    parser.add_argument("--batches", type=numbers, default=[10, 32], help="default: 10,32")
    parser.add_argument("--clients", type=numbers, default=[2, 10], help="M; default: 2,10")
    parser.add_argument("--repeats", type=int, default=7, help="default: %(default)s")
    parser.add_argument("--write-docs", action="store_true", help="renew docs/performance.md")
    options = parser.parse_args()
    options.nets = options.nets.split(",")
    if unknown := set(options.nets) - set(LABELS):
        parser.error(f"unknown net {unknown.pop()!r}; choose from {', '.join(LABELS)}")
    return options


def main() -> None:
    options = arguments()
    ours, theirs = Side(sys.executable, "own_flax.py"), Side(torch_python(), "own_torch.py")
    console, rows = Console(highlight=False), []
    console.print(*HEADING, sep=" | ")
    for net in options.nets:
        for batch in options.batches:
            for clients in options.clients:
                rows.append(row(ours, theirs, net, batch, clients, options.repeats))
                console.print(*rows[-1], sep=" | ")
    ours.close()
    theirs.close()
    if options.write_docs:
        date, table = datetime.date.today().isoformat(), pages.markdown(HEADING, rows)
        about = f"{date}, medians of {options.repeats} alternating rounds. {machine()}.\n\n"
        pages.write_section("own nets", about + table)


if __name__ == "__main__":
    main()
