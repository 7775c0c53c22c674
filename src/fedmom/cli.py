"""The command line: run, compare, resume, list."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jax
from rich.console import Console
from rich.table import Table

from fedmom import config as settings
from fedmom import console as display
from fedmom import data, models, overview, report, runs, schedules, specs, sweeps
from fedmom.algorithms import ALGORITHMS
from fedmom.cli_data import data_commands
from fedmom.cli_paper import paper
from fedmom.cli_report import report as report_command
from fedmom.cli_report import watch
from fedmom.cli_theory import theory_commands
from fedmom.config import RunConfig
from fedmom.data.store import cache_folder
from fedmom.errors import FedMomError
from fedmom.runs import RunFolder
from fedmom.theory import check

# What `fedmom compare` shows a newcomer: the paper's character model on short roles, in
# minutes on a laptop. The lr is one where FedMom leads; at 1.0 FedAvg ends ahead (README).
# Everything else is the paper's setting (M=2, B=10, η=K/M, β=0.9).
COMPARE_DEFAULTS: dict[str, Any] = {
    "data": "shakespeare:roles=100,samples=1000",
    "rounds": 100,
    "lr": 0.3,
    "eval-every": 10,
    "eval-samples": 2000,
}
OUT = Console(soft_wrap=True)
ERR = Console(stderr=True, soft_wrap=True)


def setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command one option for every setting of a run."""
    for name, field in reversed(RunConfig.model_fields.items()):
        default = "" if field.default is None else f" [default: {field.default}]"
        option = f"--{name.replace('_', '-')}"
        command = click.option(
            option,
            name,
            is_flag=field.annotation is bool,
            default=None,
            metavar=None if field.annotation is bool else name.split("_")[-1].upper(),
            help=(field.description or "") + default,
        )(command)
    return click.option(
        "--config",
        "file",
        type=click.Path(path_type=Path),
        help="TOML file of settings, named as these options. Options override it.",
    )(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="fedmom")
def cli() -> None:
    """Federated learning with server momentum.

    \b
    Start here:
      fedmom compare                       FedSGD, FedAvg and FedMom on Shakespeare's roles
      fedmom list                          algorithms, models, data, schedules
      fedmom data --help                   look at datasets, and prepare them
      fedmom run --data synthetic          one run, with FedMom
      fedmom sweep --help                  a grid of settings, on all cores
      fedmom paper                         the paper's tables and figures, and its claims judged
      fedmom theory --help                 what the convergence theory says of a task
      fedmom resume runs/synthetic-fedmom  go on after Ctrl-C or a crash
      fedmom report runs/compare           a page about runs, with curves and tables
      fedmom watch runs/compare            the same page while they go on
    """


@cli.command()
@setting_options
@click.option("--out", type=click.Path(path_type=Path), help="The run's new folder.")
def run(file: Path | None, out: Path | None, **options: Any) -> None:
    """Train one model with one algorithm.

    \b
    fedmom run --data synthetic --algorithm fedmom --lr 0.01 --rounds 200
    fedmom run --data shakespeare:roles=100 --lr 0.5 --local-epochs 1 --out runs/bard
    fedmom run --data writers.npz --model lenet5 --lr exponential:start=0.05,rate=0.995
    """
    config = settings.parse(gather(file, options, {}))
    folder = out or free_folder(f"{config.data}-{config.algorithm}")
    experiment = settings.prepare(config)
    execute(RunFolder.create(folder, experiment), experiment, config.algorithm)
    OUT.print(report.table([report.read(folder, config.algorithm)]))
    OUT.print(f"Run folder: {folder}")


@cli.command()
@click.option(
    "--algorithms",
    default="fedsgd,fedavg,fedmom",
    show_default=True,
    help="The algorithms, separated by commas.",
)
@setting_options
@click.option("--out", type=click.Path(path_type=Path), help="The comparison's new folder.")
def compare(algorithms: str, file: Path | None, out: Path | None, **options: Any) -> None:
    """Train with several algorithms, from the same model, on the same cohorts and batches.

    Ends with a table and a figure. Without options: FedSGD, FedAvg and FedMom train the paper's
    character LSTM on the roles of Shakespeare's plays (see README).

    \b
    fedmom compare
    fedmom compare --algorithms fedavg,fedmom,fedadam --data synthetic --lr 0.01
    """
    if options["algorithm"] is not None:
        raise FedMomError("compare takes --algorithms, a list, and no --algorithm.")
    values = gather(file, options, COMPARE_DEFAULTS)
    configs = {
        name: settings.parse(settings.fitting({**values, "algorithm": name}))
        for name in split_names(algorithms)
    }
    folder = out or free_folder("compare")
    if (folder / "compare.json").exists():
        raise FedMomError(f"{folder} already holds a comparison. Choose another --out.")
    shared = data.load(next(iter(configs.values())).data)
    for name, config in configs.items():
        RunFolder.create(folder / name, settings.prepare(config, shared))
    runs.write_atomic(folder / "compare.json", json.dumps(list(configs)).encode())
    finish_comparison(folder)


@cli.command()
@setting_options
@click.option(
    "--grid",
    multiple=True,
    metavar="'NAME=VALUE VALUE ...'",
    help="A setting to vary, with its values. Repeat it for more settings.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The sweep's new folder.")
def sweep(file: Path | None, grid: tuple[str, ...], out: Path | None, **options: Any) -> None:
    """Run a grid of settings, on all cores, and rank the results.

    In a file, the grid is a table [grid] of lists. Seeds are taken together in the ranking.

    \b
    fedmom sweep --data synthetic --grid 'algorithm=fedavg fedmom' --grid 'lr=0.003 0.01' \\
        --grid 'seed=0 1 2'
    """
    values = gather(file, options, {})
    lists = {**values.pop("grid", {}), **parse_grid(grid)}
    if not lists:
        raise FedMomError(
            "There is nothing to vary. Give --grid 'lr=0.01 0.1', or [grid] in a file."
        )
    folder = out or free_folder("sweep")
    sweeps.create(folder, sweeps.cells(values, lists))
    finish_sweep(folder)


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path))
def resume(folder: Path) -> None:
    """Go on with a run, comparison or sweep that was stopped, as if it never had been."""
    if (folder / "sweep.json").exists():
        finish_sweep(folder)
        return
    if (folder / "compare.json").exists():
        finish_comparison(folder)
        return
    opened = RunFolder.open(folder)
    experiment = opened.experiment()
    label = experiment.config.algorithm
    execute(opened, experiment, label)
    OUT.print(report.table([report.read(folder, label)]))


@cli.command(name="list")
def list_() -> None:
    """Show the algorithms, models, datasets and schedules there are, with their options."""
    view = Table(box=None, pad_edge=False)
    for column in ("", "name:options", "what it is"):
        view.add_column(column, style="bold" if not column else "", overflow="fold")
    for name, algorithm in ALGORITHMS.items():
        view.add_row("algorithm", name, algorithm.about)
    for kind, rows in (
        ("model", models.MODELS),
        ("data", data.DATASETS),
        ("schedule", schedules.SCHEDULES),
    ):
        for spec, about in specs.described(rows):
            view.add_row(kind, spec, about)
    OUT.print(view)


cli.add_command(data_commands)
cli.add_command(paper)
cli.add_command(theory_commands)
cli.add_command(report_command)
cli.add_command(watch)


def gather(file: Path | None, options: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return defaults, overridden by the file, overridden by the options given."""
    given = {n.replace("_", "-"): v for n, v in options.items() if v is not None}
    return {**defaults, **(settings.read(file) if file else {}), **given}


def parse_grid(options: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the lists of values in texts such as 'lr=0.1 0.3'."""
    lists = {}
    for text in options:
        name, equals, values = text.partition("=")
        if not equals or not values.split():
            raise FedMomError(f"--grid {text!r} is not a setting with values. Write 'lr=0.1 0.3'.")
        lists[name.strip()] = values.split()
    return lists


def finish_sweep(folder: Path) -> None:
    """Run what is left of a sweep, then rank its runs."""
    try:
        stopped = sweeps.finish(folder, OUT)
    except KeyboardInterrupt:
        ERR.print(f"Stopped; nothing is lost. Go on with: fedmom resume {folder}")
        raise
    for name, why in stopped.items():
        ERR.print(f"{name} stopped: {why}", style="red", highlight=False)
    view, path = sweeps.summary(folder, stopped)
    OUT.print(view)
    OUT.print(f"Table: {path}")


def split_names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    names = [n.strip() for n in text.split(",") if n.strip()]
    if not names or len(set(names)) < len(names):
        raise FedMomError(f"--algorithms {text!r} must name one or more, each of them once.")
    return names


def free_folder(name: str) -> Path:
    """Return a folder below ``runs`` that is not there yet."""
    stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(name).name)
    number = 1
    while (folder := Path("runs") / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return folder


def execute(folder: RunFolder, experiment: settings.Experiment, label: str) -> None:
    """Run in a folder, with progress."""
    for note in experiment.notes or check.notes(experiment):
        ERR.print(f"note: {note}", style="yellow", highlight=False)
    watchers: list[Any] = [display.watch(OUT, label)]
    if experiment.config.tensorboard:
        watchers.append(display.TensorBoard(folder.path))
    try:
        with contextlib.ExitStack() as stack:
            for watcher in watchers:
                stack.enter_context(watcher)
            runs.execute(folder, experiment, watchers)
    except KeyboardInterrupt:
        ERR.print(f"Stopped; nothing is lost. Go on with: fedmom resume {folder.path}")
        raise


def finish_comparison(folder: Path) -> None:
    """Run what is left of a comparison, then show it. One that diverges does not stop the rest."""
    names = json.loads((folder / "compare.json").read_text())
    curves = []
    for name in names:
        opened, stopped = RunFolder.open(folder / name), ""
        try:
            execute(opened, opened.experiment(), name)
        except KeyboardInterrupt:
            ERR.print(f"For the whole comparison: fedmom resume {folder}")
            raise
        except FedMomError as error:
            stopped = str(error)
            ERR.print(f"{name} stopped: {stopped}", style="red", highlight=False)
        curves.append(report.read(folder / name, name, stopped))
    config = RunFolder.open(folder / names[-1]).experiment().config
    title = f"{config.model} on {config.data}: M={config.clients_per_round}, lr {config.lr}"
    OUT.print(report.table(curves))
    groups = report.alone(curves)
    OUT.print(report.verdict(groups, report.target(groups)), highlight=False)
    figure, page = overview.write_comparison(folder, title)
    OUT.print(f"Figure: {figure}")
    OUT.print(f"Page: {page}")


def set_up_jax() -> None:
    """Set JAX up for many short programs; its own environment variables win.

    Clients have threads of their own, so a program need not be handed to yet another one.
    Compiled programs are kept, so that the next start is quick.
    """
    options: Any = jax.config
    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        options.update("jax_cpu_enable_async_dispatch", False)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        options.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
        options.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def main() -> None:
    """Run the command line; a user's mistake is a sentence, not a traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is a Ctrl-C
    set_up_jax()
    try:
        cli(standalone_mode=False)
    except FedMomError as error:
        ERR.print(f"error: {error}", style="red", highlight=False, markup=False)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
