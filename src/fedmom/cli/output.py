"""Where the commands print. No text is markup: names of users and folders may look like it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from fedmom.core.files import user_place

if TYPE_CHECKING:
    from fedmom.experiments.results import Result


class _Place(click.ParamType):  # type: ignore[type-arg]
    """A path, with ~ filled in: in --out=~/runs, the shell leaves it as it is."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        del ctx
        return user_place(value, param.get_error_hint(None).strip("'") if param else "path")


FOLDER = _Place()
OUT = Console(soft_wrap=True, markup=False, emoji=False)
ERR = Console(stderr=True, soft_wrap=True, markup=False, emoji=False)


def note(text: str) -> None:
    """Print what the user should know, on standard error."""
    ERR.print(f"note: {text}", style="yellow", highlight=False)


def page(path: Path) -> None:
    """Print where a page is, and how large."""
    OUT.print(f"Page: {path} ({path.stat().st_size / 1e6:.1f} MB)")


@contextlib.contextmanager
def told_at_interrupt(text: str) -> Iterator[None]:
    """End the command with a sentence after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.Abort(text) from None


def listing(*columns: str) -> Table:
    """Return a table of names to be listed, which fold where the terminal is narrow."""
    view = Table(box=None, pad_edge=False)
    for column in columns:
        view.add_column(column, style="" if column else "bold", overflow="fold")
    return view


def show_result(result: "Result") -> None:
    """Print the last evaluation of a run."""
    from fedmom.experiments.results import as_groups, target
    from fedmom.reports import result_tables

    groups = as_groups({result.label: result})
    result_tables.show(OUT, result_tables.grid(groups, target(groups)))


def say(text: str) -> None:
    """Print a sentence, with nothing in it highlighted."""
    OUT.print(text, highlight=False)
