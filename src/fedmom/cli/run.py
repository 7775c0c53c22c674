"""The command line: run, compare, sweep, resume."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedmom.cli.output import FOLDER, OUT, note, page, show_result, told_at_interrupt
from fedmom.cli.setting_options import gather, parse_grid, setting_options, split_names
from fedmom.cli.start import under_way
from fedmom.core.errors import FedMomError
from fedmom.experiments import results, run_lists
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.run_lists import ALGORITHMS, DEFAULTS, MOST_SEEDS

if TYPE_CHECKING:
    from fedmom.api.runs import Run, Runs

OVERWRITE = click.option(
    "--overwrite", is_flag=True, help="Remove the runs that --out holds, and nothing else."
)


@click.command()
@setting_options()
@click.option("--out", type=FOLDER, help="The run's new folder.")
@OVERWRITE
def run(file: Path | None, out: Path | None, overwrite: bool, **options: Any) -> None:
    """Train one model with one algorithm.

    \b
    fedmom run --data synthetic --algorithm fedavg --rounds 200
    fedmom run --data shakespeare:roles=100,samples=1000 --out runs/bard
    fedmom run --data writers.npz --model lenet5 --lr exponential:start=0.05,rate=0.995
    """
    from fedmom.api.calls import new_run

    with new_run(gather(file, options), out, overwrite) as new, resumable(new.path):
        _finish_run(new)
    OUT.print(f"Run folder: {new.path}")


@click.command()
@click.option(
    "--algorithms", default=",".join(ALGORITHMS), help="The algorithms, separated by commas."
)
@click.option(
    "--seeds",
    type=click.IntRange(max=MOST_SEEDS),
    default=1,
    metavar="N",
    help="Seeds of each algorithm, counted from --seed on: 10 give useful intervals.",
)
@setting_options(leave_out=["algorithm"], defaults=DEFAULTS)
@click.option("--out", type=FOLDER, help="The comparison's new folder.")
@OVERWRITE
def compare(
    algorithms: str,
    seeds: int,
    file: Path | None,
    out: Path | None,
    overwrite: bool,
    **options: Any,
) -> None:
    """Train with several algorithms, from the same model, on the same cohorts and batches.

    Runs fill the cores. Ends with a table and a figure. With several seeds, numbers have intervals
    and algorithms are compared by their differences within each seed. Without options: FedSGD,
    FedAvg and FedMom train the paper's character LSTM on the roles of Shakespeare's plays (see
    README).

    \b
    fedmom compare
    fedmom compare --algorithms fedavg,fedmom,fedadam --data synthetic
    fedmom compare --algorithms fedavg,fedmom --data synthetic --seeds 10
    """
    from fedmom.api.calls import new_runs

    names = run_lists.by_name(split_names(algorithms))
    runs = run_lists.of_comparison(DEFAULTS | gather(file, options), names, seeds)
    with new_runs(runs, results.COMPARE_LIST, out, overwrite) as new, resumable(new.path):
        _finish_comparison(new)


@click.command()
@setting_options()
@click.option(
    "--grid",
    multiple=True,
    metavar="'NAME=VALUE VALUE ...'",
    help="A setting to vary, with its values. Repeat it for more settings.",
)
@click.option("--out", type=FOLDER, help="The sweep's new folder.")
@OVERWRITE
def sweep(
    file: Path | None, grid: tuple[str, ...], out: Path | None, overwrite: bool, **options: Any
) -> None:
    """Run a grid of settings, on all cores, and rank the results.

    In a file, the grid is a table [grid] of lists. Seeds are taken together in the ranking.

    \b
    fedmom sweep --data synthetic --grid 'algorithm=fedavg fedmom' --grid 'lr=0.001 0.003 0.01' \\
        --grid 'seed=0 1 2'
    """
    from fedmom.api.calls import new_runs

    values = gather(file, options)
    in_file = values.pop("grid", {})
    lists = {**in_file, **parse_grid(grid)} if isinstance(in_file, dict) else in_file
    if lists == {}:
        raise FedMomError(
            "There is nothing to vary. Give --grid 'lr=0.01 0.1', or [grid] in a file."
        )
    runs = run_lists.of_sweep(values, lists)
    with new_runs(runs, results.SWEEP_LIST, out, overwrite) as new, resumable(new.path):
        _finish_sweep(new)


@click.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Resume although data or settings are no longer those that it was started with.",
)
@click.option(
    "--runtime",
    metavar="TEXT",
    help="Resume with clients elsewhere, such as ray, this time [default: as in config.toml].",
)
def resume(folder: Path, accept_changes: bool, runtime: str | None) -> None:
    """Resume a stopped run, comparison or sweep; the result is the same as without the stop."""
    from fedmom.api.calls import opened
    from fedmom.api.runs import Run

    found = opened(folder, {})
    how = {"accept_changes": accept_changes, "runtime": runtime}
    with resumable(folder):
        if isinstance(found, Run):
            _finish_run(found, **how)
        elif (folder / results.SWEEP_LIST).exists():
            _finish_sweep(found, **how)
        else:
            _finish_comparison(found, **how)


def _finish_run(run: "Run", **how: Any) -> None:
    """Run to the end, and show the last evaluation."""
    from fedmom.api.live_progress import finish

    _say_notes([run])
    show_result(finish(run, OUT, say=note, **how))


def _finish_comparison(runs: "Runs", **how: Any) -> None:
    """Run what is left of a comparison, then show it."""
    from fedmom.reports import differences, result_tables, run_page

    first = min(run.experiment.config.seed for run in runs.values())
    _say_notes(run for run in runs.values() if run.experiment.config.seed == first)
    found = _finish_all(runs, **how)
    groups = results.as_groups(found)
    goal, families = results.target(groups), differences.families(groups)
    result_tables.show(OUT, result_tables.grid(groups, goal), *map(differences.grid, families))
    configs = [run.experiment.config for run in runs.values()]
    rates = {run.label: run.config.lr for run in found.values()}
    if len(groups) > 1:
        OUT.print()
        for text in differences.sentences(families, result_tables.verdict(groups, goal), rates):
            result_tables.say(OUT, text)
    title = f"{configs[-1].model} on {configs[-1].data}: M={configs[-1].clients_per_round}, "
    title += differences.rates_text(rates)
    figure, made = run_page.write_comparison(runs.path, list(found.values()), title)
    OUT.print(f"Figure: {figure}")
    page(made)
    _check_any_ended(found)


def _finish_sweep(runs: "Runs", **how: Any) -> None:
    """Run what is left of a sweep, then rank its runs."""
    from fedmom.reports import result_tables, run_page, sweep_page

    found = _finish_all(runs, **how)
    groups = results.group_by_name(found)
    result_tables.show(OUT, sweep_page.ranking(groups))
    OUT.print(f"Table: {sweep_page.write_ranking(runs.path / 'sweep.csv', groups)}", markup=False)
    page(run_page.write(sweep_page.overview(groups), runs.path / "sweep.html"))
    _check_any_ended(found)


def _finish_all(runs: "Runs", **how: Any) -> dict[str, results.Result]:
    """Run as many at a time as there are cores; return the results by name."""
    from fedmom.api.live_progress import finish_all

    found, errors = finish_all(runs, OUT, say=note, **how)
    for name, error in errors.items():
        note(f"{name} stopped: {error}")
    if not found:
        raise FedMomError(f"No run of {runs.path} could be run, for the reasons above.")
    return found


def _check_any_ended(found: Mapping[str, results.Result]) -> None:
    """Raise an error if no run came to its end: what is shown is that of the models before."""
    if all(result.error for result in found.values()):
        raise FedMomError("No run reached its last round, for the reasons above.")


def _say_notes(runs: "Iterable[Run]") -> None:
    """Tell the user what to know before a run; one that is resumed has told it before."""
    for run in runs:
        if RunFolder.open(run.path).is_new():
            for text in run.experiment.notes:
                note(text)


@contextlib.contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Say, after Ctrl-C, how to resume what is in a folder."""
    text = f"Stopped; nothing is lost. Resume with: fedmom resume {folder}"
    with told_at_interrupt(text), under_way(str(folder)):
        yield
