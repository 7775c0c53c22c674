"""Where the commands print. No text is markup: names of users and folders may look like it."""

from pathlib import Path

from rich.console import Console

OUT = Console(soft_wrap=True, markup=False, emoji=False)
ERR = Console(stderr=True, soft_wrap=True, markup=False, emoji=False)


def note(text: str) -> None:
    """Print what the user should know, on standard error."""
    ERR.print(f"note: {text}", style="yellow", highlight=False)


def page(path: Path) -> None:
    """Print where a page is, and how large."""
    OUT.print(f"Page: {path} ({path.stat().st_size / 1e6:.1f} MB)")


def failed(text: str) -> None:
    """Print what went wrong, on standard error."""
    ERR.print(text, style="red", highlight=False)
