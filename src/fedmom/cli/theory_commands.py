"""The commands of the theory: estimate, bounds, advise, counterexample."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
import optax
from rich.progress import Progress

from fedmom import theory
from fedmom.algorithms import build as algorithms
from fedmom.cli.options import FOLDER, setting_option
from fedmom.cli.output import OUT
from fedmom.cli.theory_tables import (
    estimates_table,
    experience_lines,
    experience_table,
    plain_table,
    proven_table,
    statements_table,
)
from fedmom.core.errors import FedMomError
from fedmom.core.files import free_folder, parse_json, write_atomic
from fedmom.core.progress import bars
from fedmom.core.types import Params
from fedmom.experiments import build, settings
from fedmom.experiments.build import Experiment
from fedmom.experiments.settings import RunConfig, kebab
from fedmom.reports import drawing
from fedmom.reports.charts import Chart, Figure, Line
from fedmom.theory import advice, counterexample, suggestion
from fedmom.theory.check import setting_of
from fedmom.theory.constants import Constants, Setting
from fedmom.theory.estimate import GRADIENTS, Budget, Estimates, estimate, from_row, spaced, walk
from fedmom.training.subproblem import Subproblem

LOCAL = (
    "The estimates are local: they hold near the models, clients and samples looked at, and the"
    " constants of a deep net elsewhere can be far larger. The bounds are loose: a larger γ that no"
    " theorem covers often trains well. docs/theory.md says more."
)
CONSTANT = click.FloatRange(max=1e100)  # products of them stay finite
MANY = click.IntRange(1, 10_000)
LOOKS = 25  # at |∇f(w_t)|², along a run that is drawn
TASK = (
    *("data", "model", "algorithm", "clients_per_round", "batch_size", "local_steps"),
    *("lr", "server_lr", "momentum", "seed"),
)


def task_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a run that the theory speaks of, and those of the estimates."""
    for option in (
        click.option(
            "--models",
            type=MANY,
            default=Budget.models,
            show_default=True,
            help="Models for L and σ².",
        ),
        click.option(
            "--samples",
            type=MANY,
            default=Budget.samples,
            show_default=True,
            help="Samples of each client.",
        ),
        click.option(
            "--clients",
            type=MANY,
            default=Budget.clients,
            show_default=True,
            help="Clients looked at.",
        ),
        click.option(
            "--short-run",
            type=click.IntRange(1, 100_000),
            default=50,
            show_default=True,
            help="Rounds of the run along which the models lie.",
        ),
    ):
        command = option(command)
    for name in reversed(TASK):
        command = setting_option(name)(command)
    return command


@click.command(name="estimate")
@task_options
@click.option("--out", type=FOLDER, help="A JSON file for the estimates, for `bounds`.")
def estimate_(out: Path | None, **options: Any) -> None:
    """Estimate L, σ², G², B² and f(w_0) - f_inf on a task, along a short run.

    \b
    fedmom theory estimate --data synthetic --lr 0.01 --out constants.json
    fedmom theory bounds --estimates constants.json --rounds 2000
    """
    experiment, budget, short_run = _task(options)
    with bars(OUT) as bar:
        found = _estimated(experiment, budget, short_run, bar)
    OUT.print(estimates_table(experiment, found))
    OUT.print(LOCAL)
    if out is not None:
        row = {"setting": asdict(setting_of(experiment)), "estimates": found.row()}
        write_atomic(out, json.dumps(row, indent=2, allow_nan=False).encode())
        OUT.print(f"Estimates: {out}")


@click.command()
@click.option("--estimates", type=FOLDER, help="A file of `fedmom theory estimate --out`.")
@click.option("--L", "smoothness", type=CONSTANT, help="L, the smoothness of every client's loss.")
@click.option("--sigma2", "variance", type=CONSTANT, help="σ², the variance of a batch gradient.")
@click.option("--gap", type=CONSTANT, help="f(w_0) - f_inf.")
@click.option("--G2", "dissimilarity", type=CONSTANT, help="G² of the dissimilarity [default: 0].")
@click.option("--B2", "similarity", type=CONSTANT, help="B² of the dissimilarity [default: 1].")
@click.option("--clients", type=int, help="K, the clients there are.")
@click.option("--clients-per-round", "per_round", type=int, help="Clients in a round, M.")
@click.option("--local-steps", type=int, help="Local steps in a round, H.")
@click.option("--server-lr", type=float, help="Server step size η [default: 1].")
@click.option("--momentum", type=float, help="Server momentum β [default: 0].")
@click.option("--largest-weight", type=float, help="The largest p_k [default: 1, always true].")
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), help="A step size γ to judge.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=100, show_default=True, help="Rounds, T."
)
def bounds(estimates: Path | None, lr: float | None, rounds: int, **options: Any) -> None:
    """Print every bound on |∇f|² and its condition on γ. Options override the file.

    \b
    fedmom theory bounds --L 1 --sigma2 1 --gap 2 --G2 0.5 --clients 100 --clients-per-round 10 \\
        --local-steps 10 --server-lr 10 --momentum 0.9 --rounds 2000 --lr 0.001
    """
    constants, setting = _given(estimates, options)
    OUT.print(statements_table(constants, setting, rounds, lr))
    for algorithm in ("fedavg", "fedmom"):
        best, least = advice.best(constants, setting, rounds, algorithm)
        OUT.print(f"{algorithm}: γ = {best:.3g} makes the corrected bound least, {least:.3g}.")


@click.command()
@task_options
@click.option(
    "--rounds", type=click.IntRange(min=1), default=100, show_default=True, help="Rounds, T."
)
@click.option(
    "--experiments",
    type=FOLDER,
    help="A sweep, or any folder of runs: their best γ is shown [default: runs, if it is there].",
)
@click.option("--out", type=FOLDER, default=Path("theory"), show_default=True, help="For figures.")
def advise(rounds: int, experiments: Path | None, out: Path, **options: Any) -> None:
    """Advise a step size: what experiments found or which to run, then what is proven.

    \b
    fedmom theory advise --data synthetic --rounds 2000 --lr 0.01
    fedmom theory advise --data femnist_writers.npz --model lenet5 --rounds 2000 \\
        --experiments runs/sweep
    """
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


@click.command(name="counterexample")
@click.option("--out", type=FOLDER, default=Path("theory"), show_default=True, help="For figures.")
def counterexample_(out: Path) -> None:
    """Show the case that breaks the paper's Theorem 1, with the corrected bound beside it."""
    rounds = [10**power for power in range(6)]
    found = counterexample.compare(rounds)
    view = plain_table("min |∇f(w_t)|² of FedAvg on f₁ = w²/2, f₂ = -w", "rounds T")
    for column in ("measured", "paper,\nTheorem 1", "corrected,\nTheorem 1'", "paper's bound"):
        view.add_column(column, justify="right")
    for t, *values in zip(rounds, found.measured, found.paper, found.corrected, strict=True):
        broken = "is broken" if values[1] < values[0] else "holds"
        view.add_row(f"{t:,}", *(f"{v:.3g}" for v in values), broken)
    OUT.print(view)
    figure = counterexample.figure()
    OUT.print(figure.note)
    for path in drawing.save(figure, out):
        OUT.print(f"Figure: {path}")


def _task(options: dict[str, Any]) -> tuple[Experiment, Budget, int]:
    """Return what the options of a task mean."""
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
    task = bar.add_task("estimates", total=budget.steps(experiment.data))
    return estimate(
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


def _given(file: Path | None, options: Mapping[str, Any]) -> tuple[Constants, Setting]:
    """Return the constants and setting of a file, overridden by the options."""
    constants: dict[str, Any] = {}
    setting: dict[str, Any] = {}
    if file is not None:
        constants, setting = _read(file)
    for name, value in options.items():
        if value is not None:
            (setting if name in Setting.__dataclass_fields__ else constants)[name] = value
    needed = {
        "smoothness": "--L",
        "variance": "--sigma2",
        "gap": "--gap",
        "clients": "--clients",
        "per_round": "--clients-per-round",
        "local_steps": "--local-steps",
    }
    missing = [flag for name, flag in needed.items() if name not in {**constants, **setting}]
    if missing:
        raise FedMomError(
            f"{', '.join(missing)} missing. Give them, or --estimates with a file of"
            " `fedmom theory estimate --out`."
        )
    return Constants(**constants), Setting(**setting)


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        row = parse_json(file.read_bytes())
        return asdict(from_row(row["estimates"]).constants()), asdict(Setting(**row["setting"]))
    except OSError as error:
        raise FedMomError(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, FedMomError):
            raise
        raise FedMomError(
            f"{file} is no file of estimates. Make one with `fedmom theory estimate --out {file}`."
        ) from None
