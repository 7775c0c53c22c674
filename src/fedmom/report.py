"""Logs of runs -> one table and one figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fedmom.runs import RunFolder

PANELS = (
    ("train", "loss", "Training loss"),
    ("test", "accuracy", "Test accuracy"),
    ("test", "accuracy_p10", "Test accuracy, 10th percentile of clients"),
)
# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000")


@dataclass(frozen=True)
class Curves:
    """A finished or stopped run, ready to be shown."""

    label: str
    evals: list[dict[str, Any]]
    seconds: float
    megabytes: float
    stopped: str = ""  # why it ended early

    def of(self, split: str, key: str) -> tuple[list[int], list[float]]:
        """Return rounds and values of one curve."""
        rows = [r for r in self.evals if r["split"] == split]
        return [r["round"] for r in rows], [r[key] for r in rows]


def read(folder: Path, label: str, stopped: str = "") -> Curves:
    """Read a run's logs."""
    run = RunFolder.open(folder)
    rounds = run.rows("rounds.jsonl")
    traffic = sum(r["bytes_up"] + r["bytes_down"] for r in rounds)
    seconds = sum(r["seconds"] for r in rounds)
    return Curves(label, run.rows("evals.jsonl"), seconds, traffic / 1e6, stopped)


def target(runs: Sequence[Curves]) -> float:
    """Return the best test accuracy of the runner-up: what shows who was faster."""
    best = sorted((max(r.of("test", "accuracy")[1], default=0.0) for r in runs), reverse=True)
    return best[min(1, len(best) - 1)]


def rounds_to(run: Curves, accuracy: float) -> int | None:
    """Return the first evaluated round with at least this test accuracy."""
    reached = zip(*run.of("test", "accuracy"), strict=True)
    return next((r for r, a in reached if a >= accuracy), None)


def table(runs: Sequence[Curves]) -> Table:
    """Return the comparison as a table."""
    goal = target(runs)
    view = Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        title="Last evaluation (p10 to p90: test accuracy over clients)",
        title_justify="left",
    )
    view.add_column("algorithm", no_wrap=True)
    columns = ("round", "train\nloss", "test\naccuracy", "p10", "p50", "p90")
    for column in (*columns, f"rounds\nto {goal:.3f}", "MB\nsent", "time\n(s)"):
        view.add_column(column, justify="right", no_wrap=True)
    for run in runs:
        test = run.evals[-1]
        train = next(r for r in reversed(run.evals) if r["split"] == "train")
        reached = rounds_to(run, goal)
        view.add_row(
            run.label + (" (stopped)" if run.stopped else ""),
            str(test["round"]),
            f"{train['loss']:.3f}",
            f"{test['accuracy']:.3f}",
            *(f"{test[f'accuracy_{p}']:.3f}" for p in ("p10", "p50", "p90")),
            "never" if reached is None else str(reached),
            f"{run.megabytes:.1f}",
            f"{run.seconds:.1f}",
        )
    return view


def figure(runs: Sequence[Curves], path: Path, title: str) -> Path:
    """Draw loss and accuracy over rounds, in the manner of the paper's Figure 5."""
    # Imported here: drawing takes a second to load that `fedmom run` need not wait for.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(13, 4.2), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots(1, len(PANELS))
    for axis, (split, key, name) in zip(axes, PANELS, strict=True):
        for run, colour in zip(runs, COLOURS, strict=False):
            axis.plot(*run.of(split, key), color=colour, label=run.label, linewidth=2)
        axis.set_title(name, loc="left", fontsize=11)
        axis.set_xlabel("communication round")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    picture.suptitle(title, x=0.01, ha="left", fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=150)
    return path
