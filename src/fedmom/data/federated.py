"""Examples that belong to clients: flat arrays, and for every client where its samples lie.

A sample is a *position*. A client's training samples are the positions
``start .. start + size - 1``, its test samples another such range, and
``fedmom.data.batches`` turns positions into a batch. Images have one row per position; text
has one character per position, and a sample is the window that begins there, so overlapping
windows cost nothing. Where a client's samples do not lie side by side, a table ``at`` of
positions leads to them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import checked, checked_class, short
from fedmom.core.errors import FedMomError

Integers = NDArray[np.int64]  # positions, sizes, clients
ALIGNMENT = 64  # bytes: XLA shares memory that begins at a multiple, as mapped files do
Task = Literal["classes", "regression", "multilabel", "sequence"]
_LABELS: dict[Task, str] = {  # what ``Features.classes`` counts
    "classes": "classes",
    "regression": "values to predict",
    "multilabel": "labels",
    "sequence": "classes at every position",
}


@checked_class
class Features(NamedTuple):
    """What a model must accept and predict: the kind and shape of one input, and of its label.

    Args:
        kind: "vector", "image" or "text".
        shape: The shape of one input: (D,), (height, width), (height, width, channels), or the
            number of symbols in a window of text.
        classes: How many numbers a model returns for one input, or for one position of a
            sequence: the number of classes (of a text, of symbols), of values in regression, of
            labels in multi-label data.
        task: What the labels of a batch of N are. "classes": one class each, int32 (N,);
            "regression": values, float32 (N, classes), also where there is one;
            "multilabel": 0 or 1 for every label, int32 (N, classes); "sequence": a class at
            every position, int32 (N, positions), or -100 where it does not count.

    Examples:
        >>> Features("image", (28, 28), classes=62)
        Features(kind='image', shape=(28, 28), classes=62, task='classes')
    """

    kind: Literal["vector", "image", "text"]
    shape: tuple[int, ...]
    classes: int
    task: Task = "classes"


class Column(NamedTuple):
    """A column of a table whose values are inputs: its name, and what it holds.

    One of categories is as many numbers of an input, 1 for the category that a row has.
    """

    name: str
    kind: Literal["number", "bool", "list", "image", "category"]
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers of an input it is, if it does not hold lists or images."""
        return max(1, len(self.categories))


class Columns(NamedTuple):
    """The columns of the table that data was read from, by what they are.

    Args:
        inputs: Those of the inputs, in the order of an input's numbers.
        label: Those of the labels.
        others: Those of client ids and test marks.
    """

    inputs: tuple[Column, ...]
    label: tuple[str, ...]
    others: tuple[str, ...] = ()

    def kinds(self) -> dict[str, str]:
        """Return what the columns of inputs hold, by name."""
        return {column.name: column.kind for column in self.inputs}

    def plain(self) -> dict[str, Any]:
        """Return them for JSON; columns without categories as versions before these wrote them."""
        inputs = [column if column.categories else column[:2] for column in self.inputs]
        return {**self._asdict(), "inputs": inputs}


class Tokens(NamedTuple):
    """How sequences of different lengths, or texts, became inputs of one length.

    Args:
        padding: The whole number behind the end of shorter sequences.
        tokenizer: What made the tokens, for messages; None where they were given.
        vocabulary: How many tokens there are.
        fingerprint: A SHA-256 sum of all that the tokenizer consists of.
    """

    padding: int
    tokenizer: str | None = None
    vocabulary: int | None = None
    fingerprint: str | None = None


class Split(NamedTuple):
    """Per client: the first position of its samples, and how many there are."""

    start: Integers
    size: Integers

    def positions(self) -> Integers:
        """Return all positions, client after client."""
        first = np.cumsum(self.size) - self.size
        return np.arange(self.size.sum()) + np.repeat(self.start - first, self.size)

    def of(self, clients: Integers) -> "Split":
        """Return where the samples of some clients lie."""
        return Split(self.start[clients], self.size[clients])


def _check_names(what: str, names: Sequence[Any], split: Split) -> None:
    """Refuse names of clients that are neither texts nor whole numbers, or not one for each."""
    if len(names) != len(split.size):
        raise FedMomError(
            f"{what} has {len(names):,} names. It must have one for each of the"
            f" {len(split.size):,} clients."
        )
    if not isinstance(names, list | tuple | np.ndarray):
        return  # which makes names when it is asked for them
    wrong = [name for name in names if not isinstance(name, str | int | np.integer)]
    if wrong:
        raise FedMomError(f"{what} contains {short(wrong[0])}. Names are texts or whole numbers.")


@checked_class
@dataclass(frozen=True, eq=False, repr=False)
class FederatedData:
    """A population of clients with their training and test samples.

    ``fedmom.data.load`` and ``fedmom.data.from_arrays`` make one.

    Args:
        name: What the data is called in tables and figures.
        users: The clients' names, in the order of their numbers.
        features: What a model must accept.
        arrays: The samples of all clients: "x" and "y", or "text"; and "at", where samples are
            found by a table of positions.
        train: Where every client's training samples lie.
        test: Where every client's test samples lie.
        test_users: The names of the test clients, where they are others than ``users`` (LEAF's
            ``-t user``); otherwise None.
        class_names: What the classes, labels or symbols are called, in the order of their numbers;
            None where they are only numbers.
        columns: The columns of the table that it was read from; None where they have no names.
        tokens: How sequences of different lengths became inputs; None where they had one length.

    Raises:
        FedMomError: There are no clients, or one has no training samples.

    Examples:
        >>> from fedmom.data import load
        >>> data = load("synthetic:clients=3")
        >>> data
        <FederatedData synthetic: 3 clients, 410 training and 47 test samples, vector 60, 10 \
classes>
        >>> first = data.train.start[0]  # of client 0
        >>> data.arrays["x"][first : first + 2].shape
        (2, 60)
    """

    name: str
    users: Sequence[Any]
    features: Features
    arrays: dict[str, NDArray[Any]]
    train: Split
    test: Split
    test_users: Sequence[Any] | None = None
    class_names: Sequence[str] | None = None
    columns: Columns | None = None
    tokens: Tokens | None = None
    # Of the content, where a packed store knows it. Not given with the rest, so that
    # dataclasses.replace, which makes other data of this, does not hand it on.
    checksum: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Refuse a population that cannot be trained on, before any work is done."""
        _check_names("users", self.users, self.train)
        if self.test_users is not None:
            _check_names("test_users", self.test_users, self.test)
        if not len(self.users):
            raise FedMomError(f"{self.name} has no clients.")
        empty = np.flatnonzero(self.train.size < 1)
        if empty.size:
            raise FedMomError(
                f"{self.name}: client {self.users[int(empty[0])]!r} has no training samples"
                f" ({empty.size} such clients). Every client needs at least one; leave them out."
            )

    def __repr__(self) -> str:
        """Say what it is in a line: a notebook shows it."""
        features = self.features
        return (
            f"<{type(self).__name__} {self.name}: {self.clients:,} clients,"
            f" {int(self.train.size.sum()):,} training and {int(self.test.size.sum()):,} test"
            f" samples, {features.kind} {'x'.join(map(str, features.shape))},"
            f" {features.classes} {_LABELS[features.task]}>"
        )

    @property
    def clients(self) -> int:
        """K, the number of clients."""
        return len(self.users)

    @checked
    def split(self, name: str) -> Split:
        """Return a split.

        Args:
            name: ``train`` or ``test``.

        Returns:
            Where each client's samples of the split are.
        """
        if name not in ("train", "test"):
            raise FedMomError(f"split: name is {short(name)}. It must be 'train' or 'test'.")
        return self.train if name == "train" else self.test


def capacity(arrays: Mapping[str, NDArray[Any]], shape: tuple[int, ...]) -> int:
    """Return how many samples of a shape arrays can hold."""
    if "at" in arrays:
        return len(arrays["at"])
    return max(0, len(arrays["text"]) - shape[0]) if "text" in arrays else len(arrays["y"])


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that JAX can share: itself, or a copy that begins where XLA wants it."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = _aligned_room(array.shape, array.dtype)
    copy[...] = array
    return copy


def aligned_rows(array: NDArray[Any], rows: Integers) -> NDArray[Any]:
    """Return ``array[rows]`` where JAX can share it: large data is copied once, not twice."""
    copy = _aligned_room((len(rows), *array.shape[1:]), array.dtype)
    np.take(array, rows, axis=0, out=copy, mode="clip")  # "raise" would take room for another
    return copy


def _aligned_room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + size].view(dtype).reshape(shape)
