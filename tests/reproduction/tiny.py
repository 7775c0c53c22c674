"""A plan so small that all of it runs in a test, and runs with given evaluations."""

from pathlib import Path

from fedmom.experiments.results import Result
from fedmom.experiments.settings import RunConfig
from fedmom.reproduction import plan

TINY = plan.Scale(
    name="quick",
    rounds=12,
    eval_every=2,
    femnist=plan.PaperTask(
        name="FEMNIST",
        data="images.npz",
        settings={"model": "logreg", "local-epochs": 1, "eval-samples": 100},
        first_lrs={"fedsgd": (0.1,), "fedavg": (0.01, 1e38), "fedmom": (0.01, 1e38)},
        lrs=(0.01, 1e38),  # the last diverges
        seeds=(0, 1, 2),
        tuning=(100,),
        few=2,
        fedsgd_share=1,
        cost=1,
    ),
    shakespeare=plan.PaperTask(
        name="Shakespeare",
        data="texts.npz",
        settings={"model": "logreg", "local-steps": 3, "eval-samples": 100},
        first_lrs={"fedavg": (0.001, 0.01), "fedmom": (0.001, 0.01)},
        lrs=(),
        seeds=(0, 1),
        tuning=(100,),
        few=0,
        fedsgd_share=0.5,
        cost=2,
    ),
    epochs=(0.5, 1),
    variants=(plan.PAPER, plan.VARIANTS[9]),
    window=3,
)


def some(grid):
    """A choice before there is any result."""
    lrs = list(grid)
    return lrs[len(lrs) // 2] if lrs else None


def run_of(losses, accuracies=None, why="", seed=0):
    """A run with given evaluations at rounds 0, 1, 2, ...; with a ``why`` it diverged."""
    rows = []
    for t, loss in enumerate(losses):
        accuracy = accuracies[t] if accuracies else 0.5
        rows += [
            {"round": t, "split": "train", "loss": loss, "accuracy": accuracy},
            {
                "round": t,
                "split": "test",
                "loss": loss,
                "accuracy": accuracy,
                "accuracy_p10": accuracy / 2,
            },
        ]
    stop = "diverged" if why else ""
    return Result(Path("nowhere"), RunConfig(seed=seed), rows, stop=stop, why=why)
