"""`fedmom theory momentum`: when FedMom is ahead of FedAvg, in general and on a task."""

from pathlib import Path
from typing import Any

from fedmom.cli.output import OUT
from fedmom.cli.theory_tables import plain_table
from fedmom.core.progress import bars
from fedmom.experiments import build, settings
from fedmom.experiments.build import Experiment
from fedmom.experiments.settings import kebab
from fedmom.reports import drawing
from fedmom.reports.charts import Figure
from fedmom.theory.budgets import Look
from fedmom.theory.momentum_figure import figure
from fedmom.theory.momentum_map import MomentumMap, best_momentum, momentum_map
from fedmom.theory.prediction import CEILING, PER_ROUND, Prediction, map_of_task, predict, ticks
from fedmom.theory.quadratic import Plan, random_clients

HORIZONS = (50, 200, 1000, 3000)
PANELS = ((30, 0.3), (3000, 0.3), (3000, 0.05))  # condition number, spread of optima and noise
LOCAL = (
    "This is a prediction from quadratics: curvatures, noise and differences of clients are those"
    " near the model looked at, and a net's change on the way. Trust who is ahead more than by how"
    " much. docs/momentum.md tells what was found."
)


def momentum(
    data: str | None, beta: float, out: Path, options: dict[str, Any], *, draw: bool
) -> None:
    """Print and draw when FedMom is ahead: on a task, or in general without one."""
    if data is None:
        picture = _general(beta) if draw else None
    else:
        picture = _of_task(data, beta, options, draw=draw)
    if picture is not None:
        OUT.print(picture.note)
        for path in drawing.save(picture, out):
            OUT.print(f"Figure: {path}")


def _general(beta: float) -> Figure:
    """Draw the map of random populations, and print it."""
    panels: list[tuple[str, MomentumMap]] = []
    with bars(OUT) as bar:
        task = bar.add_task("map", total=len(PANELS) * len(PER_ROUND))
        for condition, spread in PANELS:
            clients = random_clients(condition=condition, spread=spread, noise=spread)
            cases = [(str(m), clients, Plan(per_round=m, steps=10)) for m in PER_ROUND]
            found = momentum_map(cases, HORIZONS, momentum=beta, tick=lambda: bar.advance(task))
            panels.append((f"condition {condition:,}, spread {spread}", found))
    view = plain_table(
        f"FedAvg's expected excess loss over FedMom's: K = 200, H = 10, β = {beta:g}, population"
        " weights, constant γ",
        "condition, spread = noise",
    )
    view.add_column("M", justify="right")
    for t in HORIZONS:
        view.add_column(f"T = {t:,}", justify="right", no_wrap=True)
    for (condition, spread), (_, found) in zip(PANELS, panels, strict=True):
        for name, row in zip(found.rows, found.ratios, strict=True):
            view.add_row(f"{condition:,}, {spread}", name, *(f"{ratio:.2f}" for ratio in row))
    OUT.print(view)
    return figure(panels)


def _of_task(data: str, beta: float, options: dict[str, Any], *, draw: bool) -> Figure | None:
    look = Look(clients=options.pop("clients"))
    short_run, short_lr, lowest = (
        options.pop(name) for name in ("short_run", "short_lr", "lowest_loss")
    )
    given = {kebab(n): v for n, v in options.items() if v is not None}
    experiment = build.prepare(settings.parse({**given, "data": data, "algorithm": "fedavg"}))
    with bars(OUT) as bar:
        task = bar.add_task("short run and spectra", total=ticks(short_run, look))
        found = predict(
            experiment,
            short_run=short_run,
            lr=short_lr,
            momentum=beta,
            lowest_loss=lowest,
            look=look,
            tick=lambda: bar.advance(task),
        )
    _print_measured(experiment, found)
    _print_prediction(experiment, found)
    OUT.print(LOCAL)
    return _map(experiment, found[-1], beta) if draw else None


def _print_measured(experiment: Experiment, found: list[Prediction]) -> None:
    view = plain_table(f"Measured: {experiment.config.model} on {experiment.data.name}", "model")
    for column in (
        *("loss", "then", "|∇f|²", "G²", "σ²"),
        *("steepest", "floor", "spread"),
    ):
        view.add_column(column, justify="right", no_wrap=True)
    for each in found:
        spectrum = each.spectrum
        energies = (spectrum.gradient, spectrum.difference, spectrum.noise)
        numbers = (
            *(each.run.first, each.run.last, *(float(e.energy.sum()) for e in energies)),
            *(each.matched.steepest, each.matched.floor, spectrum.sharpness_spread),
        )
        view.add_row(f"of round {each.round_}", *(f"{number:.3g}" for number in numbers))
    OUT.print(view)
    OUT.print(
        "then: the loss after the short run. steepest, floor: the largest curvature seen and the"
        " smallest matched. spread: of the clients' steepest curvature, relative."
    )


def _print_prediction(experiment: Experiment, found: list[Prediction]) -> None:
    config = experiment.config
    rounds = config.rounds
    view = plain_table(
        f"Predicted best γ and excess loss after T = {rounds:,} rounds:"
        f" M = {config.clients_per_round}, {config.weighting} weights, sampler {config.sampler},"
        f" lr {config.lr}",
        "model",
    )
    for column in ("FedAvg:\nγ", "loss", "FedMom:\nγ", "loss", "ratio", "best\nβ"):
        view.add_column(column, justify="right", no_wrap=True)
    view.add_column("so", no_wrap=True)
    for each in found:
        duel = each.duel
        pairs = [f"{x:.3g}" for best in (duel.fedavg, duel.fedmom) for x in (best.lr, best.loss)]
        beta = best_momentum(
            each.matched.clients, each.matched.plan, rounds, ceiling=CEILING
        ).momentum
        row = (*pairs, f"{duel.ratio:.2f}", f"{beta:g}", duel.verdict)
        view.add_row(f"of round {each.round_}", *row)
    OUT.print(view)


def _map(experiment: Experiment, last: Prediction, beta: float) -> Figure:
    with bars(OUT) as bar:
        task = bar.add_task("map", total=len(PER_ROUND) + 1)
        found, place = map_of_task(
            last.matched,
            experiment.config.rounds,
            momentum=beta,
            tick=lambda: bar.advance(task),
        )
    config = experiment.config
    name = f"{config.model} on {experiment.data.name}, {config.weighting} weights"
    return figure([(name, found)], task=place)
