"""The files that data is read from: ordinary ones, unpacked only as far as data can go."""

import difflib
import gzip
import stat
import textwrap
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedmom.core.arguments import LETTERS, short
from fedmom.core.errors import FedMomError
from fedmom.core.validation import check_memory

LARGE = 2**28  # bytes: a smaller file may be packed as well as it likes
RATIO = 200  # bytes for one in the file: more is not data, but a file made to fill the memory
# What folders of splits are called; the first two never mean anything else.
SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval")
BLOCK = 2**24  # bytes that are unpacked at a time


def check_regular(path: Path, mode: int) -> None:
    """Refuse pipes, devices and sockets: reading them may never come to an end."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FedMomError(f"{path} is a pipe or a device, not a file. Save the data to a file.")


def is_folder(path: Path) -> bool:
    """Return whether there is a folder; there is none of a name that is too long."""
    try:
        return path.is_dir()
    except OSError:
        return False


def file_identity(paths: Sequence[Path]) -> list[Any]:
    """Return the path, size and time of change of every file: a changed file is another one."""
    stats = [(p.resolve(), p.stat()) for p in paths]
    for path, status in stats:
        check_regular(path, status.st_mode)
    return [[str(p), s.st_size, s.st_mtime_ns] for p, s in stats]


def check_known(what: str, found: Iterable[str], known: Sequence[str]) -> None:
    """Refuse names that nothing reads: a misspelt one would be left out unseen.

    Examples:
        >>> check_known("own.npz: the array", ["x", "is_tset"], ["x", "y", "is_test"])
        Traceback (most recent call last):
        fedmom.core.errors.FedMomError: own.npz: the array 'is_tset' is not known. \
Did you mean 'is_test'? It may be x, y, is_test.
    """
    for name in found:
        if name not in known:
            close = difflib.get_close_matches(name[:LETTERS], known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise FedMomError(
                f"{what} {short(name)} is not known.{hint} It may be {', '.join(known)}."
            )


def check_splits(top: Path, names: Iterable[str]) -> None:
    """Refuse folders or files that are called train and test where clients or classes should be."""
    found = sorted({name for name in names if name.lower() in SPLITS})
    if len(found) > 1 or any(name.lower() in SPLITS[:2] for name in found):
        raise FedMomError(
            f"{top} has {' and '.join(map(repr, found))} where clients or classes should be, and"
            " they look like splits. Move what is in them into one folder and draw test rows by"
            " test_fraction=; or rename them, if they are clients or classes."
        )


def check_ratio(what: str, size: int, packed: int, remedy: str) -> None:
    """Refuse what unpacks to more than any data does.

    Args:
        what: The file, or its part.
        size: Its bytes, as far as they are unpacked.
        packed: The bytes they take in the file.
        remedy: What to do, as a sentence.

    Examples:
        >>> check_ratio("x.csv.gz", 10**9, 10**5, "Save it without compression.")
        Traceback (most recent call last):
        fedmom.core.errors.FedMomError: x.csv.gz unpacks to at least 1,000,000,000 bytes \
from 100,000, which no real data does. Save it without compression.
    """
    if size > LARGE and size > RATIO * packed:
        raise FedMomError(
            f"{what} unpacks to at least {size:,} bytes from {packed:,}, which no real data does."
            f" {remedy}"
        )


def said(error: BaseException) -> str:
    """Return what a library says in one short line: it may put a file's bytes into it."""
    return textwrap.shorten(str(error) or type(error).__name__, 300).rstrip(".")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, plain or gzipped, without its byte order mark."""
    try:
        return read_content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 at byte {error.start}. Save the text as UTF-8."
        raise FedMomError(message) from None


def read_content(path: Path) -> bytes:
    """Return the bytes of a file, unpacked where its name ends in .gz.

    Raises:
        FedMomError: It is damaged, or holds more than data can or than this machine's memory.
    """
    try:
        if path.suffix.lower() == ".gz":
            return b"".join(_blocks(path))
        check_memory(str(path), 2 * path.stat().st_size, "Use a part of it.")
        return path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FedMomError(
            f"{path} is not a complete gzip file ({error}). Fetch it again."
        ) from None
    except OSError as error:
        raise FedMomError(f"{path} cannot be read: {error.strerror}.") from None


def _blocks(path: Path) -> Iterator[bytes]:
    size, packed = 0, path.stat().st_size
    with gzip.open(path) as file:
        while block := file.read(BLOCK):
            size += len(block)
            check_ratio(str(path), size, packed, "Unpack it (gunzip) if it is right.")
            check_memory(str(path), 2 * size, "Use a part of it.")
            yield block
