"""Arguments and options of commands that are paths."""

from pathlib import Path

import click

FOLDER = click.Path(path_type=Path)
