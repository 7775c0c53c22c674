"""Files that are written whole or not at all, a lock on a folder, and where caches live."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from fedmom.core.errors import FedMomError


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, also through a crash of the machine."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with naming(path, instead=temporary):
            _write_synced(temporary, "wb", content)
            temporary.replace(path)
    except BaseException:  # a full disk, Ctrl-C: half a file helps nobody
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name itself must reach the disk, too
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


@contextlib.contextmanager
def naming(path: Path, instead: Path | None = None) -> Iterator[None]:
    """Give the system's errors the path they are about: writing to a full disk names none.

    Args:
        path: The path.
        instead: A path that the user does not know, and that is replaced.

    Examples:
        >>> with naming(Path("log.txt")):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        OSError: [Errno 28] No space left on device: 'log.txt'
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, instead and str(instead)):
            error.filename = str(path)
        raise


def parse_json(content: bytes | str) -> Any:
    """Return what JSON means. All that is none is a ``ValueError``, brackets without end too.

    Examples:
        >>> parse_json("[" * 100_000)
        Traceback (most recent call last):
        ValueError: it is nested too deep
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def sync(path: Path) -> None:
    """Make sure that what was appended to a file has reached the disk."""
    if path.exists():
        with naming(path), path.open("rb") as file:
            os.fsync(file.fileno())


def append_synced(path: Path, content: bytes) -> None:
    """Add to a file, and return when that has reached the disk."""
    _write_synced(path, "ab", content)


def _write_synced(path: Path, mode: Literal["wb", "ab"], content: bytes) -> None:
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process out of a folder. The lock ends with the process, however it ends."""
    from filelock import FileLock, Timeout

    try:
        held = FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout:
        raise FedMomError(f"Another process is at work in {folder}.") from None
    with held:
        yield


def user_path(text: str, what: str) -> Path:
    """Return the path that a user has written, with ~ filled in.

    Args:
        text: What was written.
        what: Where, such as "--data", for the message.
    """
    if "\0" in text:
        raise FedMomError(f"{what} {text!r} is not a path: it contains a null character.")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise FedMomError(
            f"{what} {text!r}: there is no such user on this machine. Write the path without ~."
        ) from None


def cache_folder() -> Path:
    """Where prepared datasets and compiled programs are kept.

    $FEDMOM_CACHE if it is set, else the system's cache folder for this user.
    """
    if chosen := os.environ.get("FEDMOM_CACHE"):
        return user_path(chosen, "FEDMOM_CACHE")
    from platformdirs import user_cache_path

    return user_cache_path("fedmom", appauthor=False)


def slug(text: str, keep: str = "-_.", other: str = "-") -> str:
    """Return a text that can name a file.

    Examples:
        >>> slug("synthetic:alpha=1")
        'synthetic-alpha-1'
    """
    return "".join(c if c.isalnum() or c in keep else other for c in text)


def free_folder(name: str) -> Path:
    """Return a folder below ``runs`` that is not there yet."""
    stem = slug(Path(name).name)
    number = 1
    while (folder := Path("runs") / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return folder


@contextlib.contextmanager
def removed_if_refused(remove: Callable[[], None]) -> Iterator[None]:
    """Remove a new folder if its run fails before it began: the same name can be given again.

    Not at Ctrl-C, after which the user is told how to resume it.
    """
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):  # what went wrong first is what to tell
            remove()
        raise
