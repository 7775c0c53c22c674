"""Progress bars, all of one kind: what it is, a bar, how far, how long still."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich import progress
from rich.console import Console

T = TypeVar("T")


def bars(console: Console | None = None, *columns: progress.ProgressColumn) -> progress.Progress:
    """Return a set of bars, shown on a terminal only.

    Args:
        console: Where they are shown; by default standard error.
        *columns: What stands between the bar and the time left; by default "M/N".
    """
    console = console or Console(stderr=True)
    return progress.Progress(
        progress.TextColumn("{task.description}", style="bold", markup=False),
        progress.BarColumn(),
        *(columns or (progress.MofNCompleteColumn(),)),
        progress.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


@contextlib.contextmanager
def waiting(label: str) -> Iterator[None]:
    """Say what is waited for, while its length is not known; on a terminal only."""
    console = Console(stderr=True)
    with console.status(label) if console.is_terminal else contextlib.nullcontext():
        yield


def track(
    items: Iterable[T], label: str, *, total: int | None = None, console: Console | None = None
) -> Iterator[T]:
    """Go through items under a bar."""
    with bars(console) as shown:
        yield from shown.track(items, total=total, description=label)
