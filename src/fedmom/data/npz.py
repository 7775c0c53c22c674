"""Arrays from an .npz file, each looked at before memory is asked for."""

import lzma
import math
import os
import sys
import textwrap
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.data.unpacking import check_ratio

KINDS = "biufcUS"  # plain values: no objects, records or dates
# What zipfile, its decompressors and NumPy's reader of headers raise on files that are damaged,
# encrypted, compressed by unknown means, or not what they say.
DAMAGE = (
    *(OSError, EOFError, ValueError, SyntaxError, KeyError, TypeError, OverflowError, MemoryError),
    *(RuntimeError, NotImplementedError, RecursionError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError),
)


def read_npz(
    path: Path, names: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Return arrays of an .npz file by name. Nothing in it is run (no pickled objects).

    Args:
        path: The file.
        names: The arrays that it must hold.
        optional: Arrays that are read where it holds them.

    Raises:
        FedMomError: One is missing, damaged, too large for this machine, or not of plain values.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            here = set(archive.namelist())
            for name in names:
                if f"{name}.npy" not in here:
                    raise FedMomError(
                        f"{path}: the array {name!r} is missing. It must hold x (inputs) and y"
                        " (labels), and may hold user (client of each row, a number or a name),"
                        " users (names of numbers from 0), is_test."
                    )
            there = [*names, *(name for name in optional if f"{name}.npy" in here)]
            return {name: _member(archive, f"{name}.npy", path) for name in there}
    except FedMomError:
        raise
    except DAMAGE as error:
        # A library may put all of a file's bytes into its message.
        said = textwrap.shorten(str(error) or type(error).__name__, 200)
        raise FedMomError(f"{path} is not a readable .npz file: {said.rstrip('.')}.") from None


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> NDArray[Any]:
    entry = archive.getinfo(name)
    with archive.open(entry) as file:
        shape, fortran, dtype = _header(file)
        if dtype.kind not in KINDS:
            raise FedMomError(
                f"{path}: {name.removesuffix('.npy')} is an array of type {dtype}; it must hold"
                " plain numbers or texts."
            )
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0:
            raise FedMomError(f"{path}: {name} has the shape {shape}, which no array has.")
        if size > entry.file_size:
            raise FedMomError(
                f"{path}: {name} says that it has {size:,} bytes, but it has {entry.file_size:,}."
            )
        remedy = "Save it without compression (np.savez) if it is right."
        packed = min(entry.compress_size, path.stat().st_size)  # the first is the file's own word
        check_ratio(f"{path}: {name}", size, packed, remedy)
        if size > _memory():
            raise FedMomError(
                f"{path}: {name} has {size:,} bytes, more than this machine has memory."
                " Pack it in parts (docs/data.md)."
            )
        content = file.read(size)
    if len(content) < size:
        raise FedMomError(f"{path}: {name} ends after {len(content):,} of {size:,} bytes.")
    flat = np.frombuffer(content, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise ValueError(f"an array of the format {version}, which is not known")
    return read[version](file)


def _memory() -> int:
    """Return the bytes of memory that this machine has; where that is not known, no bound."""
    if not hasattr(os, "sysconf"):
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
