"""Columns of categories: texts, whole numbers or bools of which each becomes an input of 0 and 1.

The categories of a column are in the schema of the data, so that others are refused later.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.data.federated import Column, Columns
from fedmom.data.rows.values import listed, refuse_row

MOST = 1000  # categories of a column: more are names or numbers of single things


def coded(
    what: str, values: NDArray[Any], known: Sequence[str] | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the numbers of a column's categories, and the categories.

    Args:
        what: What the column is called in messages.
        values: The column.
        known: All categories, where they are known. By default those that occur, sorted.
    """
    if values.ndim > 1 or values.dtype.kind not in "OUiub":
        raise FedMomError(
            f"{what} cannot be categories: it holds {values.dtype}. They are texts, whole numbers"
            " or bools."
        )
    found, places = np.unique(values, return_inverse=True)
    names = tuple(str(value) for value in found.tolist())
    known = names if known is None else tuple(known)
    if len(known) > MOST:
        raise FedMomError(
            f"{what} has {len(known):,} different values, and {MOST:,} categories are the most. Put"
            " rare ones together, or exclude the column with features=."
        )
    numbers = {name: number for number, name in enumerate(known)}
    codes = np.array([numbers.get(name, -1) for name in names], np.int64)[places]
    refuse_row(f"{what}: the value", codes < 0, values, f"one of its categories: {listed(known)}")
    return codes, known


def spread(codes: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Write 1 where a row has the category, and 0 where it has another."""
    out[...] = 0
    out[np.arange(len(codes)), codes] = 1


def in_order(
    what: str, x: NDArray[Any], here: Columns, wanted: Columns, order: Sequence[int]
) -> NDArray[Any]:
    """Return inputs with the columns and categories that a model was trained on.

    Args:
        what: What the data is called in messages.
        x: The inputs.
        here: Their columns.
        wanted: The columns in training, of the same names and kinds.
        order: Which column of ``here`` each of these is.
    """
    widths = [column.width for column in here.inputs]
    firsts = np.cumsum(widths) - widths
    takes: list[int] = []
    for column, place in zip(wanted.inputs, order, strict=True):
        own = here.inputs[place].categories
        first = int(firsts[place])
        _check_known(f"{what}: column {column.name!r}", x, first, own, column)
        at = {name: first + number for number, name in enumerate(own)}
        takes += [at.get(name, -1) for name in column.categories] or [first]
    if takes == list(range(x.shape[1])):
        return x
    found = x[:, takes]
    found[:, np.array(takes) < 0] = 0
    return found


def _check_known(
    what: str, x: NDArray[Any], first: int, own: Sequence[str], column: Column
) -> None:
    for number, name in enumerate(own):
        rows = x[:, first + number] if name not in column.categories else np.zeros(0)
        if rows.any():
            raise FedMomError(
                f"{what} has {name!r} in {int(rows.sum()):,} rows. It must be one of its"
                f" categories in training: {listed(column.categories)}."
            )
