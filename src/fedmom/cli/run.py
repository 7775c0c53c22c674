"""The command line: run, compare, sweep, resume."""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from fedmom.cli.options import (
    FOLDER,
    gather,
    parse_grid,
    setting_options,
    split_names,
)
from fedmom.cli.output import OUT, failed, note, page, stopped
from fedmom.cli.start import under_way
from fedmom.core.errors import BadReplyError, DivergedError, FedMomError
from fedmom.core.files import free_folder, removed_if_refused
from fedmom.experiments import settings

# What `fedmom compare` shows a newcomer: the paper's character model on short roles, in
# minutes on a laptop, each algorithm at its own default lr. Everything else is the paper's setting
# (M=2, B=10, η=K/M, β=0.9). There are 1,970 test samples, 20 a role: all are evaluated.
COMPARE_DEFAULTS: dict[str, Any] = {
    "data": "shakespeare:roles=100,samples=1000",
    "rounds": 100,
    "eval-every": 10,
    "eval-samples": 2000,
}
MOST_SEEDS = 10_000


@click.command()
@setting_options()
@click.option("--out", type=FOLDER, help="The run's new folder.")
def run(file: Path | None, out: Path | None, **options: Any) -> None:
    """Train one model with one algorithm.

    \b
    fedmom run --data synthetic --algorithm fedavg --rounds 200
    fedmom run --data shakespeare:roles=100,samples=1000 --out runs/bard
    fedmom run --data writers.npz --model lenet5 --lr exponential:start=0.05,rate=0.995
    """
    from fedmom.experiments.build import prepare
    from fedmom.experiments.folder import RunFolder

    config = settings.parse(gather(file, options, {}))
    folder = out or free_folder(f"{config.data}-{config.algorithm}")
    experiment = prepare(config)
    created = RunFolder.create(folder, experiment.config)
    with removed_if_refused(created.remove_untouched), _telling_how_to_go_on(folder):
        _finish_run(created, experiment)
    OUT.print(f"Run folder: {folder}", markup=False)


@click.command()
@click.option(
    "--algorithms",
    default="fedsgd,fedavg,fedmom",
    show_default=True,
    help="The algorithms, separated by commas.",
)
@click.option(
    "--seeds",
    type=click.IntRange(max=MOST_SEEDS),
    default=1,
    show_default=True,
    metavar="N",
    help="Seeds of each algorithm, counted from --seed on: 10 give useful intervals.",
)
@setting_options(leave_out=["algorithm"], defaults=COMPARE_DEFAULTS)
@click.option("--out", type=FOLDER, help="The comparison's new folder.")
def compare(
    algorithms: str, seeds: int, file: Path | None, out: Path | None, **options: Any
) -> None:
    """Train with several algorithms, from the same model, on the same cohorts and batches.

    Ends with a table and a figure. With several seeds, runs fill the cores, numbers have intervals
    and algorithms are compared by their differences within each seed. Without options: FedSGD,
    FedAvg and FedMom train the paper's character LSTM on the roles of Shakespeare's plays (see
    README).

    \b
    fedmom compare
    fedmom compare --algorithms fedavg,fedmom,fedadam --data synthetic
    fedmom compare --algorithms fedavg,fedmom --data synthetic --seeds 10
    """
    from fedmom.experiments import compare as comparisons

    values = gather(file, options, COMPARE_DEFAULTS)
    configs = comparisons.configs(values, split_names(algorithms), seeds)
    folder = out or free_folder("compare")
    experiments = comparisons.create(folder, configs, comparisons.LIST)
    remove = partial(comparisons.remove_untouched, folder, experiments, comparisons.LIST)
    with removed_if_refused(remove), _telling_how_to_go_on(folder):
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
    fedmom sweep --data synthetic --grid 'algorithm=fedavg fedmom' --grid 'lr=0.001 0.003 0.01' \\
        --grid 'seed=0 1 2'
    """
    from fedmom.experiments import compare as comparisons
    from fedmom.experiments import sweep as sweeps

    values = gather(file, options, {})
    in_file = values.pop("grid", {})
    lists = {**in_file, **parse_grid(grid)} if isinstance(in_file, dict) else in_file
    if lists == {}:
        raise FedMomError(
            "There is nothing to vary. Give --grid 'lr=0.01 0.1', or [grid] in a file."
        )
    folder = out or free_folder("sweep")
    experiments = comparisons.create(folder, sweeps.cells(values, lists), sweeps.LIST)
    remove = partial(comparisons.remove_untouched, folder, experiments, sweeps.LIST)
    with removed_if_refused(remove), _telling_how_to_go_on(folder):
        _finish_sweep(folder, experiments)


@click.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Go on although data or settings are no longer those that it was started with.",
)
@click.option(
    "--runtime",
    metavar="TEXT",
    help="Go on with clients elsewhere, such as ray, this time [default: as in config.toml].",
)
def resume(folder: Path, accept_changes: bool, runtime: str | None) -> None:
    """Go on with a run, comparison or sweep that was stopped, as if it never had been."""
    from fedmom.experiments import compare as comparisons
    from fedmom.experiments import sweep as sweeps
    from fedmom.experiments.build import prepare
    from fedmom.experiments.folder import RunFolder

    comparisons.finish_creation(folder)
    how = {"accept_changes": accept_changes, "runtime": runtime}
    with _telling_how_to_go_on(folder):
        if (folder / sweeps.LIST).exists():
            _finish_sweep(folder, comparisons.reopen(folder, sweeps.LIST), **how)
        elif (folder / comparisons.LIST).exists():
            _finish_comparison(folder, comparisons.reopen(folder, comparisons.LIST), **how)
        else:
            opened = RunFolder.open(folder)
            _finish_run(opened, prepare(opened.settings()), **how)


def _finish_run(folder: Any, experiment: Any, **how: Any) -> None:
    """Run to the end, and show the last evaluation."""
    from fedmom.experiments.results import as_groups, target
    from fedmom.reports import result_tables

    result = _execute(folder, experiment, experiment.config.algorithm, **how)
    if result.stop:
        raise (DivergedError if result.diverged else BadReplyError)(result.why)
    groups = as_groups({experiment.config.algorithm: result})
    result_tables.show(OUT, result_tables.grid(groups, target(groups)))
    _say_risen({experiment.config.algorithm: result})


def _finish_comparison(folder: Path, experiments: Mapping[str, Any], **how: Any) -> None:
    """Run what is left of a comparison, then show it."""
    from fedmom.experiments.results import as_groups, target
    from fedmom.reports import differences, result_tables, run_page

    results = _run_comparison(folder, experiments, **how)
    groups = as_groups(results)
    goal, families = target(groups), differences.families(groups)
    result_tables.show(OUT, result_tables.grid(groups, goal), *map(differences.grid, families))
    config = list(experiments.values())[-1].config
    rates = {e.config.algorithm: e.config.lr for e in experiments.values()}
    if len(groups) > 1:
        OUT.print()
        for text in differences.sentences(families, result_tables.verdict(groups, goal), rates):
            result_tables.say(OUT, text)
    title = f"{config.model} on {config.data}: M={config.clients_per_round}, "
    title += differences.rates_text(rates)
    figure, made = run_page.write_comparison(folder, list(results.values()), title)
    OUT.print(f"Figure: {figure}", markup=False)
    page(made)
    _say_risen(results)


def _finish_sweep(folder: Path, experiments: Mapping[str, Any], **how: Any) -> None:
    """Run what is left of a sweep, then rank its runs."""
    from fedmom.experiments import sweep as sweeps
    from fedmom.reports import ranking, result_tables, run_page, sweep_page

    results = _run_side_by_side(folder, experiments, **how)
    groups = sweeps.groups(results)
    result_tables.show(OUT, ranking.grid(groups))
    OUT.print(f"Table: {ranking.write(folder / 'sweep.csv', groups)}", markup=False)
    page(run_page.write(sweep_page.overview(groups), folder / "sweep.html"))
    _say_risen(results)


def _run_comparison(folder: Path, experiments: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    """Run what is left, in turn with one seed, on all cores with more; return the results."""
    from fedmom.experiments.folder import RunFolder

    first = min(experiment.config.seed for experiment in experiments.values())
    of_first = {n: e for n, e in experiments.items() if e.config.seed == first}
    if len(of_first) == len(experiments):
        return _run_in_turn(folder, experiments, **how)
    for name, experiment in of_first.items():
        _say_notes(RunFolder.open(folder / name), experiment)
    return _run_side_by_side(folder, experiments, **how)


def _run_in_turn(folder: Path, experiments: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    """Run one after another, each with its own progress; return the results by name."""
    from fedmom.experiments import compare as comparisons

    def told(opened: Any, experiment: Any, label: str) -> Any:
        result = _execute(opened, experiment, label, **how)
        if result.stop:
            failed(f"{label} stopped: {result.why}")
        return result

    try:
        return comparisons.compare(folder, experiments, told)
    except KeyboardInterrupt:
        stopped(f"For the whole comparison: fedmom resume {folder}", again=True)
        raise


def _run_side_by_side(folder: Path, experiments: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    """Run as many at a time as there are cores; return the results by name."""
    from fedmom.api.progress import ManyRuns, tensorboard
    from fedmom.experiments import sweep as sweeps
    from fedmom.experiments.results import Result

    by_path = {folder / name: experiment for name, experiment in experiments.items()}
    with ManyRuns(OUT, by_path) as shown:
        outcomes = sweeps.side_by_side(
            by_path, shown.advanced, shown.ended, tensorboard, say=note, **how
        )
    for path, outcome in outcomes.items():
        why = outcome.why if isinstance(outcome, Result) else str(outcome)
        if why:
            failed(f"{path.name} stopped: {why}")
    results = {path.name: o for path, o in outcomes.items() if isinstance(o, Result)}
    if not results:
        raise FedMomError(f"No run of {folder} could be run, for the reasons above.")
    return results


def _execute(folder: Any, experiment: Any, label: str, **how: Any) -> Any:
    """Run in a folder, with progress."""
    from fedmom.api import progress
    from fedmom.experiments.execute import execute
    from fedmom.experiments.loss_warning import RisingLoss

    watchers: list[Any] = [
        progress.watch(OUT, label),
        *progress.tensorboard(folder.path, experiment),
        RisingLoss(note),
    ]
    with _telling_how_to_go_on(folder.path), contextlib.ExitStack() as stack:
        _say_notes(folder, experiment)
        for watcher in watchers:
            stack.enter_context(watcher)
        return execute(folder, experiment, watchers, say=note, **how)


def _say_notes(folder: Any, experiment: Any) -> None:
    """Tell the user what to know before a run; one that goes on has told it before."""
    if folder.is_new():
        for text in experiment.notes:
            note(text)


def _say_risen(results: Mapping[str, Any]) -> None:
    """Tell the user of runs that ended worse than they began, without leaving the numbers."""
    from fedmom.experiments.loss_warning import risen

    if sentence := risen(results):
        note(sentence)


@contextlib.contextmanager
def _telling_how_to_go_on(folder: Path) -> Iterator[None]:
    """Tell, after Ctrl-C, how to go on in a folder that has its settings already."""
    try:
        with under_way(str(folder)):
            yield
    except KeyboardInterrupt:
        stopped(f"Stopped; nothing is lost. Go on with: fedmom resume {folder}")
        raise
