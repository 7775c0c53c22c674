"""The command line: run, compare, sweep, resume."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fedmom.cli.options import (
    FOLDER,
    free_folder,
    gather,
    parse_grid,
    setting_options,
    split_names,
)
from fedmom.cli.output import ERR, OUT, failed, note
from fedmom.core.errors import BadReplyError, DivergedError, FedMomError
from fedmom.core.files import slug
from fedmom.experiments import settings

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


@click.command()
@setting_options()
@click.option("--out", type=FOLDER, help="The run's new folder.")
def run(file: Path | None, out: Path | None, **options: Any) -> None:
    """Train one model with one algorithm.

    \b
    fedmom run --data synthetic --algorithm fedmom --lr 0.01 --rounds 200
    fedmom run --data shakespeare:roles=100 --lr 0.5 --local-epochs 1 --out runs/bard
    fedmom run --data writers.npz --model lenet5 --lr exponential:start=0.05,rate=0.995
    """
    from fedmom.experiments.build import prepare
    from fedmom.experiments.folder import RunFolder

    config = settings.parse(gather(file, options, {}))
    folder = out or free_folder(f"{config.data}-{config.algorithm}")
    experiment = prepare(config)
    _finish_run(RunFolder.create(folder, experiment.config), experiment)
    OUT.print(f"Run folder: {folder}", markup=False)


@click.command()
@click.option(
    "--algorithms",
    default="fedsgd,fedavg,fedmom",
    show_default=True,
    help="The algorithms, separated by commas.",
)
@setting_options(leave_out=["algorithm"], defaults=COMPARE_DEFAULTS)
@click.option("--out", type=FOLDER, help="The comparison's new folder.")
def compare(algorithms: str, file: Path | None, out: Path | None, **options: Any) -> None:
    """Train with several algorithms, from the same model, on the same cohorts and batches.

    Ends with a table and a figure. Without options: FedSGD, FedAvg and FedMom train the paper's
    character LSTM on the roles of Shakespeare's plays (see README).

    \b
    fedmom compare
    fedmom compare --algorithms fedavg,fedmom,fedadam --data synthetic --lr 0.01
    """
    from fedmom.experiments import build
    from fedmom.experiments import compare as comparisons

    values = gather(file, options, COMPARE_DEFAULTS)
    configs = {
        slug(name): settings.parse(build.fitting({**values, "algorithm": name}))
        for name in split_names(algorithms)
    }
    folder = out or free_folder("compare")
    experiments = comparisons.create(folder, configs, comparisons.LIST)
    _finish_comparison(folder, experiments)


@click.command()
@setting_options()
@click.option(
    "--grid",
    multiple=True,
    metavar="'NAME=VALUE VALUE ...'",
    help="A setting to vary, with its values. Repeat it for more settings.",
)
@click.option("--out", type=FOLDER, help="The sweep's new folder.")
def sweep(file: Path | None, grid: tuple[str, ...], out: Path | None, **options: Any) -> None:
    """Run a grid of settings, on all cores, and rank the results.

    In a file, the grid is a table [grid] of lists. Seeds are taken together in the ranking.

    \b
    fedmom sweep --data synthetic --grid 'algorithm=fedavg fedmom' --grid 'lr=0.003 0.01' \\
        --grid 'seed=0 1 2'
    """
    from fedmom.experiments import compare as comparisons
    from fedmom.experiments import sweep as sweeps

    values = gather(file, options, {})
    lists = {**values.pop("grid", {}), **parse_grid(grid)}
    if not lists:
        raise FedMomError(
            "There is nothing to vary. Give --grid 'lr=0.01 0.1', or [grid] in a file."
        )
    folder = out or free_folder("sweep")
    experiments = comparisons.create(folder, sweeps.cells(values, lists), sweeps.LIST)
    _finish_sweep(folder, experiments)


@click.command()
@click.argument("folder", type=FOLDER)
def resume(folder: Path) -> None:
    """Go on with a run, comparison or sweep that was stopped, as if it never had been."""
    from fedmom.experiments import compare as comparisons
    from fedmom.experiments import sweep as sweeps
    from fedmom.experiments.build import prepare
    from fedmom.experiments.folder import RunFolder

    if (folder / sweeps.LIST).exists():
        _finish_sweep(folder, comparisons.reopen(folder, sweeps.LIST))
    elif (folder / comparisons.LIST).exists():
        _finish_comparison(folder, comparisons.reopen(folder, comparisons.LIST))
    else:
        opened = RunFolder.open(folder)
        _finish_run(opened, prepare(opened.settings()))


def _finish_run(folder: Any, experiment: Any) -> None:
    """Run to the end, and show the last evaluation."""
    from fedmom.experiments.results import as_groups, target
    from fedmom.report import tables

    result = _execute(folder, experiment, experiment.config.algorithm)
    if result.stop:
        raise (DivergedError if result.diverged else BadReplyError)(result.why)
    groups = as_groups({experiment.config.algorithm: result})
    OUT.print(tables.table(groups, target(groups)))


def _finish_comparison(folder: Path, experiments: Mapping[str, Any]) -> None:
    """Run what is left of a comparison, then show it."""
    from fedmom.experiments import compare as comparisons
    from fedmom.experiments.results import as_groups, target
    from fedmom.report import run_page, tables

    def told(opened: Any, experiment: Any, label: str) -> Any:
        result = _execute(opened, experiment, label)
        if result.stop:
            failed(f"{label} stopped: {result.why}")
        return result

    try:
        results = comparisons.compare(folder, experiments, told)
    except KeyboardInterrupt:
        ERR.print(f"For the whole comparison: fedmom resume {folder}", markup=False)
        raise
    groups = as_groups(results)
    goal = target(groups)
    OUT.print(tables.table(groups, goal))
    OUT.print(tables.verdict(groups, goal), highlight=False)
    config = list(experiments.values())[-1].config
    title = f"{config.model} on {config.data}: M={config.clients_per_round}, lr {config.lr}"
    figure, page = run_page.write_comparison(folder, list(results.values()), title)
    OUT.print(f"Figure: {figure}\nPage: {page}", markup=False)


def _finish_sweep(folder: Path, experiments: Mapping[str, Any]) -> None:
    """Run what is left of a sweep, then rank its runs."""
    from fedmom.core.progress import bars
    from fedmom.experiments import sweep as sweeps
    from fedmom.experiments.results import Result
    from fedmom.report import tables

    try:
        with bars(OUT) as progress:
            total = sum(e.config.rounds for e in experiments.values())
            task = progress.add_task(f"{len(experiments)} runs, rounds", total=total)
            outcomes = sweeps.side_by_side(
                {folder / name: experiment for name, experiment in experiments.items()},
                lambda _, rounds: progress.advance(task, rounds),
            )
    except KeyboardInterrupt:
        _say_how_to_go_on(folder)
        raise
    for path, outcome in outcomes.items():
        why = outcome.why if isinstance(outcome, Result) else str(outcome)
        if why:
            failed(f"{path.name} stopped: {why}")
    results = {p.name: o for p, o in outcomes.items() if isinstance(o, Result)}
    groups = sweeps.groups(results)
    OUT.print(tables.rich_table(*tables.sweep_table(groups)))
    OUT.print(f"Table: {tables.write_sweep(folder / 'sweep.csv', groups)}", markup=False)


def _execute(folder: Any, experiment: Any, label: str) -> Any:
    """Run in a folder, with progress."""
    from fedmom.cli import progress
    from fedmom.experiments.execute import execute

    watchers: list[Any] = [progress.watch(OUT, label)]
    if experiment.config.tensorboard:
        watchers.append(progress.TensorBoard(folder.path))
    if folder.is_new():
        from fedmom.theory import check

        for text in (*experiment.notes, *check.notes(experiment)):
            note(text)
    try:
        with contextlib.ExitStack() as stack:
            for watcher in watchers:
                stack.enter_context(watcher)
            result = execute(folder, experiment, watchers)
    except KeyboardInterrupt:
        ERR.print(
            f"Stopped; nothing is lost. Go on with: fedmom resume {folder.path}", markup=False
        )
        raise
    return result


def _say_how_to_go_on(folder: Path) -> None:
    ERR.print(f"Stopped; nothing is lost. Go on with: fedmom resume {folder}", markup=False)
