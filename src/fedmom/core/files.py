"""Files that are written whole or not at all, a lock on a folder, and where caches live."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fedmom.core.errors import FedMomError


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, also through a crash of the machine."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    if os.name == "posix":  # the new name itself must reach the disk, too
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


def sync(path: Path) -> None:
    """Make sure that what was appended to a file has reached the disk."""
    if path.exists():
        with path.open("rb") as file:
            os.fsync(file.fileno())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process out of a folder. The lock ends with the process, however it ends."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FedMomError(f"Another process is at work in {folder}.") from None
    try:
        yield
    finally:
        lock.release()


def cache_folder() -> Path:
    """Where prepared datasets and compiled programs are kept.

    $FEDMOM_CACHE if it is set, else the system's cache folder for this user.
    """
    if chosen := os.environ.get("FEDMOM_CACHE"):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("fedmom", appauthor=False)


def slug(text: str, keep: str = "-_.", other: str = "-") -> str:
    """Return a text that can name a file.

    Examples:
        >>> slug("synthetic:alpha=1")
        'synthetic-alpha-1'
    """
    return "".join(c if c.isalnum() or c in keep else other for c in text)
