"""The tables of docs/world.md: unreliable clients, ten seeds each, paired.

    python benchmarks/world.py runs/world            # all of them, about 10 minutes of one core
    python benchmarks/world.py runs/world dropout    # one: dropout, diurnal, partial or paces

Every line is ten runs, seeds 0 to 9, on synthetic:clients=100 with logistic regression and M=10;
where nothing else is said, 150 rounds of 10 local steps with the default learning rate of its
algorithm (0.01 for FedAvg, 0.001 for FedMom). What is in a folder is not run again. Intervals are
95 %, by Student's t; differences are paired by seed.
"""

import sys
from pathlib import Path

import fedmom
from fedmom.experiments import results
from fedmom.experiments.seed_statistics import FEWEST, difference, interval
from fedmom.reports import simulated

COMMON = {
    "data": "synthetic:clients=100",
    "rounds": 150,
    "clients_per_round": 10,
    "eval_every": 5,
    "eval_samples": 2000,
    "runtime": "local:workers=1",
}
NAMES = {"fedavg": "FedAvg", "fedmom": "FedMom"}
GOALS = (0.3, 0.5)
MINUTES = (10, 30)
SEEDS = list(range(10))
TIMES = "speed:median=20,spread=1+network:spread=1+dropout:rate=0.05"
# Per table: what it varies, besides the algorithm, as settings; and what all of it shares.
TABLES = {
    "dropout": (
        {
            f"{rate:.0%}, {weighting} weights": {
                "world": f"dropout:rate={rate:g}",
                "weighting": weighting,
            }
            for weighting in ("population", "cohort")
            for rate in (0, 0.3, 0.6, 0.9)
        },
        {},
    ),
    "diurnal": (
        {
            "always there": {},
            "day and night": {"world": "diurnal:low=0.02,high=0.3,period=4500"},
            "four time zones": {"world": "diurnal:low=0.02,high=0.3,period=4500,zones=4"},
        },
        {},
    ),
    "partial": (
        {
            "no stragglers": {},
            "90 % stragglers, kept": {"world": "partial:share=0.9"},
            "90 % stragglers, dropped": {"world": "partial:share=0.9,replies=dropped"},
        },
        {},
    ),
    "paces": (
        {
            "synchronous": {"pace": "synchronous", "world": TIMES},
            "over_selected": {"pace": "over_selected:extra=0.5", "world": TIMES},
            "buffered": {"pace": "buffered:in_flight=30", "world": TIMES},
            "over_selected, reweighed": {
                "pace": "over_selected:extra=0.5",
                "world": f"{TIMES}+reweighed",
            },
        },
        {"local_epochs": 1, "batches": "random"},
    ),
}


def runs_of(folder, settings):
    """Ten runs with these settings, from the folder if they are there."""
    if not (folder / "sweep.json").exists():
        fedmom.sweep({"seed": SEEDS}, **settings, out=folder, progress=False)
    else:
        fedmom.resume(folder, progress=False)
    return results.Group(folder.name, results.find([folder]))


def by_seed(group, of):
    return {run.config.seed: of(run) for run in group.runs}


def text(values, form="{:.3f}"):
    found = interval(list(values))
    return f"{form.format(found.mean)} ± {form.format(found.half)}"


def apart(ours, theirs, form="{:+.3f}"):
    found = difference(ours, theirs).interval
    return f"{form.format(found.mean)} ({form.format(found.low)} to {form.format(found.high)})"


def accuracy(run):
    return run.last("test", "accuracy")


def loss(run):
    return run.last("train", "loss")


def ends(groups, what):
    """Final numbers of both algorithms, and their difference."""
    print(
        f"| {what} | replies per round | FedAvg, test accuracy | FedMom | FedMom − FedAvg |"
        " FedAvg, training loss | FedMom |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for label in dict.fromkeys(label for label, _ in groups):
        avg, mom = groups[label, "fedavg"], groups[label, "fedmom"]
        replies = [sum(r["replies"] for r in run.rounds) / len(run.rounds) for run in avg.runs]
        cells = [
            f"{sum(replies) / len(replies):.1f}",
            *(text(by_seed(group, accuracy).values()) for group in (avg, mom)),
            apart(by_seed(mom, accuracy), by_seed(avg, accuracy)),
            *(text(by_seed(group, loss).values()) for group in (avg, mom)),
        ]
        print(f"| {label} | {' | '.join(cells)} |")


def to_goal(group, goal):
    """Simulated minutes of the runs that get there, and how many do."""
    there = [time / 60 for time in group.seconds_to(goal) if time is not None]
    few = len(there) < FEWEST
    return f"{'–' if few else text(there, '{:.1f}')} ({len(there)} of {len(group.runs)})"


def over(group, seconds):
    """The test accuracy of the last evaluation before a time, of runs that took so long."""
    found = []
    for run in group.runs:
        ends = run.simulated()
        if max(ends.values()) >= seconds:
            found.append([v for t, v in run.curve("test", "accuracy") if ends[t] <= seconds][-1])
    return text(found) if len(found) == len(group.runs) else "–"


def times(groups):
    """Simulated time to test accuracies, and who replied."""
    print(
        "| pace | algorithm | minutes to 0.3 | minutes to 0.5 | accuracy after 10 minutes |"
        " after 30 | minutes of 150 rounds | final accuracy | training loss |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (label, algorithm), group in groups.items():
        cells = [
            *(to_goal(group, goal) for goal in GOALS),
            *(over(group, 60 * minutes) for minutes in MINUTES),
            text([max(run.simulated().values()) / 60 for run in group.runs], "{:.1f}"),
            text(by_seed(group, accuracy).values()),
            text(by_seed(group, loss).values()),
        ]
        print(f"| {label} | {NAMES[algorithm]} | {' | '.join(cells)} |")
    print()
    print("| pace | clients | due (%) | asked (%) | replies (%) | weight (%) |")
    print("| --- | --- | --- | --- | --- | --- |")
    shown = {label: group for (label, algorithm), group in groups.items() if algorithm == "fedavg"}
    for label, group in shown.items():
        for row in simulated.shares([group]).rows:
            cells = [cell.replace("\n", " ") for cell in row[1:]]
            print(f"| {label} | {' | '.join(cells)} |")


def main(folder, names):
    for name in names:
        lines, shared = TABLES[name]
        groups = {}
        for place, (label, settings) in enumerate(lines.items()):
            for algorithm in NAMES:
                given = {**COMMON, **shared, **settings, "algorithm": algorithm}
                groups[label, algorithm] = runs_of(folder / f"{name}-{place}-{algorithm}", given)
        print(f"\n## {name}\n")
        if name == "paces":
            times(groups)
        else:
            ends(groups, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(TABLES))
