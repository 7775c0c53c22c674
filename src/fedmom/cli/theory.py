"""The command line of the theory. What is slow to import is imported when a command runs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedmom.cli.output import FOLDER, OUT
from fedmom.cli.setting_options import Command, gather, options_of
from fedmom.core.errors import FedMomError
from fedmom.core.files import LARGEST, parse_json, read_named, write_atomic
from fedmom.core.progress import bars
from fedmom.experiments import settings
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.results import THEORY
from fedmom.reports.charts import Figure
from fedmom.theory import counterexample as example
from fedmom.theory.constants import Constants, Setting
from fedmom.theory.measurement_budget import EstimateBudget, SpectrumBudget
from fedmom.theory.momentum_map import PANELS, PER_ROUND, figure, general_maps
from fedmom.theory.theorems import CORRECTED_FEDAVG, CORRECTED_FEDMOM

if TYPE_CHECKING:
    from fedmom.experiments.build import Experiment
    from fedmom.theory.estimate import Estimates

CONSTANT = click.FloatRange(max=1e100)  # products of them stay finite
OUT_FOLDER = click.option("--out", type=FOLDER, help="Draw the figure, into this folder.")
ROUNDS = click.option("--rounds", type=click.IntRange(min=1), default=100, help="Rounds, T.")
# Settings of a run that the bounds and the prediction depend on.
TASK = (
    *("data", "model", "algorithm", "clients_per_round", "batch_size", "local_steps"),
    *("lr", "server_lr", "momentum", "seed"),
)
MOMENTUM_TASK = (
    *("model", "rounds", "clients_per_round", "batch_size", "local_steps", "local_epochs"),
    *("batches", "lr", "server_lr", "weighting", "sampler", "average", "seed"),
)


def count(flag: str, default: int, text: str, most: int = 10_000) -> Callable[[Command], Command]:
    """Return an option that is a number of things to measure."""
    return click.option(flag, type=click.IntRange(1, most), default=default, help=text)


def task_options(command: Command) -> Command:
    """Give a command the options of a task and of the estimates on it."""
    for option in (
        count("--models", EstimateBudget.models, "Models for L and σ²."),
        count("--samples", EstimateBudget.samples, "Samples of each client."),
        count("--clients", EstimateBudget.clients, "Clients looked at."),
        count("--short-run", 50, "Rounds of the run along which the models lie.", 100_000),
    ):
        command = option(command)
    return options_of(TASK)(command)


@click.group(name="theory")
def theory_commands() -> None:
    """Convergence bounds and learning-rate advice."""


@theory_commands.command()
@task_options
@click.option("--out", type=FOLDER, help="A JSON file for the estimates, for `bounds`.")
def estimate(out: Path | None, **options: Any) -> None:
    """Estimate L, σ², G², B² and f(w_0) - f_inf on a task.

    They are measured at models along a short run.

    \b
    fedmom theory estimate --data synthetic --lr 0.01 --out constants.json
    fedmom theory bounds --estimates constants.json --rounds 2000
    """
    from fedmom.cli import theory_tables as tables
    from fedmom.theory.estimate import estimate_task
    from fedmom.theory.lr_advice import setting_of

    experiment, budget, short_run = _task(options)
    with bars(OUT) as bar:
        found = estimate_task(experiment, budget, short_run, bar)
    OUT.print(tables.estimates_table(experiment, found))
    OUT.print(tables.LOCAL_ESTIMATES)
    if out is not None:
        row = {"setting": asdict(setting_of(experiment)), "estimates": asdict(found)}
        write_atomic(out, json.dumps(row, indent=2, allow_nan=False).encode())
        OUT.print(f"Estimates: {out}")


@theory_commands.command()
@click.option("--estimates", type=FOLDER, help="A file of `fedmom theory estimate --out`.")
@click.option("--L", "smoothness", type=CONSTANT, help="L, the smoothness of every client's loss.")
@click.option("--sigma2", "variance", type=CONSTANT, help="σ², the variance of a batch gradient.")
@click.option("--gap", type=CONSTANT, help="f(w_0) - f_inf.")
@click.option("--G2", "dissimilarity", type=CONSTANT, help="G² of the dissimilarity [default: 0].")
@click.option("--B2", "similarity", type=CONSTANT, help="B² of the dissimilarity [default: 1].")
@click.option("--clients", type=int, help="K, all clients.")
@click.option("--clients-per-round", "per_round", type=int, help="Clients in a round, M.")
@click.option("--local-steps", type=int, help="Local steps in a round, H.")
@click.option("--server-lr", type=float, help="Server learning rate η [default: 1].")
@click.option("--momentum", type=float, help="FedMom's momentum β [default: 0.9].")
@click.option("--largest-weight", type=float, help="The largest p_k [default: 1, always true].")
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), help="A learning rate γ.")
@ROUNDS
def bounds(estimates: Path | None, lr: float | None, rounds: int, **options: Any) -> None:
    """Print every bound on |∇f|² and its condition on γ. Options override the file.

    \b
    fedmom theory bounds --L 1 --sigma2 1 --gap 2 --G2 0.5 --clients 100 --clients-per-round 10 \\
        --local-steps 10 --server-lr 10 --momentum 0.9 --rounds 2000 --lr 0.001
    """
    from fedmom.cli import theory_tables as tables

    constants, setting = _given(estimates, options)
    OUT.print(tables.bounds_table(constants, setting, rounds, lr))
    for theorem in (CORRECTED_FEDAVG, CORRECTED_FEDMOM):
        best, least = theorem.best(constants, setting, rounds)
        OUT.print(
            f"{theorem.algorithm}: γ = {best:.3g} makes the corrected bound least, {least:.3g}."
        )


@theory_commands.command()
@task_options
@ROUNDS
@click.option(
    "--experiments",
    type=FOLDER,
    help="A sweep, or any folder of runs: their best γ is shown [default: runs, if it is there].",
)
@OUT_FOLDER
def advise(rounds: int, experiments: Path | None, out: Path | None, **options: Any) -> None:
    """Advise a learning rate, from experiments and theorems.

    First what experiments found, or which to run; then what is proven.

    \b
    fedmom theory advise --data synthetic --rounds 2000 --lr 0.01
    fedmom theory advise --data femnist_writers.npz --model lenet5 --rounds 2000 \\
        --experiments runs/sweep
    """
    from fedmom.cli import theory_tables as tables
    from fedmom.theory.estimate import estimate_task

    if experiments is not None and not experiments.is_dir():
        raise FedMomError(f"There is no folder {experiments}. Give the folder of a sweep or runs.")
    experiment, budget, short_run = _task(options)
    known = tables.known(experiment, experiments or Path("runs"))
    with bars(OUT) as bar:
        found = estimate_task(experiment, budget, short_run, bar)
    for name in [name for name, best in known.items() if best is None]:
        tables.suggest(experiment, name, rounds, found)
    OUT.print(tables.LOCAL_ESTIMATES)
    if found.gap.value > 0:
        _prove(experiment, found, rounds, short_run, out)
        return
    OUT.print(tables.estimates_table(experiment, found))
    OUT.print(
        f"The short run never came below its first loss, {found.first_loss:.3g}, with lr"
        f" {experiment.config.lr}, so the theorems are left out. Use a smaller --lr, or a longer"
        " --short-run."
    )


@theory_commands.command()
@click.argument("folder", metavar="RUN", type=FOLDER)
def check(folder: Path) -> None:
    """Check a run's learning rate against the corrected theorem.

    Says whether the theorem applies to the run, and how large a learning rate it allows for the
    constants that `theory estimate` finds along the run's first rounds. The answer is kept in the
    run's folder, and its page (`fedmom report`) shows it.

    \b
    fedmom theory check runs/first
    """
    from fedmom.experiments.build import prepare
    from fedmom.experiments.object_names import missing
    from fedmom.theory.lr_advice import checked_lr

    config = RunFolder.open(folder).settings()
    if objects := missing(config.model_dump(), ()):
        given = " and ".join(f"{name} ({value})" for name, value in objects.items())
        raise FedMomError(
            f"{folder} was started from Python, with objects for its {given}. `theory check` is for"
            " runs whose settings have names."
        )
    experiment = prepare(config)
    with bars(OUT) as bar:
        text = checked_lr(experiment, bar)
    write_atomic(folder / THEORY, json.dumps({"verdict": text}).encode())
    OUT.print(text, highlight=False, soft_wrap=False)


@theory_commands.command()
@OUT_FOLDER
def counterexample(out: Path | None) -> None:
    """Show the case that breaks the paper's Theorem 1.

    The corrected bound is shown next to the paper's.
    """
    from fedmom.cli import theory_tables as tables

    OUT.print(tables.counterexample_table(example.compare([10**power for power in range(6)])))
    _draw(example.figure(), out)


@theory_commands.command()
@click.option("--data", metavar="DATA", help="Your task; without it, the general map.")
@options_of(MOMENTUM_TASK)
@click.option(
    "--momentum",
    "beta",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.9,
    help="FedMom's β.",
)
@count("--short-run", 50, "Rounds of FedAvg from each of the two models looked at.", 100_000)
@click.option(
    "--short-lr",
    type=click.FloatRange(min=0, min_open=True),
    help="Constant γ of the short run [default: the first γ of --lr].",
)
@click.option("--lowest-loss", type=float, default=0.0, help="f_inf of your task.")
@count("--clients", SpectrumBudget.clients, "Clients looked at.")
@OUT_FOLDER
def momentum(data: str | None, beta: float, out: Path | None, **options: Any) -> None:
    """Predict whether FedMom beats FedAvg, and draw the map (with --out).

    Each is taken at its own best γ: on quadratic clients the expected loss after T rounds is
    computed exactly, for every γ. Your task enters with its curvatures, noise and differences of
    clients, measured at its first model and after a short run of FedAvg. --lr says whether γ is
    constant or decays along a cosine, and gives the short run its γ; the best γ of each method is
    part of the prediction.

    \b
    fedmom theory momentum
    fedmom theory momentum --data synthetic --lr 0.01 --rounds 200
    fedmom theory momentum --data femnist_writers.npz --model lenet5 --local-epochs 1 \\
        --clients-per-round 10 --weighting cohort --lr cosine:start=0.03,rounds=200 --rounds 200
    """
    if data is not None:
        _momentum_of_task(data, beta, options, out)
    else:
        _general_momentum(beta, out)


def _given(file: Path | None, options: Mapping[str, Any]) -> tuple[Constants, Setting]:
    """Return the constants and setting of a file, overridden by the options."""
    from fedmom.algorithms import named as algorithms

    constants: dict[str, Any] = {}
    setting: dict[str, Any] = {"momentum": algorithms.default_of("fedmom", "momentum")}
    if file is not None:
        constants, setting = _read(file)
    for name, value in options.items():
        if value is not None:
            (setting if name in Setting.__dataclass_fields__ else constants)[name] = value
    needed = [f.name for f in (*fields(Constants), *fields(Setting)) if f.default is MISSING]
    flags = {p.name: p.opts[0] for p in click.get_current_context().command.params}
    if missing := [flags[name] for name in needed if name not in {**constants, **setting}]:
        raise FedMomError(
            f"{', '.join(missing)} missing. Give them, or --estimates with a file of"
            " `fedmom theory estimate --out`."
        )
    return Constants(**constants), Setting(**setting)


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from fedmom.theory.estimate import from_row

    try:
        row = parse_json(read_named(file, "a file of estimates", LARGEST))
        return asdict(from_row(row["estimates"]).constants()), asdict(Setting(**row["setting"]))
    except OSError as error:
        raise FedMomError(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, FedMomError):
            raise
        raise FedMomError(
            f"{file} is not a file of estimates. Make one with"
            f" `fedmom theory estimate --out {file}`."
        ) from None


def _task(options: dict[str, Any]) -> "tuple[Experiment, EstimateBudget, int]":
    """Return the experiment, the budget and the rounds of the short run."""
    from fedmom.experiments import build, defaults

    budget = EstimateBudget(*(options.pop(name) for name in ("clients", "samples", "models")))
    short_run: int = options.pop("short_run")
    config = settings.parse(defaults.fitting({**gather(None, options), "rounds": short_run}))
    if config.algorithm not in ("fedsgd", "fedavg", "fedmom"):
        raise FedMomError(
            f"There is no bound for {config.algorithm}. Use fedsgd, fedavg or fedmom."
        )
    return build.prepare(config), budget, short_run


def _prove(
    experiment: "Experiment", found: "Estimates", rounds: int, short_run: int, out: Path | None
) -> None:
    """Print and draw what the theorems guarantee."""
    from fedmom.cli import theory_tables as tables
    from fedmom.theory.lr_advice import bound_figure, measured_gradients, setting_of, theorem_of

    constants, setting = found.constants(), setting_of(experiment)
    OUT.print(tables.proven_table(constants, setting, rounds))
    OUT.print(tables.bounds_table(constants, setting, rounds, None))
    OUT.print(tables.estimates_table(experiment, found))
    if out is None:
        return
    proven, _ = theorem_of(experiment).best(constants, setting, rounds)
    with bars(OUT) as bar:
        lines = measured_gradients(experiment, proven, short_run, bar)
    _draw(bound_figure(experiment, constants, proven, lines), out, note=False)


def _general_momentum(beta: float, out: Path | None) -> None:
    """Print the map of random populations."""
    from fedmom.cli import theory_tables as tables

    with bars(OUT) as bar:
        task = bar.add_task("map", total=len(PANELS) * len(PER_ROUND))
        found = general_maps(beta, tick=lambda: bar.advance(task))
    OUT.print(tables.general_map_table(found, beta))
    panels = [
        (f"condition {condition:,}, spread {spread}", map_) for condition, spread, map_ in found
    ]
    _draw(figure(panels), out)


def _momentum_of_task(data: str, beta: float, options: dict[str, Any], out: Path | None) -> None:
    """Print the prediction for a task, and draw its map if there is a folder for it."""
    from fedmom.cli import theory_tables as tables
    from fedmom.experiments import build
    from fedmom.theory.momentum_prediction import map_of_task, predict, ticks

    budget = SpectrumBudget(clients=options.pop("clients"))
    short_run, short_lr, lowest = (
        options.pop(name) for name in ("short_run", "short_lr", "lowest_loss")
    )
    given = gather(None, options) | {"data": data, "algorithm": "fedavg"}
    experiment = build.prepare(settings.parse(given))
    with bars(OUT) as bar:
        task = bar.add_task("short run and spectra", total=ticks(short_run, budget))
        found = predict(
            experiment,
            short_run=short_run,
            lr=short_lr,
            momentum=beta,
            lowest_loss=lowest,
            budget=budget,
            tick=lambda: bar.advance(task),
        )
    OUT.print(tables.measured_table(experiment, found))
    OUT.print(tables.MEASURED)
    OUT.print(tables.prediction_table(experiment, found))
    OUT.print(tables.LOCAL_PREDICTION)
    if out is None:
        return
    config = experiment.config
    with bars(OUT) as bar:
        task = bar.add_task("map", total=len(PER_ROUND) + 1)
        drawn, place = map_of_task(
            found[-1].matched, config.rounds, momentum=beta, tick=lambda: bar.advance(task)
        )
    name = f"{config.model} on {experiment.data.name}, {config.weighting} weights"
    _draw(figure([(name, drawn)], task=place), out)


def _draw(drawn: Figure, out: Path | None, *, note: bool = True) -> None:
    """Print a figure's note; save it if there is a folder for it, and print where it is."""
    from fedmom.reports import drawing

    if note:
        OUT.print(drawn.note)
    if out is None:
        return
    for path in drawing.save(drawn, out):
        OUT.print(f"Figure: {path}")
