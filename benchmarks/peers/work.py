"""The work that everyone does, its data, and what is measured. NumPy is all this needs.

Every peer is a program ``PEER.py --work NAME --clients-per-round M --rounds R``, run by the
Python of its own environment. It does FedAvg with H steps of SGD on batches of B per client, a
first round (compiling, where there is compiling) and then R timed rounds, and prints one line
of JSON.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

BATCH = 10
LR = 0.01
PIXELS, CLASSES = 28, 62
LENGTH, SYMBOLS, EMBEDDING, HIDDEN = 80, 80, 8, 128


class Work(NamedTuple):
    """A population and what a client of it does; an epoch is H steps for everyone."""

    clients: int
    steps: int

    @property
    def samples(self) -> int:
        """The samples of a client."""
        return self.steps * BATCH


WORKS = {"lenet": Work(1000, 22), "lstm": Work(100, 10), "leafcnn": Work(1000, 22)}


def began() -> float:
    """Return when this program started, its interpreter included; its children inherit it."""
    if "BENCHMARK_BEGAN" not in os.environ:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.environ["BENCHMARK_BEGAN"] = str(time.time() - uptime + ticks)
    return float(os.environ["BENCHMARK_BEGAN"])


def arguments(prepare: Callable[[argparse.ArgumentParser], object] | None = None):
    """Read the command line that all peers share, and what one of them adds to it."""
    began()
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=WORKS, required=True)
    parser.add_argument("--clients-per-round", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    if prepare:
        prepare(parser)
    return parser.parse_args()


def images(work: Work):
    """Random images (K, n, 28, 28) and labels (K, n), as bytes."""
    rng = np.random.default_rng(0)
    shape = (work.clients, work.samples)
    x = np.frombuffer(rng.bytes(int(np.prod(shape)) * PIXELS**2), np.uint8)
    return x.reshape(*shape, PIXELS, PIXELS), rng.integers(0, CLASSES, shape, np.uint8)


def texts(work: Work):
    """Random symbols (K, n + 80); a sample is 80 of them, side by side, and the next."""
    rng = np.random.default_rng(0)
    return rng.integers(0, SYMBOLS, (work.clients, work.samples + LENGTH), np.uint8)


def samples(name: str):
    """Return (x, y) of all clients: images and labels, or windows of text and next symbols."""
    work = WORKS[name]
    if name != "lstm":
        return images(work)
    windows = np.lib.stride_tricks.sliding_window_view(texts(work), LENGTH + 1, axis=1)
    return windows[..., :-1], windows[..., -1]  # views: overlapping windows cost nothing


def cohort(rng: np.random.Generator, name: str, size: int):
    """Draw the clients of a round."""
    return rng.choice(WORKS[name].clients, size, replace=False)


def measure(round_: Callable[[], object], options: argparse.Namespace) -> None:
    """Run the first round and the timed rounds, and print the result."""
    round_()
    clock = Clock(options)
    for _ in range(options.rounds):
        round_()
    clock.stop()


class Clock:
    """Started after the first round; for those who run their rounds themselves."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.first = time.time() - began()
        self.start = time.perf_counter()

    def stop(self) -> None:
        """Print the result after the last round, while all processes are still there."""
        seconds = time.perf_counter() - self.start
        o = self.options
        steps = o.rounds * o.clients_per_round * WORKS[o.work].steps
        result = {
            "ms_per_client_step": 1000 * seconds / steps,
            "first_round_s": self.first,
            "pss_mb": pss_mb(),
            "rounds": o.rounds,
        }
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


def pss_mb() -> float:
    """Return the memory of this process and all below it, with shared pages counted once."""
    return sum(map(_pss, _family(os.getpid()))) / 1024


def _pss(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _family(process: int) -> list[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [process]
    for member in found:  # grows as it is read
        found += [child for child, parent in parents.items() if parent == member]
    return found
