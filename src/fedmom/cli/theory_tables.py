"""Tables of the theory's commands."""

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from fedmom.experiments.build import Experiment
from fedmom.experiments.settings import RunConfig
from fedmom.theory import advice, suggestion
from fedmom.theory.advice import BestLr
from fedmom.theory.constants import Constants, Setting
from fedmom.theory.estimate import Estimates
from fedmom.theory.intervals import Estimate


def plain_table(title: str, first: str) -> Table:
    """Return an empty table with a title and its first column."""
    view = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=title, title_justify="left")
    view.add_column(first, no_wrap=True)
    return view


def estimates_table(experiment: Experiment, found: Estimates) -> Table:
    """Return the constants of a task as a table."""
    last = found.rounds[-1]
    view = plain_table(
        f"Local estimates: {experiment.config.model} on {experiment.data.name}, {found.clients}"
        f" clients with {found.samples} samples, {len(found.rounds)} models of rounds 0 to {last}"
        f" ({found.models} for L and σ²)",
        "",
    )
    for column in ("estimate", "90 % interval"):
        view.add_column(column, justify="right", no_wrap=True)
    view.add_column("what it is")
    batch = "all samples" if found.batch_size is None else f"{found.batch_size} samples"
    for name, value, what in (
        ("L", found.smoothness, _of_smoothness(found)),
        (
            "σ²",
            found.variance,
            f"batches of {batch}; mean over clients, largest {found.largest_variance:.3g}",
        ),
        ("G²", found.dissimilarity, "with B² the smallest that covers what was seen"),
        ("B²", found.similarity, "slope of Σ p_k|∇f_k|² over |∇f|², at least 1"),
        (
            "f(w_0) - f_inf",
            found.gap,
            f"{found.first_loss:.3g} to {found.lowest_loss:.3g}, the lowest seen: the gap is"
            " at least this",
        ),
    ):
        view.add_row(name, f"{value.value:.3g}", _interval(value), what)
    return view


def _interval(found: Estimate) -> str:
    if found.high is None:
        return f"{found.low:.3g} or more"
    return f"{found.low:.3g} to {found.high:.3g}"


def _of_smoothness(found: Estimates) -> str:
    text = f"largest over clients; that of f is {found.smoothness_of_f:.3g}"
    if found.smoothness_of_clients is None:
        return text
    low, high = found.smoothness_of_clients
    return f"{text}; nine of ten clients have {low:.3g} to {high:.3g}"


def statements_table(
    constants: Constants, setting: Setting, rounds: int, lr: float | None
) -> Table:
    """Return every theorem with the step sizes it allows and its bound as a table."""
    view = plain_table(
        f"Bounds on |∇f|² after T = {rounds:,} rounds: K = {setting.clients},"
        f" M = {setting.per_round}, H = {setting.local_steps}, η = {setting.server_lr:g},"
        f" β = {setting.momentum:g}",
        "statement",
    )
    columns = ["algorithm", "largest γ", "bound there"]
    if lr is not None:
        columns.append(f"bound at\nγ = {lr:g}")
    for column in columns:
        view.add_column(column, justify="right", no_wrap=True)
    for row in advice.statements(constants, setting, rounds, lr):
        cells = [row.largest_lr, row.bound, *([] if lr is None else [row.bound_at])]
        view.add_row(
            row.name, row.algorithm, *("-" if cell is None else f"{cell:.3g}" for cell in cells)
        )
    view.caption = "-: the statement is silent (η outside [1, K/M], or γ above the largest)."
    view.caption_justify = "left"
    return view


def experience_table(found: Mapping[str, BestLr | None], folder: Path) -> Table:
    """Return the step sizes that experiments found best as a table, algorithm by algorithm."""
    view = plain_table(f"Step sizes γ: what the runs in {folder} found", "")
    whats = []
    for algorithm, best in found.items():
        view.add_column(algorithm, justify="right", no_wrap=True)
        if best is not None:
            whats.append(
                f"{algorithm}: test accuracy {best.accuracy:.3f} after {best.rounds} rounds,"
                f" best of {best.tried} γ, {best.seeds} seed{'s' * (best.seeds > 1)}"
            )
    view.add_column("what it is")
    cells = ("none" if best is None else f"{best.lr:g}" for best in found.values())
    view.add_row("experiments", *cells, "; ".join(whats))
    return view


def experience_lines(best: BestLr, task: RunConfig) -> list[str]:
    """Return what else is to say of the best step size: the others tried, and its place."""
    name = best.config.algorithm
    tried = [f"{lr:g} ({accuracy:.3f})" for lr, accuracy in best.accuracies.items()]
    tried += [f"{lr:g} (diverged)" for lr in best.diverged]
    lines = [
        f"{name}: γ tried, with test accuracy: {', '.join(tried)}.",
        f"{name}: {best.lr:g} is best; {suggestion.verdict(best)}.",
    ]
    if best.seeds == 1:
        lines.append(f"{name}: one seed only, so small differences may be chance. Run more seeds.")
    if others := suggestion.differences(best.config, task):
        lines.append(f"{name}: the runs differ from this task in {', '.join(others)}.")
    return lines


def proven_table(constants: Constants, setting: Setting, rounds: int) -> Table:
    """Return the step sizes at which the corrected bounds are least as a table."""
    view = plain_table("What is proven: a guarantee, not the γ that trains best", "")
    for column in ("fedavg", "fedmom"):
        view.add_column(column, justify="right", no_wrap=True)
    view.add_column("what it is")
    pairs = [advice.best(constants, setting, rounds, a) for a in ("fedavg", "fedmom")]
    bounds = " and ".join(f"{bound:.3g}" for _, bound in pairs)
    what = f"γ with the least corrected bound on |∇f|², {bounds}; usually far too small"
    view.add_row("proven", *(f"{lr:.3g}" for lr, _ in pairs), what)
    return view
