"""Why a command has ended: a sentence for the user, and the exit code."""

import contextlib
import os
import platform
import sys
import time
import traceback
from pathlib import Path

import click

from fedmom.cli import output
from fedmom.cli.start import INTERRUPTED
from fedmom.core.errors import FedMomError
from fedmom.core.files import cache_folder, of_system

BUG, MISTAKE = 1, 2


def told(error: BaseException, *, interrupted: bool = False) -> int:
    """Print what has ended the command, on standard error.

    Args:
        error: What was raised.
        interrupted: Whether a signal came; a library may have made another error of it.

    Returns:
        The exit code.
    """
    if interrupted or isinstance(error, (KeyboardInterrupt, click.Abort)):
        said = str(error) if isinstance(error, click.Abort) else ""
        output.ERR.print(said or "Stopped.", highlight=False)
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):  # the reader of the output has ended: `| head`
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BUG
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    text = sentence(error)
    output.ERR.print(f"error: {text or _of_bug(error)}", style="red", highlight=False)
    return MISTAKE if text else BUG


def sentence(error: BaseException) -> str:
    """Return what is wrong with the user's values, files or machine; nothing for a bug."""
    if isinstance(error, FedMomError):
        return str(error)
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)[:80]:
        why = f" ({_line(error)})" if str(error) else ""
        return (
            f"There is not enough memory{why}. Use fewer samples, a smaller model or smaller"
            " batches."
        )
    if isinstance(error, OSError):
        return of_system(error)
    if isinstance(error, UnicodeError):
        return f"A name or a file is not text in UTF-8: {_line(error)}."
    return f"A file is damaged: {_line(error)}." if isinstance(error, _damages()) else ""


def _damages() -> tuple[type[BaseException], ...]:
    """Return what readers raise for damaged files."""
    import json
    import lzma
    import tomllib
    import zipfile
    import zlib

    return (
        *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
        *(json.JSONDecodeError, tomllib.TOMLDecodeError),
    )


def _of_bug(error: BaseException) -> str:
    """Keep the traceback; return a sentence that says where."""
    text = "".join(traceback.format_exception(error))
    what = f"{type(error).__name__}: {_line(error)}".rstrip(": ")
    try:
        place = f"The details are in {_keep(text)}; please send them with a report."
    except (OSError, FedMomError):
        place = f"Please send a report with these details:\n{text}"
    return f"This is a bug in fedmom ({what}). {place}"


def _keep(text: str) -> Path:
    from importlib.metadata import version

    parts = [f"{name} {version(name)}" for name in ("fedmom", "jax", "jaxlib", "numpy")]
    head = [" ".join(sys.argv), f"Python {platform.python_version()} on {platform.platform()}"]
    folder = cache_folder() / "errors"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    content = "\n".join([*head, ", ".join(parts), "", text])
    path.write_text(content, encoding="utf-8", errors="backslashreplace")
    return path


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].removesuffix(".")
