"""The command line: paper."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from fedmom import data as datasets
from fedmom import specs
from fedmom.page import Status, Verdict
from fedmom.paper import findings, plan, report, running, verdicts
from fedmom.paper.plan import Scale

OUT = Console(soft_wrap=True)
ERR = Console(stderr=True, soft_wrap=True)
STYLES = {
    Status.HOLDS: "green",
    Status.PART: "yellow",
    Status.FAILS: "red",
    Status.UNKNOWN: "dim",
}


@click.command()
@click.argument("what", nargs=-1)
@click.option(
    "--scale",
    type=click.Choice(list(plan.SCALES)),
    default="quick",
    show_default=True,
    help="quick: minutes, offline data, one seed. full: 2,000 rounds, three seeds; many hours.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder [default: runs/paper-SCALE].")
@click.option("--femnist", metavar="DATA", help="FEMNIST, as for run --data [default: glyphs].")
@click.option(
    "--shakespeare", metavar="DATA", help="Shakespeare, as for run --data [default: shakespeare]."
)
@click.option("--no-train", is_flag=True, help="Draw what has ended so far, and train nothing.")
def paper(
    what: tuple[str, ...],
    scale: str,
    out: Path | None,
    femnist: str | None,
    shakespeare: str | None,
    no_train: bool,
) -> None:
    """Make the paper's tables and figures, or those of WHAT, and judge its claims.

    WHAT: table1 table2 fig2 fig3 fig4 fig5 fig6, beyond (settings the paper did not try), author
    (what its first author's code does differently). Runs are kept: what has ended is never
    trained again, and what was stopped goes on.

    \b
    fedmom paper
    fedmom paper fig5 --scale full --femnist writers.npz --shakespeare data/shakespeare
    fedmom paper --scale full --no-train
    """
    for part in what:
        specs.pick(plan.PARTS, part, "part of the paper")
    chosen = plan.SCALES[scale].on(femnist, shakespeare)
    folder = out or Path("runs") / f"paper-{scale}"
    parts = [part for part in plan.PARTS if part in what or not what]
    try:
        page = make(folder, chosen, parts, train=not no_train)
    except KeyboardInterrupt:
        ERR.print("Stopped; nothing is lost. Go on with the same command.")
        raise
    OUT.print(f"Page: {page}\nFigures: {folder / 'figures'}\nTables: {folder / 'tables'}")


def make(folder: Path, scale: Scale, parts: Sequence[str], *, train: bool) -> Path:
    """Run what is missing, if allowed, and write page, figures and tables; return the page."""
    for task in scale.tasks:
        if not isinstance(datasets.locate(task.data), Path):
            ERR.print(f"note: {task.data} stands in for {task.name}.", style="yellow")
    cache = running.Cache(folder / "runs", scale)
    if train:
        running.complete(cache, scale, parts, OUT)
    found = findings.gather(cache, scale, parts, folder / "probes", OUT, replay=train)
    data = {task.name: cache.data(task) for task in scale.tasks}
    context = report.Context(scale, data, running.missing_text(cache, scale, parts))
    report.draw(folder, context, found, parts, OUT)
    page = report.write(folder, context, found, parts)
    OUT.print(_summary(verdicts.verdicts(verdicts.judge(found))))
    if context.progress:
        OUT.print(context.progress)
    return page


def _summary(found: Sequence[Verdict]) -> Table:
    view = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for verdict in found:
        view.add_row(f"[{STYLES[verdict.status]}]{verdict.status}", verdict.claim)
    return view
