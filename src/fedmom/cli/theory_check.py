"""The command that holds a run against the corrected theorem."""

import json
from pathlib import Path

import click

from fedmom.cli.options import FOLDER
from fedmom.cli.output import OUT


@click.command(name="check")
@click.argument("folder", metavar="RUN", type=FOLDER)
def check_(folder: Path) -> None:
    """Say whether a run's lr keeps the condition of the corrected theorem.

    L is estimated at the run's first model. The sentence is kept in the run's folder, and its page
    (`fedmom report`) shows it.

    \b
    fedmom theory check runs/first
    """
    from fedmom.core.files import write_atomic
    from fedmom.experiments.build import prepare
    from fedmom.experiments.folder import RunFolder
    from fedmom.experiments.results import THEORY
    from fedmom.theory.check import sentence

    text = sentence(prepare(RunFolder.open(folder).settings()))
    write_atomic(folder / THEORY, json.dumps({"sentence": text}).encode())
    OUT.print(text, highlight=False, soft_wrap=False)
