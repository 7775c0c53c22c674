"""The command line: a table of attacks and rules."""

from pathlib import Path
from typing import Any

import click

from fedmom.cli.output import FOLDER, OUT, note
from fedmom.cli.run import resumable
from fedmom.cli.setting_options import gather, setting_options, split_names
from fedmom.core.errors import FedMomError
from fedmom.experiments import results, robustness
from fedmom.experiments.run_lists import MOST_SEEDS


@click.command()
@click.option("--algorithms", default="fedavg,fedmom", help="The algorithms, separated by commas.")
@click.option(
    "--attacks",
    default=" ".join(robustness.ATTACKS),
    help="The attacks, without their share, separated by spaces; none is always among them.",
)
@click.option(
    "--rules",
    default=" ".join(robustness.RULES),
    help="The rules, separated by spaces. {f} becomes the number of hostile replies that a round"
    " should bear, {share} their share of the replies.",
)
@click.option("--shares", default="0.1,0.2", help="The shares of hostile clients.")
@click.option(
    "--seeds",
    type=click.IntRange(1, MOST_SEEDS),
    default=3,
    metavar="N",
    help="Seeds of each run, counted from --seed on.",
)
@setting_options(leave_out=["algorithm", "attack", "aggregate"], defaults=dict(robustness.DEFAULTS))
@click.option("--out", type=FOLDER, required=True, help="The folder of the runs and tables.")
def robust(
    algorithms: str,
    attacks: str,
    rules: str,
    shares: str,
    seeds: int,
    file: Path | None,
    out: Path,
    **options: Any,
) -> None:
    """Train under attacks with each rule, and print the tables of what each rule loses.

    Runs fill the cores. The same command with the same --out runs what is missing only.

    \b
    fedmom robust --data writers.npz --rounds 100 --seeds 3 --out runs/robust
    fedmom robust --data synthetic --attacks 'sign_flip alie' --rules 'mean median' --out runs/few
    """
    from fedmom.api.calls import new_runs, opened
    from fedmom.api.live_progress import finish_all
    from fedmom.reports import result_tables
    from fedmom.reports.robust_table import RobustTable

    shared = robustness.DEFAULTS | gather(file, options)
    axes = (split_names(algorithms), attacks.split(), rules.split(), _numbers(shares))
    configs = robustness.runs(shared, *axes, seeds)
    with resumable(out):
        if (out / results.SWEEP_LIST).exists():
            runs: Any = opened(out, {})
            _check_same(runs, list(configs), out)
            found, errors = finish_all(runs, OUT, say=note)
        else:
            with new_runs(configs, results.SWEEP_LIST, out) as runs:
                found, errors = finish_all(runs, OUT, say=note)
    for name, error in errors.items():
        note(f"{name} stopped: {error}")
    first = min(config.seed for config in configs.values())
    table = RobustTable(found, axes, range(first, first + seeds))
    result_tables.show(OUT, *table.grids())
    page, numbers = table.write(out)
    OUT.print(f"Table: {page}\nNumbers: {numbers}", markup=False)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise FedMomError(f"--shares {text!r} must be numbers, such as 0.1,0.2.") from None


def _check_same(runs: Any, names: list[str], out: Path) -> None:
    if set(runs) != set(names):
        raise FedMomError(
            f"{out} holds the runs of another table. Give the options that it was started with, or"
            " another --out."
        )
