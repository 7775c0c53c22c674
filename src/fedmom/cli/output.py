"""Where the commands print."""

from rich.console import Console

OUT = Console(soft_wrap=True)
ERR = Console(stderr=True, soft_wrap=True)


def note(text: str) -> None:
    """Print what the user should know, on standard error."""
    ERR.print(f"note: {text}", style="yellow", highlight=False, markup=False)


def failed(text: str) -> None:
    """Print what went wrong, on standard error."""
    ERR.print(text, style="red", highlight=False, markup=False)
