"""What the theory says of a task: constants that are estimated, and advice on a step size."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import optax
from rich.progress import Progress

from fedmom import theory
from fedmom.algorithms import build as algorithms
from fedmom.cli.output import OUT
from fedmom.cli.theory_tables import (
    estimates_table,
    experience_lines,
    experience_table,
    proven_table,
    statements_table,
)
from fedmom.core.errors import FedMomError
from fedmom.core.files import free_folder, write_atomic
from fedmom.core.progress import bars
from fedmom.core.types import Params
from fedmom.experiments import build, settings
from fedmom.experiments.build import Experiment
from fedmom.experiments.settings import RunConfig, kebab
from fedmom.reports import drawing
from fedmom.reports.charts import Chart, Figure, Line
from fedmom.theory import advice, suggestion
from fedmom.theory import estimate as estimates
from fedmom.theory.budgets import Budget
from fedmom.theory.check import setting_of
from fedmom.theory.constants import Constants, Setting
from fedmom.theory.estimate import GRADIENTS, Estimates, spaced, walk
from fedmom.training.subproblem import Subproblem

LOCAL = (
    "The estimates are local: they hold near the models, clients and samples looked at, and the"
    " constants of a deep net elsewhere can be far larger. The bounds are loose: a larger γ that no"
    " theorem covers often trains well. docs/theory.md says more."
)
LOOKS = 25  # at |∇f(w_t)|², along a run that is drawn


def estimate(out: Path | None, options: dict[str, Any]) -> None:
    """Print the constants of a task; write them to a file, if one is given."""
    experiment, budget, short_run = _task(options)
    with bars(OUT) as bar:
        found = _estimated(experiment, budget, short_run, bar)
    OUT.print(estimates_table(experiment, found))
    OUT.print(LOCAL)
    if out is not None:
        row = {"setting": asdict(setting_of(experiment)), "estimates": found.row()}
        write_atomic(out, json.dumps(row, indent=2, allow_nan=False).encode())
        OUT.print(f"Estimates: {out}")


def advise(rounds: int, experiments: Path | None, out: Path, options: dict[str, Any]) -> None:
    """Print and draw what experiments found, or which to run, and what is proven."""
    if experiments is not None and not experiments.is_dir():
        raise FedMomError(f"There is no folder {experiments}. Give that of a sweep or of runs.")
    experiment, budget, short_run = _task(options)
    known = _known(experiment, experiments or Path("runs"))
    with bars(OUT) as bar:
        found = _estimated(experiment, budget, short_run, bar)
    for name in [name for name, best in known.items() if best is None]:
        _suggest(experiment, name, rounds, found)
    OUT.print(LOCAL)
    if found.gap.value > 0:
        _prove(experiment, found, rounds, short_run, out)
        return
    OUT.print(estimates_table(experiment, found))
    OUT.print(
        f"The short run never came below its first loss, {found.first_loss:.3g}, with lr"
        f" {experiment.config.lr}, so the theorems are left out. Take a smaller --lr, or a longer"
        " --short-run."
    )


def _known(experiment: Experiment, folder: Path) -> dict[str, advice.BestLr | None]:
    """Print what finished runs found, and what to run next; return it."""
    config = experiment.config
    names = ("fedsgd",) if config.algorithm == "fedsgd" else ("fedavg", "fedmom")
    found = {name: advice.found_best(folder, config.data, config.model, name) for name in names}
    if folder.is_dir() and not any(found.values()):
        OUT.print(f"No finished run of this data and model is in {folder}.")
    if any(found.values()):
        OUT.print(experience_table(found, folder))
    for name, best in found.items():
        if best is None:
            continue
        for line in experience_lines(best, config):
            OUT.print(line, highlight=False)
        if lrs := suggestion.next_lrs(best):
            _print_sweep(f"{name}: run next", experiment, best.config, lrs)
    return found


def _suggest(experiment: Experiment, name: str, rounds: int, found: Estimates) -> None:
    """Print a grid of step sizes to run, where there are no experiments."""
    config, beta = experiment.config, algorithms.default_of(name, "momentum")
    if config.algorithm == name:
        beta = config.momentum
    update = {"algorithm": name, "rounds": rounds, "momentum": beta}
    smoothness = found.smoothness.value
    why = f"around 2/L = {2 / smoothness:.2g}, where SGD stops being stable"
    if beta:
        why = f"{1 - beta:.2g} of fedavg's, as updates add up to {1 / (1 - beta):.3g} of one"
    lrs = suggestion.first_grid(smoothness, beta or 0.0)
    title = f"{name}: no runs to go by. Run these γ ({why})"
    _print_sweep(title, experiment, config.model_copy(update=update), lrs)


def _print_sweep(why: str, experiment: Experiment, config: RunConfig, lrs: list[float]) -> None:
    out = free_folder(f"lr-{config.algorithm}").as_posix()
    command = suggestion.sweep_command(config, experiment.data.clients, lrs, out)
    OUT.print(f"{why}:\n  {command}", highlight=False, markup=False)


def _prove(
    experiment: Experiment, found: Estimates, rounds: int, short_run: int, out: Path
) -> None:
    """Print and draw what the theorems guarantee."""
    constants, setting = found.constants(), setting_of(experiment)
    proven, _ = advice.best(constants, setting, rounds, experiment.config.algorithm)
    with bars(OUT) as bar:
        lines = _measured(experiment, proven, short_run, bar)
    OUT.print(proven_table(constants, setting, rounds))
    OUT.print(statements_table(constants, setting, rounds, None))
    OUT.print(estimates_table(experiment, found))
    for path in drawing.save(_figure(experiment, constants, setting, proven, lines), out):
        OUT.print(f"Figure: {path}")


def _task(options: dict[str, Any]) -> tuple[Experiment, Budget, int]:
    """Return the experiment, the budget and the rounds of the short run."""
    budget = Budget(*(options.pop(name) for name in ("clients", "samples", "models")))
    short_run: int = options.pop("short_run")
    given = {kebab(n): v for n, v in options.items() if v is not None}
    config = settings.parse(build.fitting({**given, "rounds": short_run}))
    if config.algorithm not in ("fedsgd", "fedavg", "fedmom"):
        raise FedMomError(
            f"The theory does not speak of {config.algorithm}. Take fedsgd, fedavg or fedmom."
        )
    return build.prepare(config), budget, short_run


def _estimated(experiment: Experiment, budget: Budget, short_run: int, bar: Progress) -> Estimates:
    rounds = spaced(short_run, max(GRADIENTS, budget.models))
    task = bar.add_task("short run", total=short_run + 1)
    models: dict[int, Params] = {}
    for t, params in walk(experiment, short_run):
        if t in rounds:
            models[t] = params
        bar.advance(task)
    task = bar.add_task("estimates", total=budget.steps(experiment.data.clients))
    return estimates.estimate(
        experiment.model,
        experiment.data,
        models,
        batch_size=experiment.work.batch_size,
        budget=budget,
        seed=experiment.config.seed,
        tick=lambda: bar.advance(task),
    )


def _measured(experiment: Experiment, proven: float, short_run: int, bar: Progress) -> list[Line]:
    """Return |∇f(w_t)|² along a run with the task's γ, and along one with the proven γ."""
    rates = [experiment.config.lr, *([proven] if proven > 0 else [])]
    sample = Subproblem(experiment.model, experiment.data, clients=50, samples=16)
    rounds = spaced(short_run, LOOKS)
    task = bar.add_task("bound against run", total=len(rates) * (short_run + 1))
    lines = []
    for rate in rates:
        again = build.prepare(experiment.config.model_copy(update={"lr": rate}), experiment.data)
        squares = []
        for t, params in walk(again, short_run):
            if t in rounds:
                squares.append(float(optax.tree.norm(sample.gradient(params)[1])) ** 2)
            bar.advance(task)
        label = f"{rate:.3g}" if isinstance(rate, float) else rate
        lines.append(Line(f"measured, γ = {label}", rounds, squares))
    return lines


def _figure(
    experiment: Experiment,
    constants: Constants,
    setting: Setting,
    proven: float,
    measured: list[Line],
) -> Figure:
    last = int(measured[0].x[-1])
    counts = np.unique(np.linspace(1, last, 100).astype(int))
    lines = list(measured)
    if proven > 0:
        bound = np.asarray(theory.corrected_fedmom(constants, setting, proven, counts))
        label = f"corrected bound, γ = {proven:.3g}"
        lines.append(Line(label, counts.tolist(), bound.tolist(), dashed=True))
    chart = Chart(
        title=f"{experiment.config.algorithm}, {experiment.config.model} on {experiment.data.name}",
        x="rounds",
        y="|∇f(w_t)|²",
        marks=lines,
        log_y=True,
    )
    return Figure(
        name="advise",
        title="Bound and measured gradient",
        charts=(chart,),
        columns=1,
        note="The bound is on the mean of |∇f(w_t)|² over the rounds so far. |∇f|² is that of a"
        " sample of clients. Estimates are local, and the bound is loose.",
    )
