"""A user's rows -> a population: the one place where all readers' options are applied.

Every reader of a user's data (arrays, tables, datasets of other libraries, folders of images)
ends here, so that client ids, ``is_test``, ``test_fraction``, ``partition`` and ``seed`` mean the
same in all of them.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.data.federated import Features, FederatedData, Integers, Split, aligned, aligned_rows
from fedmom.data.leaf_sampling import shuffled_places
from fedmom.data.partition import client_names, dealt
from fedmom.data.rows.values import (
    COUNTED,
    LARGEST_LABEL,
    NUMBERS,
    Labels,
    as_floats,
    is_whole,
    refuse_row,
)

MARKS = {"train": False, "training": False, "test": True}


class NoClientsError(FedMomError):
    """Data has neither client ids nor a partition that would make clients."""


class Owners(NamedTuple):
    """The clients' names, and the number of its client for every row."""

    users: Sequence[str]
    rows: Integers


class Division(NamedTuple):
    """How rows are divided into clients, and into training and testing.

    Args:
        test_fraction: This share of every client's rows, drawn at random and rounded, is for
            testing. At least one row stays for training. None: no rows are drawn.
        partition: How rows are dealt to clients, such as ``dirichlet:alpha=0.3,clients=100``.
        seed: The seed of both draws.
    """

    test_fraction: float | None
    partition: str | None
    seed: int

    def check(self, name: str, *, ids: bool, marked: bool = False) -> None:
        """Refuse options that contradict each other, before slow reading begins.

        Args:
            name: What the data is called in messages.
            ids: Whether the rows have client ids.
            marked: Whether the rows say which of them are for testing.
        """
        fraction = self.test_fraction
        if ids and self.partition is not None:
            raise FedMomError(
                f"{name} has clients already, and partition={self.partition} would make others."
                " Give one of the two."
            )
        if not ids and self.partition is None:
            raise NoClientsError(
                f"{name}: no client IDs given. Give them (tables: client=COLUMN; images: folders"
                " client/class/image), or have the rows dealt: partition=iid:clients=10 (`fedmom"
                " data list` shows all partitions)."
            )
        if marked and fraction is not None:
            raise FedMomError(
                f"{name}: test rows are already marked, and test_fraction={fraction} would draw"
                " others. Give one of the two."
            )
        if fraction is not None and not (math.isfinite(fraction) and 0 < fraction < 1):
            raise FedMomError(f"{name}: test_fraction={fraction} must be above 0 and below 1.")
        if self.seed < 0:
            raise FedMomError(f"{name}: seed={self.seed} must be at least 0.")


def assemble(
    name: str,
    x: NDArray[Any],
    labels: Labels,
    clients: Owners | None,
    division: Division,
    is_test: NDArray[Any] | None = None,
) -> FederatedData:
    """Lay rows out client after client, each one's training rows first.

    Args:
        name: What the data is called.
        x: One input for every row, as ``inputs`` makes them.
        labels: The labels.
        clients: The client of every row; None where the division's partition makes clients.
        division: How rows are divided.
        is_test: True for test rows.
    """
    division.check(name, ids=clients is not None, marked=is_test is not None)
    marks = np.zeros(len(x), bool) if is_test is None else _marks(name, is_test)
    ids = None if clients is None else clients.rows
    check_rows(name, {"x": x, "y": labels.values, "client_ids": ids, "is_test": is_test})
    if clients is None:
        assert division.partition is not None
        by = labels.values if labels.task == "classes" else None
        rows = dealt(division.partition, by, marks, division.seed)
        clients = Owners(client_names(rows), rows)
    users, rows = clients
    if division.test_fraction is not None:
        marks = _drawn(rows, division.test_fraction, division.seed)
    order = np.lexsort((marks, rows))  # by client, its training rows first
    train, test = (np.bincount(rows[marks == m], minlength=len(users)) for m in (False, True))
    begin = np.cumsum(train + test) - train - test
    kind: Literal["image", "vector"]
    kind = "image" if x.ndim > 2 and labels.task != "sequence" else "vector"
    features = Features(kind, x.shape[1:], labels.classes, labels.task)
    arrays = {"x": aligned_rows(x, order), "y": aligned_rows(labels.values, order)}
    parts = Split(begin, train), Split(begin + train, test)
    return FederatedData(name, users, features, arrays, *parts, class_names=labels.names)


def check_rows(name: str, arrays: Mapping[str, NDArray[Any] | None]) -> None:
    """Refuse arrays of different numbers of rows; None stands for one that was not given."""
    given = {what: array for what, array in arrays.items() if array is not None}
    for what, array in given.items():
        if not array.ndim:
            raise FedMomError(
                f"{name}: {what} is {short(array)}. It must have one item for every row."
            )
    if len({len(array) for array in given.values()}) > 1:
        found = ", ".join(f"{what} has {len(array):,}" for what, array in given.items())
        raise FedMomError(f"{name}: the numbers of rows must be equal, but {found}.")


def numbered_as_labelled(data: FederatedData) -> FederatedData:
    """Return data whose class 7 is the label 7, also where labels are missing.

    The devices of a run have some of its classes each, and all of them must number these alike.
    """
    names = data.class_names or ()
    if data.features.task != "classes" or not names:
        return data
    if not all(is_whole(name) and 0 <= int(name) <= LARGEST_LABEL for name in names):
        return data
    numbers = np.array([int(name) for name in names], np.int32)
    arrays = {**data.arrays, "y": aligned(numbers[data.arrays["y"]])}
    features = data.features._replace(classes=int(numbers.max()) + 1)
    return replace(data, features=features, arrays=arrays, class_names=None)


def inputs(name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return inputs in a type that JAX keeps: whole numbers stay whole, so tokens can be looked up.

    Bytes are taken for the grey levels of images.
    """
    if x.dtype.kind not in "biuf":
        kind = "texts" if x.dtype.kind in "UO" else f"values of type {x.dtype}"
        raise FedMomError(
            f"{name}: x holds {kind}. It must hold numbers: whole ones, floats or bools, not"
            " complex ones."
        )
    if not x.size:
        raise FedMomError(f"{name} has no rows, or its rows have no values.")
    if x.ndim == 1:
        x = x[:, None]
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind in "bf":
        return as_floats(f"{name}: a value in x", x)
    bounds = np.iinfo(np.int32)
    if x.min() < bounds.min or x.max() > bounds.max:
        raise FedMomError(
            f"{name}: x has whole numbers from {x.min()} to {x.max()}, which do not all fit 32"
            " bits. Give x as floats, or number its values anew."
        )
    return x.astype(np.int32)


def _marks(name: str, is_test: NDArray[Any]) -> NDArray[np.bool_]:
    """Read which rows are for testing: bools, 0 and 1, or "train" and "test"."""
    allowed = "True or False, 1 or 0, 'test' or 'train'"
    if is_test.dtype.kind in "UTO" and is_test.ndim == 1:
        known = [MARKS.get(v.lower()) if isinstance(v, str) else v for v in is_test.tolist()]
        wrong = np.array([not isinstance(v, NUMBERS) or v not in (0, 1) for v in known])
        refuse_row(f"{name}: is_test", wrong, is_test, allowed)
        return np.array(known, bool)
    if is_test.ndim != 1 or is_test.dtype.kind not in "biuf":
        raise FedMomError(
            f"{name}: is_test is an array of type {is_test.dtype} and {is_test.ndim} dimensions."
            f" It must be a list, each {allowed}."
        )
    refuse_row(f"{name}: is_test", (is_test != 0) & (is_test != 1), is_test, allowed)
    return is_test.astype(bool)


def _drawn(rows: Integers, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Draw a share of every client's rows, and leave it one at least."""
    sizes = np.bincount(rows)
    wanted = np.minimum(np.rint(fraction * sizes), sizes - 1)
    return shuffled_places(rows, np.random.default_rng((seed, 2))) < wanted[rows]


def owners(name: str, ids: NDArray[Any], users: Sequence[str] | None = None) -> Owners:
    """Name clients by their ids, in sorted order.

    Args:
        name: What the data is called in messages.
        ids: The client of every row: whole numbers or texts.
        users: The clients' names, where ids are their numbers from 0.
    """
    if ids.ndim != 1 or ids.dtype.kind not in "biufUSTO":
        raise FedMomError(
            f"{name}: client ids are an array of type {ids.dtype} and {ids.ndim} dimensions. They"
            " must be a list of whole numbers or texts, one for every row."
        )
    if ids.dtype.kind == "f":
        refuse_row(f"{name}: the client id", ~np.isfinite(ids), ids, "a whole number or a text")
    if users is not None:
        if ids.dtype.kind not in "iu" or (ids.size and (ids.min() < 0 or ids.max() >= len(users))):
            raise FedMomError(f"{name}: client ids must be 0..{len(users) - 1}, one for each user.")
        return Owners(checked_names(name, users), ids.astype(np.int64))
    if ids.dtype.kind == "O":
        return _of_objects(name, ids.tolist())
    found, rows = np.unique(ids, return_inverse=True)
    texts = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in found]
    return Owners(checked_names(name, texts), rows.astype(np.int64))


def checked_names(name: str, users: Sequence[str]) -> Sequence[str]:
    """Refuse names that two clients share, or that cannot be written to a file."""
    for user, times in Counter(users).most_common(1):
        if times > 1:
            raise FedMomError(f"{name}: two clients are called {user!r}. Give each its own name.")
    for user in users:
        try:
            user.encode()
        except UnicodeEncodeError:
            raise FedMomError(
                f"{name}: the client id {user!r} cannot be written as UTF-8. Rename it."
            ) from None
    return users


def _of_objects(name: str, ids: list[Any]) -> Owners:
    """Number ids of Python's own types. 1 and "1" are two ids of one name, and refused."""
    named: dict[str, Any] = {}
    texts = [str(value) for value in ids]
    for row, (text, value) in enumerate(zip(texts, ids, strict=True)):
        if not isinstance(value, (str, int, np.integer)):
            raise FedMomError(
                f"{name}: the client id of row {row} is {value!r} {COUNTED}. It must be a whole"
                " number or a text; fill it in, or leave the row out."
            )
        other = named.setdefault(text, value)
        if isinstance(other, str) != isinstance(value, str):
            raise FedMomError(
                f"{name}: the client ids {other!r} and {value!r} (row {row}) would have one name."
                " Make all ids texts, or all of them numbers."
            )
    whole = not any(isinstance(value, str | bool) for value in named.values())
    users = sorted(named, key=named.__getitem__) if whole else sorted(named)
    place = {user: k for k, user in enumerate(users)}
    rows = np.fromiter((place[text] for text in texts), np.int64, len(ids))
    return Owners(checked_names(name, users), rows)
