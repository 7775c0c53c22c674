"""The nets of ``benchmarks/own_nets.py``: their data, and how a side of the comparison is served.

A side is a program that reads requests, one JSON object a line, and answers each with a line:

    {"net": NAME, "batch": B, "clients": M}     prepare this case, and play a round untimed
    {"play": true}                              play a round of it; answer with its seconds

A round is FedAvg with M clients, who take H steps of SGD each: an epoch of their samples.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

CLIENTS = 20
LR = 0.01
SYMBOLS = 80
IMAGE, COLOURED = (28, 28, 1), (32, 32, 3)


class Work(NamedTuple):
    """What a net reads, and how many samples each client has."""

    shape: tuple[int, ...]
    classes: int
    samples: int

    @property
    def text(self) -> bool:
        return len(self.shape) == 1


WORKS = {
    "mlp": Work(IMAGE, 62, 640),
    "cnn28": Work(IMAGE, 62, 320),
    "cnn32": Work(COLOURED, 10, 160),
    "resnet20": Work(COLOURED, 10, 64),
    "mobilenet": Work(COLOURED, 10, 64),
    "lstm": Work((80,), SYMBOLS, 320),
    "transformer": Work((128,), SYMBOLS, 64),
}
# A round: it returns the processor time that it took, in seconds, of all processes together.
Round = Callable[[], float]


def steps(net: str, batch: int) -> int:
    """H, the steps of a client in a round."""
    return WORKS[net].samples // batch


def samples(net: str) -> tuple[np.ndarray, np.ndarray]:
    """Random inputs (K, n, ...), as bytes, and labels (K, n) of all clients."""
    work = WORKS[net]
    rng = np.random.default_rng(0)
    top = SYMBOLS if work.text else 256
    x = rng.integers(0, top, (CLIENTS, work.samples, *work.shape), np.uint8)
    return x, rng.integers(0, work.classes, (CLIENTS, work.samples))


def serve(prepare: Callable[[str, int, int], Round], lines: Iterable[str] = sys.stdin) -> None:
    """Answer requests until there are no more."""
    play: Round = float
    for line in lines:
        request = json.loads(line)
        if "net" in request:
            play = prepare(request["net"], request["batch"], request["clients"])
            play()
            answer = {}
        else:
            began = time.perf_counter()
            cpu = play()
            answer = {"wall": time.perf_counter() - began, "cpu": cpu}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
