"""Tables of the theory's commands."""

from pathlib import Path

from rich.table import Table

from fedmom.experiments.build import Experiment
from fedmom.theory import advice
from fedmom.theory.constants import Constants, Setting
from fedmom.theory.estimate import Estimates


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
    for column in ("estimate", "90 % range"):
        view.add_column(column, justify="right", no_wrap=True)
    view.add_column("what it is")
    batch = "all samples" if found.batch_size is None else f"{found.batch_size} samples"
    for name, value, what in (
        ("L", found.smoothness, f"largest over clients; that of f is {found.smoothness_of_f:.3g}"),
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
        spread = f"{value.low:.3g} to {value.high:.3g}"
        view.add_row(name, f"{value.value:.3g}", spread, what)
    return view


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


def advice_table(
    experiment: Experiment,
    constants: Constants,
    setting: Setting,
    rounds: int,
    experiments: Path | None,
) -> Table:
    """Return the step sizes that theory and experiments advise as a table."""
    view = plain_table("Step sizes γ", "")
    for column in ("fedavg", "fedmom"):
        view.add_column(column, justify="right", no_wrap=True)
    view.add_column("what it is")
    pairs = [advice.best(constants, setting, rounds, a) for a in ("fedavg", "fedmom")]
    bounds = " and ".join(f"{bound:.3g}" for _, bound in pairs)
    view.add_row("theory", *(f"{lr:.3g}" for lr, _ in pairs), f"least corrected bound: {bounds}")
    config = experiment.config
    if experiments is None:
        view.add_row(
            "experiments", "?", "?", "run `fedmom sweep --grid 'lr=...'`, then --experiments DIR"
        )
        return view
    cells, whats = [], []
    for algorithm in ("fedavg", "fedmom"):
        found = advice.found_best(experiments, config.data, config.model, algorithm)
        cells.append("none" if found is None else str(found.lr))
        if found is not None:
            whats.append(
                f"{algorithm}: test accuracy {found.accuracy:.3f} after {found.rounds} rounds,"
                f" best of {found.tried} γ, {found.seeds} seed{'s' * (found.seeds > 1)}"
            )
    what = "; ".join(whats) or f"no finished run of this data and model in {experiments}"
    view.add_row("experiments", *cells, what)
    return view
