"""How the theory's commands print what they found."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from fedmom.experiments.build import Experiment
from fedmom.experiments.settings import RunConfig
from fedmom.theory import lr_advice
from fedmom.theory.constants import Constants, Setting
from fedmom.theory.counterexample import Comparison
from fedmom.theory.estimate import Estimate, Estimates
from fedmom.theory.lr_advice import BestLr
from fedmom.theory.momentum_map import HORIZONS, MomentumMap, best_momentum
from fedmom.theory.momentum_prediction import CEILING, Prediction
from fedmom.theory.paper_theorems import apply_all
from fedmom.theory.theorems import CORRECTED_FEDAVG, CORRECTED_FEDMOM

LOCAL_ESTIMATES = (
    "The estimates are local: they hold near the models, clients and samples looked at, and the"
    " constants of a deep net elsewhere can be far larger. The bounds are loose: a larger γ that no"
    " theorem covers often trains well. docs/theory.md says more."
)
LOCAL_PREDICTION = (
    "This is a prediction from quadratics: curvatures, noise and differences of clients are those"
    " near the model looked at, and those of a net change during training. Trust who is ahead more"
    " than by how much. docs/momentum.md says what was found."
)
MEASURED = (
    "then: the loss after the short run. steepest, floor: the largest curvature seen and the"
    " smallest matched. spread: of the clients' steepest curvature, relative."
)


def plain_table(title: str, first: str, numbers: Sequence[str] = (), last: str = "") -> Table:
    """Return an empty table: a first column, columns of numbers, and perhaps one of text."""
    view = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=title, title_justify="left")
    view.add_column(first, no_wrap=True)
    for name in numbers:
        view.add_column(name, justify="right", no_wrap=True)
    if last:
        view.add_column(last)
    return view


def estimates_table(experiment: Experiment, found: Estimates) -> Table:
    """Return the constants of a task as a table."""
    last = found.rounds[-1]
    view = plain_table(
        f"Local estimates: {experiment.config.model} on {experiment.data.name}, {found.clients}"
        f" clients with {found.samples} samples, {len(found.rounds)} models of rounds 0 to {last}"
        f" ({found.models} for L and σ²)",
        "",
        ("estimate", "90 % interval"),
        "what it is",
    )
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


def bounds_table(constants: Constants, setting: Setting, rounds: int, lr: float | None) -> Table:
    """Return every theorem with the γ it allows and its bound as a table."""
    columns = ("algorithm", "largest γ", "bound there")
    view = plain_table(
        f"Bounds on |∇f|² after T = {rounds:,} rounds: K = {setting.clients},"
        f" M = {setting.per_round}, H = {setting.local_steps}, η = {setting.server_lr:g},"
        f" β = {setting.momentum:g}",
        "theorem",
        columns if lr is None else (*columns, f"bound at\nγ = {lr:g}"),
    )
    for row in apply_all(constants, setting, rounds, lr):
        theorem = row.theorem
        numbers = [row.largest_lr, row.bound, *([] if lr is None else [row.bound_at])]
        cells = ("-" if number is None else f"{number:.3g}" for number in numbers)
        view.add_row(f"{theorem.name} ({theorem.source})", theorem.algorithm, *cells)
    view.caption = "-: the theorem does not apply (η outside [1, K/M], or γ above the largest)."
    view.caption_justify = "left"
    return view


def experience_table(found: Mapping[str, BestLr | None], folder: Path) -> Table:
    """Return the γ that experiments found best as a table, algorithm by algorithm."""
    title = f"Learning rates γ: what the runs in {folder} found"
    view = plain_table(title, "", list(found), "what it is")
    whats = [
        f"{algorithm}: test accuracy {best.accuracy:.3f} after {best.config.rounds} rounds,"
        f" best of {len(best.accuracies)} γ, {best.seeds} seed{'s' * (best.seeds > 1)}"
        for algorithm, best in found.items()
        if best is not None
    ]
    cells = ("none" if best is None else f"{best.lr:g}" for best in found.values())
    view.add_row("experiments", *cells, "; ".join(whats))
    return view


def experience_lines(best: BestLr, task: RunConfig) -> list[str]:
    """Return the other γ tried, where the best lies among them, and what to be careful about."""
    name = best.config.algorithm
    tried = [f"{lr:g} ({accuracy:.3f})" for lr, accuracy in best.accuracies.items()]
    tried += [f"{lr:g} (diverged)" for lr in best.diverged]
    lines = [
        f"{name}: γ tried, with test accuracy: {', '.join(tried)}.",
        f"{name}: {best.lr:g} has the best mean; {lr_advice.verdict(best)}.",
    ]
    if best.seeds == 1:
        lines.append(f"{name}: one seed only, so small differences may be chance. Run more seeds.")
    if others := lr_advice.differences(best.config, task):
        lines.append(f"{name}: the runs differ from this task in {', '.join(others)}.")
    return lines


def proven_table(constants: Constants, setting: Setting, rounds: int) -> Table:
    """Return the γ at which the corrected bounds are least as a table."""
    title = "What is proven if the estimates hold everywhere: not the γ that trains best"
    columns = ("fedavg", f"fedmom, β = {setting.momentum:g}")
    view = plain_table(title, "", columns, "what it is")
    theorems = (CORRECTED_FEDAVG, CORRECTED_FEDMOM)
    pairs = [theorem.best(constants, setting, rounds) for theorem in theorems]
    bounds = " and ".join(f"{bound:.3g}" for _, bound in pairs)
    what = f"γ with the least corrected bound on |∇f|², {bounds}; usually far too small"
    view.add_row("proven", *(f"{lr:.3g}" for lr, _ in pairs), what)
    return view


def counterexample_table(found: Comparison) -> Table:
    """Return what was measured on the counterexample and both bounds as a table."""
    numbers = ("measured", "paper,\nTheorem 1", "corrected,\nTheorem 1'", "paper's bound")
    view = plain_table("min |∇f(w_t)|² of FedAvg on f₁ = w²/2, f₂ = -w", "rounds T", numbers)
    columns = (found.rounds, found.measured, found.paper, found.corrected)
    for t, measured, paper, corrected in zip(*columns, strict=True):
        broken = "is broken" if paper < measured else "holds"
        view.add_row(f"{t:,.0f}", *(f"{v:.3g}" for v in (measured, paper, corrected)), broken)
    return view


def general_map_table(panels: Sequence[tuple[int, float, MomentumMap]], beta: float) -> Table:
    """Return the maps of random populations as a table."""
    view = plain_table(
        f"FedAvg's expected excess loss over FedMom's: K = 200, H = 10, β = {beta:g}, population"
        " weights, constant γ",
        "condition, spread = noise",
        ("M", *(f"T = {t:,}" for t in HORIZONS)),
    )
    for condition, spread, found in panels:
        for name, row in zip(found.rows, found.ratios, strict=True):
            view.add_row(f"{condition:,}, {spread}", name, *(f"{ratio:.2f}" for ratio in row))
    return view


def measured_table(experiment: Experiment, found: Sequence[Prediction]) -> Table:
    """Return what was measured at the models of a task as a table."""
    title = f"Measured: {experiment.config.model} on {experiment.data.name}"
    columns = ("loss", "then", "|∇f|²", "G²", "σ²", "steepest", "floor", "spread")
    view = plain_table(title, "model", columns)
    for each in found:
        spectrum = each.spectrum
        energies = (spectrum.gradient, spectrum.difference, spectrum.noise)
        numbers = (
            *(each.run.first, each.run.last, *(float(e.energy.sum()) for e in energies)),
            *(each.matched.steepest, each.matched.floor, spectrum.sharpness_spread),
        )
        view.add_row(f"of round {each.round_}", *(f"{number:.3g}" for number in numbers))
    return view


def prediction_table(experiment: Experiment, found: Sequence[Prediction]) -> Table:
    """Return the best γ and loss predicted for both methods as a table."""
    config = experiment.config
    view = plain_table(
        f"Predicted best γ and excess loss after T = {config.rounds:,} rounds:"
        f" M = {config.clients_per_round}, {config.weighting} weights, sampler {config.sampler},"
        f" lr {config.lr}",
        "model",
        ("FedAvg:\nγ", "loss", "FedMom:\nγ", "loss", "ratio", "best\nβ"),
        "so",
    )
    for each in found:
        duel, match = each.duel, each.matched
        pairs = [f"{x:.3g}" for best in (duel.fedavg, duel.fedmom) for x in (best.lr, best.loss)]
        best = best_momentum(match.clients, match.plan, config.rounds, ceiling=CEILING)
        row = (*pairs, f"{duel.ratio:.2f}", f"{best.momentum:g}", duel.verdict)
        view.add_row(f"of round {each.round_}", *row)
    return view
