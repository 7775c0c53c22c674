"""Memory that processes share. It has no name, so nothing is left behind, however they end."""

import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LINE = 64  # bytes: arrays begin at a multiple
PAGE = 4096


class Place(NamedTuple):
    """Where an array lies, counted from the beginning of a slot or of a file."""

    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """How long it is."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class Mapped(NamedTuple):
    """An array in a file that every process maps by itself."""

    file: str
    place: Place


def placed(arrays: Mapping[str, Any], first: int = 0) -> tuple[dict[str, Place], int]:
    """Lay arrays side by side; return their places and where they end."""
    places: dict[str, Place] = {}
    for name, array in arrays.items():
        places[name] = Place(first, tuple(array.shape), np.dtype(array.dtype).str)
        first = rounded(first + places[name].bytes, LINE)
    return places, rounded(first, PAGE)


def rounded(size: int, unit: int) -> int:
    """Return the next multiple of a unit."""
    return -(-size // unit) * unit


def mapped(array: NDArray[Any]) -> Mapped | None:
    """Return where in its file an array lies, if it is mapped from one as it is."""
    root: Any = None
    base: Any = array
    while base is not None:
        root, base = base if isinstance(base, np.memmap) else root, getattr(base, "base", None)
    if root is None or root.filename is None or not array.flags.c_contiguous:
        return None
    offset = root.offset + array.ctypes.data - root.ctypes.data
    return Mapped(os.fspath(root.filename), Place(offset, array.shape, array.dtype.str))


def opened(where: Mapped) -> NDArray[Any]:
    """Map an array of a file. Writing to it, which PyTorch wants to be able to, changes no file."""
    offset, shape, dtype = where.place
    return np.memmap(where.file, dtype, "c", offset, shape)


class Memory:
    """Shared memory, by the descriptor of a file that has no name.

    Args:
        descriptor: The file, which this closes.
        size: Its bytes.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size)
        self.descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def new(cls, size: int) -> "Memory":
        """Return new memory; pages that are never written take no room."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("fedmom")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.truncate(descriptor, size)
        return cls(descriptor, size)

    def array(self, place: Place, base: int = 0) -> NDArray[Any]:
        """Return the array at a place, counted from a base."""
        return np.ndarray(place.shape, place.dtype, self._map, base + place.offset)

    def arrays(self, places: Mapping[str, Place], base: int = 0) -> dict[str, NDArray[Any]]:
        """Return several arrays by name."""
        return {name: self.array(place, base) for name, place in places.items()}

    def close(self) -> None:
        """Let go of the file; what still has an array of it keeps the memory."""
        self._close()
