"""Folders and results of runs that nobody has trained, for tests of what is shown of them."""

import json
from pathlib import Path

from fedmom.experiments.folder import RunFolder
from fedmom.experiments.results import Result
from fedmom.experiments.settings import RunConfig

SIZE = 1000  # bytes that a round sends each way
WHY = "client 7 sent back a model that is not finite. Training diverged: take a smaller --lr."


def accuracy(round_, seed=0):
    """A curve that rises to 1, later for larger seeds."""
    return round_ / (round_ + 10 + seed)


def round_row(round_, **more):
    return {
        "round": round_,
        "cohort": [0, 1],
        "replies": 2,
        "train_loss": 1 / round_,
        "update_norm": 0.5,
        "seconds": 0.25,
        "bytes_up": SIZE,
        "bytes_down": SIZE,
        **more,
    }


def eval_rows(round_, seed=0):
    value = accuracy(round_, seed)
    percentiles = {f"accuracy_p{p}": value * p / 100 for p in (10, 50, 90)}
    identical = {f"{key}_identical": p / 2 for key, p in percentiles.items()}
    behind = {"clients": 7, "samples": 1234}
    return [
        {
            "round": round_,
            "split": s,
            "loss": 1 - value,
            "accuracy": value,
            **(percentiles | identical | behind),
        }
        for s in ("train", "test")
    ]


def make_run(path, done=20, stop="", **settings):
    """Write the folder of a run that has come as far as ``done``; return it."""
    values = {"data": "synthetic", "rounds": 20, "model": "logreg", "lr": 0.1, **settings}
    config = RunConfig.model_validate(values)
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config.toml())
    (path / "versions.json").write_text(json.dumps({"fedmom": "0.1.0"}))
    run = RunFolder(path)
    run.append("rounds.jsonl", [round_row(r) for r in range(1, done + 1)])
    evaluated = [eval_rows(r, config.seed) for r in range(0, done + 1, 5)]
    run.append("evals.jsonl", [row for rows in evaluated for row in rows])
    if stop:
        fact = {"kind": stop, "why": f"Round {done + 1}: {WHY}"}
        (path / "stopped.json").write_text(json.dumps(fact))
    return run


def result(accuracies=(), rounds=(), seed=0, last=20, **more):
    """A result in memory, with test accuracies at rounds 0, 10, 20, ..., and rows of rounds.

    Its evaluations have no percentiles, as if an early version had made them.
    """
    evals = [
        {"round": 10 * i, "split": split, "accuracy": value, "loss": 1 - value}
        for i, value in enumerate(accuracies)
        for split in ("train", "test")
    ]
    config = RunConfig(algorithm="fedmom", rounds=last, seed=seed)
    return Result(Path("nowhere"), config, evals, rounds, **more)
