"""Is the runtime torch as fast as PyTorch by hand? Run: python benchmarks/torch_runtime.py

Trains LeNet-5 and LEAF's CNN (H=22, batches of 10) with the runtime torch and with the loop of
peers/torch_workers.py, both with two worker processes and the same modules, clients and cohorts, in
turn: some rounds of the one, then as many of the other, while the one's workers wait. Prints the
median of the ratios of their speeds, above 1 where the runtime is faster, and their range.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import numpy as np
import torch_nets
import torch_workers
import work as w

WORKERS = 2
CLIENT_STEPS = {"lenet": 2_200, "leafcnn": 220}  # in a timed part, about


def by_hand(name, size):
    """Return a round of the loop that is written by hand, and how to end it."""
    options = argparse.Namespace(work=name, clients_per_round=size, compile=False)
    loop = torch_workers.Loop(options, WORKERS)
    rng = np.random.default_rng(1)
    return lambda: loop.round(w.cohort(rng, name, size)), loop.close


def ours(name, size):
    """Return a round of the runtime, and how to end it."""
    import jax
    from ours import population

    import fedmom
    from fedmom.runtimes.pytorch.runtime import TorchRuntime

    data = population(name)
    model = fedmom.model(torch_nets.build(name), data, convert=False)
    work = fedmom.LocalWork(lr=w.LR, steps=w.WORKS[name].steps)
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(learning_rate=data.clients / size), work)
    runtime = TorchRuntime(fedmom.Workload(data, model, algorithm), workers=WORKERS)
    rounds = fedmom.train(runtime, pace=fedmom.synchronous(size), rounds=10**9)

    def round_():
        # A round is over when its model is there, not when JAX has been told to make it.
        jax.block_until_ready(next(rounds)[0].params)

    return round_, runtime.close


def seconds(round_, count):
    """Return how long some rounds take."""
    began = time.perf_counter()
    for _ in range(count):
        round_()
    return time.perf_counter() - began


def compared(name, size, repeats):
    """Return the ratios of speed, and ms per client-step of both."""
    hand, end_hand = by_hand(name, size)  # first: it forks, before JAX has threads
    mine, end_mine = ours(name, size)
    count = max(1, CLIENT_STEPS[name] // (size * w.WORKS[name].steps))
    for round_ in (hand, mine):
        seconds(round_, 2)
    pairs = [(seconds(hand, count), seconds(mine, count)) for _ in range(repeats)]
    end_hand()
    end_mine()
    steps = count * size * w.WORKS[name].steps
    ratios = [theirs / own for theirs, own in pairs]
    return ratios, [1000 * statistics.median(each) / steps for each in zip(*pairs, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", choices=CLIENT_STEPS, nargs="+", default=list(CLIENT_STEPS))
    parser.add_argument("--clients-per-round", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    for name in options.work:
        ratios, (hand, own) = compared(name, options.clients_per_round, options.repeats)
        print(
            f"{name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f});"
            f" ms per client-step: {own:.3f}, by hand {hand:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
