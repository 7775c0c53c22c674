"""The files that data is read from: ordinary ones, unpacked only as far as data can go."""

import gzip
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.validation import check_memory

LARGE = 2**28  # bytes: a smaller file may be packed as well as it likes
RATIO = 200  # bytes for one in the file: more is no data, but a file made to fill the memory
BLOCK = 2**24  # bytes that are unpacked at a time


def check_regular(path: Path, mode: int) -> None:
    """Refuse pipes, devices and sockets: reading them may never come to an end."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FedMomError(f"{path} is no file, but a pipe or a device. Save the data to a file.")


def file_identity(paths: Sequence[Path]) -> list[Any]:
    """Return the path, size and time of change of every file: a changed file is another one."""
    stats = [(p.resolve(), p.stat()) for p in paths]
    for path, status in stats:
        check_regular(path, status.st_mode)
    return [[str(p), s.st_size, s.st_mtime_ns] for p, s in stats]


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
        fedmom.core.errors.FedMomError: x.csv.gz has 1,000,000,000 bytes or more in 100,000 of the \
file, which no real data has. Save it without compression.
    """
    if size > LARGE and size > RATIO * packed:
        raise FedMomError(
            f"{what} has {size:,} bytes or more in {packed:,} of the file, which no real data has."
            f" {remedy}"
        )


def read_gzip(path: Path) -> bytes:
    """Return what a gzipped file holds.

    Raises:
        FedMomError: It holds more than data can, or than this machine's memory.
        OSError, EOFError, zlib.error: It is damaged.
    """
    return b"".join(_blocks(path))


def _blocks(path: Path) -> Iterator[bytes]:
    size, packed = 0, path.stat().st_size
    with gzip.open(path) as file:
        while block := file.read(BLOCK):
            size += len(block)
            check_ratio(str(path), size, packed, "Unpack it (gunzip) if it is right.")
            check_memory(str(path), 2 * size, "Take a part of it.")
            yield block
