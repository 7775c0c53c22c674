"""How long do short commands take? Run: python benchmarks/startup.py [--repeats 7]

Times commands that need neither JAX nor matplotlib against `python -c pass`, each in a process of
its own. The repeats alternate. Prints medians, and the median of the ratios to `python -c pass`
within each repeat.
"""

import argparse
import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.progress import track
from rich.table import Table

BASE = "python -c pass"
COMMANDS = {
    BASE: ["-c", "pass"],
    "import fedmom": ["-c", "import fedmom"],
    "fedmom --help": ["-m", "fedmom", "--help"],
    "fedmom list": ["-m", "fedmom", "list"],
    "fedmom data --help": ["-m", "fedmom", "data", "--help"],
    "fedmom paper --help": ["-m", "fedmom", "paper", "--help"],
    "fedmom theory --help": ["-m", "fedmom", "theory", "--help"],
}
ERR = Console(stderr=True)


def seconds(arguments: list[str]) -> float:
    """Return the wall time of a Python process with these arguments."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def measure(repeats: int) -> dict[str, list[float]]:
    """Time all commands in turn, ``repeats`` times, after one that fills caches."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in track(range(repeats + 1), "measuring", console=ERR, disable=not ERR.is_terminal):
        for name, arguments in COMMANDS.items():
            spent = seconds(arguments)
            if turn:
                times[name].append(spent)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    times = measure(parser.parse_args().repeats)
    table = Table(box=None, title="Medians; ratios to the first row")
    table.add_column("")
    for column in ("seconds", "ratio"):
        table.add_column(column, justify="right")
    for name, values in times.items():
        ratios = [t / base for t, base in zip(values, times[BASE], strict=True)]
        table.add_row(name, f"{statistics.median(values):.3f}", f"{statistics.median(ratios):.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
