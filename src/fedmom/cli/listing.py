"""The command line: list."""

import click
from rich.table import Table

from fedmom.algorithms import ALGORITHMS, RULES, SCHEDULES, SOLVERS, STAGES
from fedmom.cli.output import OUT
from fedmom.data import DATASETS
from fedmom.models import MODELS
from fedmom.runtimes import RUNTIMES
from fedmom.training import PACES, SAMPLERS


@click.command(name="list")
def list_() -> None:
    """Show the algorithms, models, datasets and all else that has a name, with options."""
    view = Table(box=None, pad_edge=False)
    for column in ("", "name:options", "what it is"):
        view.add_column(column, style="bold" if not column else "", overflow="fold")
    tables = (
        *(ALGORITHMS, MODELS, DATASETS, SOLVERS, SCHEDULES),
        *(RULES, STAGES, SAMPLERS, PACES, RUNTIMES),
    )
    for table in tables:
        for spec, about in table.described():
            # A break after a comma: a narrow terminal folds there, not in a word.
            view.add_row(table.what, spec.replace(",", ", "), about.replace("``", ""))
    OUT.print(view)
