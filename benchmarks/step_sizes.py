"""The default learning rates: every algorithm on the datasets that come along, at a ladder of γ.

    python benchmarks/step_sizes.py runs/step-sizes            # all of it, about an hour
    python benchmarks/step_sizes.py runs/step-sizes synthetic  # one dataset, a few minutes

All other settings are the defaults of `fedmom run`. What counts is the training loss after the last
round, a mean over two seeds that no table of the documentation reports. The ladder continues until
both of its ends are worse, and the smallest γ within 2 % of the lowest loss is taken. What is
printed is what ``fedmom.experiments.defaults`` holds. A sweep that was stopped is resumed.
"""

import math
import sys
from pathlib import Path

import fedmom
from fedmom.experiments import results

TASKS = {
    "synthetic": {"data": "synthetic"},
    "glyphs": {"data": "glyphs"},
    "shakespeare": {"data": "shakespeare:roles=100,samples=1000", "eval_samples": 2000},
}
ALGORITHMS = ("fedsgd", "fedavg", "fedmom", "fedavgm", "fedadagrad", "fedadam", "fedyogi")
LADDER = [a * 10.0**b for b in range(-5, 2) for a in (1.0, 3.0)]
FIRST = {"synthetic": 0.003, "glyphs": 0.03, "shakespeare": 0.3}
SEEDS = (1000, 1001)  # for tuning only
ROUNDS = 100
NEAR = 1.02


def loss(folder, task, algorithm, lr):
    """The training loss at the end, a mean over seeds; infinite where one diverged."""
    name = f"{task}-{algorithm}-{lr:g}"
    if not (folder / name / "sweep.json").exists():
        grid = {"seed": list(SEEDS)}
        settings = {**TASKS[task], "algorithm": algorithm, "lr": lr, "rounds": ROUNDS}
        runs = fedmom.sweep(grid, **settings, eval_every=50, out=folder / name, progress=False)
        found = [run.result for run in runs.values()]
    else:
        found = results.find([folder / name])
        if any(run.status == "unfinished" for run in found):
            for run in fedmom.load(folder / name).values():
                run.resume(progress=False)
            found = results.find([folder / name])
    ends = [math.inf if run.stop else run.last("train", "loss") for run in found]
    return sum(ends) / len(ends)


def best(folder, task, algorithm, first):
    """The best γ of the ladder and all losses, by descent from a first guess."""
    place = min(range(len(LADDER)), key=lambda i: abs(math.log(LADDER[i] / first)))
    seen = {}

    def at(i):
        if i not in seen:
            seen[i] = loss(folder, task, algorithm, LADDER[i])
        return seen[i]

    while True:
        around = [i for i in (place - 1, place, place + 1) if 0 <= i < len(LADDER)]
        lowest = min(around, key=at)
        if lowest == place:
            taken = min(i for i in seen if seen[i] <= NEAR * seen[place])
            return LADDER[taken], {LADDER[i]: seen[i] for i in sorted(seen)}
        place = lowest


def main() -> None:
    folder, tasks = Path(sys.argv[1]), sys.argv[2:] or list(TASKS)
    for task in tasks:
        for algorithm in ALGORITHMS:
            lr, losses = best(folder, task, algorithm, FIRST[task])
            shown = "  ".join(f"{rate:g}: {value:.3f}" for rate, value in losses.items())
            print(f"{task:12} {algorithm:12} {lr:<8g} {shown}", flush=True)


if __name__ == "__main__":
    main()
