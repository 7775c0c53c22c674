"""Examples that belong to clients: flat arrays, and for every client where its samples lie.

A sample is a *position*. A client's training samples are the positions
``start .. start + size - 1``, its test samples another such range, and ``read`` turns
positions into a batch. Pictures have one row per position; text has one character per
position, and a sample is the window that begins there, so overlapping windows cost nothing.
Where a client's samples do not lie side by side, a table ``at`` of positions leads to them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.errors import FedMomError

Arrays = dict[str, jax.Array] | dict[str, NDArray[Any]]
Batch = tuple[jax.Array, jax.Array]
ALIGNMENT = 64  # bytes: XLA shares memory that begins at a multiple, as mapped files do
Reader = Callable[[Arrays, jax.Array], Batch]


class Features(NamedTuple):
    """What a model must accept: the kind and shape of one input, and the number of labels."""

    kind: Literal["vector", "picture", "text"]
    shape: tuple[int, ...]
    classes: int


class Split(NamedTuple):
    """Per client: the first position of its samples, and how many there are."""

    start: NDArray[np.int64]
    size: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FederatedData:
    """A population of clients with their training and test samples."""

    name: str
    users: Sequence[str]
    features: Features
    arrays: dict[str, NDArray[Any]]
    train: Split
    test: Split
    test_users: Sequence[str] | None = None  # where the test clients are others (LEAF's -t user)

    def __post_init__(self) -> None:
        """Refuse a population that cannot be trained on, before any work is done."""
        if not len(self.users):
            raise FedMomError(f"{self.name} has no clients.")
        empty = np.flatnonzero(self.train.size < 1)
        if empty.size:
            raise FedMomError(
                f"{self.name}: client {self.users[int(empty[0])]!r} has no training samples"
                f" ({empty.size} such clients). Every client needs at least one; leave them out."
            )

    @functools.cached_property
    def read(self) -> Reader:
        """What turns positions into a batch."""
        return reader(self.features)

    @property
    def clients(self) -> int:
        """K, the number of clients."""
        return len(self.users)

    def split(self, name: str) -> Split:
        """Return the split called ``train`` or ``test``."""
        return self.train if name == "train" else self.test


def read_rows(arrays: Arrays, positions: jax.Array) -> Batch:
    """Row i of ``x`` and ``y`` is sample i. Bytes are pictures and become floats in [0, 1]."""
    rows = _looked_up(arrays, positions)
    x = jnp.asarray(arrays["x"])[rows]
    if x.dtype == jnp.uint8:
        x = x.astype(jnp.float32) / 255
    return x, jnp.asarray(arrays["y"])[rows].astype(jnp.int32)


def read_windows(arrays: Arrays, positions: jax.Array, length: int) -> Batch:
    """Sample i is the ``length`` symbols from i on; its label is the symbol after them."""
    begin = _looked_up(arrays, positions)
    window = jnp.asarray(arrays["text"])[begin[:, None] + jnp.arange(length + 1)]
    window = window.astype(jnp.int32)
    return window[:, :-1], window[:, -1]


def reader(features: Features) -> Reader:
    """Return what reads samples of this kind."""
    if features.kind == "text":
        return functools.partial(read_windows, length=features.shape[0])
    return read_rows


def place(arrays: Mapping[str, NDArray[Any]]) -> dict[str, jax.Array]:
    """Hand arrays to JAX: on a CPU without a copy, so a mapped file is read only where used."""
    if jax.default_backend() != "cpu":
        return {name: jnp.asarray(a) for name, a in arrays.items()}
    return {name: _shared(np.asarray(a)) for name, a in arrays.items()}


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that JAX can share: itself, or a copy that begins where XLA wants it."""
    if _shareable(array):
        return array
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    copy = room[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _shareable(array: NDArray[Any]) -> bool:
    return array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0


def _shared(array: NDArray[Any]) -> jax.Array:
    if array.size and _shareable(array):
        return jax.dlpack.from_dlpack(np.asarray(_Lent(array)))
    return jnp.asarray(array)


class _Lent:
    """Read-only memory that NumPy takes for writable, since only such memory can be shared.

    Nothing writes to it: JAX's arrays never change, and a mapped file is protected besides.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array  # kept alive as long as the shared memory is in use
        self.__array_interface__ = {
            **array.__array_interface__,
            "data": (array.ctypes.data, False),
        }


def _looked_up(arrays: Arrays, positions: jax.Array) -> jax.Array:
    """Go through the table ``at``, where a partition has put samples in an order of its own."""
    return jnp.asarray(arrays["at"])[positions] if "at" in arrays else positions
