"""The command line: paper."""

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from fedmom import data as datasets
from fedmom.cli.output import FOLDER, OUT, note, page, told_at_interrupt
from fedmom.core import registry
from fedmom.reports.html import Status
from fedmom.reproduction import plan

STYLES = {
    Status.HOLDS: "green",
    Status.PART: "yellow",
    Status.FAILS: "red",
    Status.OPEN: "cyan",
}


@click.command()
@click.argument("what", nargs=-1)
@click.option(
    "--scale",
    type=click.Choice(list(plan.SCALES)),
    default="quick",
    help="quick: minutes, data that needs no download. full: 1,000 rounds, ten seeds; many hours.",
)
@click.option("--out", type=FOLDER, help="Folder [default: runs/paper-SCALE].")
@click.option("--femnist", metavar="DATA", help="FEMNIST, as for run --data [default: glyphs].")
@click.option(
    "--shakespeare", metavar="DATA", help="Shakespeare, as for run --data [default: shakespeare]."
)
@click.option("--no-train", is_flag=True, help="Draw the runs that have ended, and train nothing.")
@click.option(
    "--runtime",
    default="local",
    help="Where runs are trained, such as ray:address=auto; the results are the same.",
)
def paper(
    what: tuple[str, ...],
    scale: str,
    out: Path | None,
    femnist: str | None,
    shakespeare: str | None,
    no_train: bool,
    runtime: str,
) -> None:
    """Make the paper's tables and figures, or those of WHAT, and judge its claims.

    WHAT: table1 table2 fig2 fig3 fig4 fig5 fig6, beyond (settings the paper did not try), author
    (what its first author's code does differently). Runs are kept: those that have ended are never
    trained again, and those that were stopped are resumed.

    \b
    fedmom paper
    fedmom paper fig5 --scale full --femnist writers.npz --shakespeare data/shakespeare
    fedmom paper --scale full --no-train
    """
    from fedmom.reproduction.page import make

    for part in what:
        registry.pick(plan.PARTS, part, "part of the paper")
    chosen = plan.SCALES[scale].on(femnist, shakespeare)
    folder = out or Path("runs") / f"paper-{scale}"
    parts = [part for part in plan.PARTS if part in what or not what]
    for task in chosen.tasks:
        if datasets.path_of(task.data) is None:
            note(f"{task.data} stands in for {task.name}.")
    with told_at_interrupt("Stopped; nothing is lost. Resume with the same command."):
        made = make(folder, chosen, parts, OUT, train=not no_train, runtime=runtime)
    view = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for verdict in made.verdicts:
        view.add_row(Text(str(verdict.status), STYLES.get(verdict.status, "dim")), verdict.claim)
    OUT.print(view)
    if made.progress:
        OUT.print(made.progress)
    page(made.page)
    OUT.print(f"Figures: {folder / 'figures'}\nTables: {folder / 'tables'}")
