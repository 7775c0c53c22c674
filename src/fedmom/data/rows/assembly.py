"""Rows of a user's own -> a population: the one place where all readers' options are applied.

Every reader of a user's data (arrays, tables, datasets of other libraries, folders of images)
ends here, so that ``is_test``, ``test_fraction``, ``partition`` and ``seed`` mean the same in all.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.data.federated import Features, FederatedData, Split, aligned_rows
from fedmom.data.partition import dealt
from fedmom.data.rows.client_ids import Owners
from fedmom.data.rows.labels import Labels
from fedmom.data.rows.values import refuse_row

MARKS = {"train": False, "training": False, "test": True}


class NoClientsError(FedMomError):
    """Data has neither client ids nor a partition that would make clients."""


def assemble(
    name: str,
    x: NDArray[Any],
    labels: Labels,
    clients: Owners | None,
    *,
    is_test: NDArray[Any] | None = None,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: int = 0,
) -> FederatedData:
    """Lay rows out client after client, each one's training rows first.

    Args:
        name: What the data is called.
        x: One input for every row, as ``inputs`` makes them.
        labels: The labels.
        clients: The client of every row; None where ``partition`` makes clients.
        is_test: True for test rows.
        test_fraction: In place of ``is_test``: this share of every client's rows, drawn at
            random and rounded, is for testing. One row at least stays for training.
        partition: How rows are dealt to clients, such as ``dirichlet:alpha=0.3,clients=100``.
        seed: The seed of both draws.
    """
    check_division(name, clients is not None, is_test is not None, test_fraction, partition, seed)
    marks = np.zeros(len(x), bool) if is_test is None else _marks(name, is_test)
    _check_lengths(name, x, labels, clients, marks)
    if clients is None:
        assert partition is not None
        by = labels.values if labels.task == "classes" else None
        rows = dealt(partition, by, marks, seed)
        clients = Owners([f"client{k}" for k in range(int(rows.max()) + 1)], rows)
    users, rows = clients
    if test_fraction is not None:
        marks = _drawn(rows, test_fraction, seed)
    order = np.lexsort((marks, rows))  # by client, its training rows first
    train, test = (np.bincount(rows[marks == m], minlength=len(users)) for m in (False, True))
    begin = np.cumsum(train + test) - train - test
    image = x.ndim > 2 and labels.task != "sequence"
    return FederatedData(
        name=name,
        users=users,
        features=Features("image" if image else "vector", x.shape[1:], labels.classes, labels.task),
        arrays={"x": aligned_rows(x, order), "y": aligned_rows(labels.values, order)},
        train=Split(begin, train),
        test=Split(begin + train, test),
        class_names=labels.names,
    )


def check_division(
    name: str,
    ids: bool,
    marked: bool,
    test_fraction: float | None,
    partition: str | None,
    seed: int,
) -> None:
    """Refuse options that contradict each other, before anything is read where that is long."""
    if ids and partition is not None:
        raise FedMomError(
            f"{name}: there are client ids, and partition={partition} would make other clients."
            " Give one of the two."
        )
    if not ids and partition is None:
        raise NoClientsError(
            f"{name}: who has which row? Give client ids (of a table, client=COLUMN), or have the"
            " rows dealt: partition=iid:clients=10 (`fedmom data list` shows all partitions)."
        )
    if marked and test_fraction is not None:
        raise FedMomError(
            f"{name}: test rows are marked already, and test_fraction={test_fraction} would draw"
            " others. Give one of the two."
        )
    if test_fraction is not None and not (math.isfinite(test_fraction) and 0 < test_fraction < 1):
        raise FedMomError(f"{name}: test_fraction={test_fraction} must be above 0 and below 1.")
    if seed < 0:
        raise FedMomError(f"{name}: seed={seed} must be 0 or more.")


def inputs(name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return inputs in a type that JAX keeps: whole numbers stay whole, so tokens can be looked up.

    Bytes are taken for the grey levels of images.
    """
    if x.ndim < 1 or x.dtype.kind not in "biuf":
        raise FedMomError(
            f"{name}: x is an array of type {x.dtype} and {x.ndim} dimensions. It must hold"
            " numbers: whole ones, floats or bools, not complex ones."
        )
    if not x.size:
        raise FedMomError(f"{name} has no rows, or its rows have no values.")
    if x.ndim == 1:
        x = x[:, None]
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind in "bf":
        with np.errstate(over="ignore"):
            floats = x.astype(np.float32)
        refuse_row(f"{name}: a value in x", ~np.isfinite(floats), x, "finite as a float of 32 bits")
        return floats
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
        known = [MARKS.get(str(v).lower(), None if isinstance(v, str) else v) for v in is_test]
        wrong = np.array([v is None or v not in (0, 1) for v in known])
        refuse_row(f"{name}: is_test", wrong, is_test, allowed)
        return np.array(known, bool)
    if is_test.ndim != 1 or is_test.dtype.kind not in "biuf":
        raise FedMomError(
            f"{name}: is_test is an array of type {is_test.dtype} and {is_test.ndim} dimensions."
            f" It must be a list, each {allowed}."
        )
    refuse_row(f"{name}: is_test", (is_test != 0) & (is_test != 1), is_test, allowed)
    return is_test.astype(bool)


def _check_lengths(
    name: str,
    x: NDArray[Any],
    labels: Labels,
    clients: Owners | None,
    marks: NDArray[np.bool_],
) -> None:
    rows = {"x": len(x), "y": len(labels.values), "is_test": len(marks)}
    if clients is not None:
        rows["client ids"] = len(clients.rows)
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{what} has {count:,}" for what, count in rows.items())
        raise FedMomError(f"{name}: the numbers of rows must be equal, but {found}.")


def _drawn(rows: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Draw a share of every client's rows, and leave it one at least."""
    sizes = np.bincount(rows)
    shuffled = np.lexsort((np.random.default_rng((seed, 2)).random(rows.size), rows))
    rank = np.arange(rows.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wanted = np.minimum(np.rint(fraction * sizes), sizes - 1)
    marks = np.empty(rows.size, bool)
    marks[shuffled] = rank < np.repeat(wanted, sizes)
    return marks
