"""Sequences of different lengths -> an array, filled up behind the end of shorter ones."""

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.core.validation import check_memory
from fedmom.data.rows.values import COUNTED, as_array, as_plain


class Padded(NamedTuple):
    """Rows of one length, and which of their places were given."""

    values: NDArray[Any]
    given: NDArray[np.bool_]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many values each row was given."""
        return np.asarray(self.given.sum(1))


def padded(what: str, rows: Any, fill: int, length: int | None = None) -> Padded:
    """Return rows of one length.

    Args:
        what: What the rows are called in messages.
        rows: Lists or arrays of one dimension, one for every row.
        fill: What stands behind the end of a shorter row; of texts, any text does.
        length: How long rows become. By default, as long as the longest.

    Examples:
        >>> padded("x", [[3, 4], [5]], fill=0).values.tolist()
        [[3, 4], [5, 0]]
    """
    if not hasattr(rows, "__iter__"):
        raise FedMomError(f"{what} is {short(rows)}. It must be a list of lists.")
    lists = [_listed(what, number, row) for number, row in enumerate(rows)]
    lengths = np.array([len(row) for row in lists], np.int64)
    longest = int(lengths.max(initial=0))
    length = longest if length is None else length
    if not longest:
        raise FedMomError(f"{what} has no values. Every row must have at least one.")
    for wrong, why in ((lengths == 0, "is empty"), (lengths > length, "is too long")):
        if wrong.any():
            row = int(np.argmax(wrong))
            raise FedMomError(
                f"{what}: row {row} {why} {COUNTED}. It must have from 1 to {length} values."
            )
    check_memory(what, 8 * len(lists) * length, "Cut long rows, or use fewer.")
    values = as_plain(what, as_array(what, list(chain.from_iterable(lists))))
    given = np.arange(length) < lengths[:, None]
    out = np.full(given.shape, values[0] if values.dtype.kind == "O" else fill, values.dtype)
    out[given] = values
    return Padded(out, given)


def _listed(what: str, number: int, row: Any) -> list[Any]:
    found = row.tolist() if hasattr(row, "tolist") else row
    if not isinstance(found, list | tuple):
        raise FedMomError(
            f"{what}: row {number} is {short(row)} {COUNTED}. It must be a list of values."
        )
    for place, value in enumerate(found):
        if not isinstance(value, int | np.integer | str):
            raise FedMomError(
                f"{what}: place {place} of row {number} is {short(value)} {COUNTED}. Sequences of"
                " different lengths are lists of whole numbers or, of labels, of texts."
            )
    return list(found)


def padded_tokens(what: str, rows: Any, fill: int, length: int | None = None) -> Padded:
    """Return sequences of whole numbers, none of which is the one that fills them up.

    The arguments are those of ``padded``.
    """
    found = padded(what, rows, fill, length)
    if found.values.dtype.kind not in "iu":
        raise FedMomError(
            f"{what}: row 0 is {short(rows[0])}. Sequences of different lengths are lists of whole"
            " numbers."
        )
    wrong = (found.values == fill) & found.given
    if wrong.any():
        row, place = np.argwhere(wrong)[0].tolist()
        raise FedMomError(
            f"{what}: row {row} has pad={fill} at place {place} {COUNTED}, so that it could not be"
            " told from padding. Choose a number that no input has."
        )
    return found
