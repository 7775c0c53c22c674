"""Values of a user's data: converted to plain types, or refused with the row they are in."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom.core.errors import FedMomError

PLAIN = (str, bool, int, float, np.generic)
COUNTED = "(rows are counted from 0)"


def as_array(what: str, values: ArrayLike) -> NDArray[Any]:
    """Return an array; rows of different lengths and the like are refused."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise FedMomError(f"{what} cannot be made an array: {error}.") from None


def as_plain(what: str, array: NDArray[Any]) -> NDArray[Any]:
    """Turn an array of Python objects, as pandas has them, into one of numbers, bools or texts.

    Args:
        what: What it holds, for messages.
        array: The array. Other types than objects are returned as they are.
    """
    if array.dtype.kind != "O":
        return array
    flat = array.ravel()
    kinds = {type(value) for value in flat}
    for kind in kinds:
        if not issubclass(kind, PLAIN):
            row = next(i for i, v in enumerate(flat) if type(v) is kind)
            raise FedMomError(
                f"{what}: row {row // max(1, flat.size // len(array))} is {_short(flat[row])}"
                f" {COUNTED}. Every row must be a number or a text; fill it in or leave it out."
            )
    texts = [kind for kind in kinds if issubclass(kind, str)]
    if texts and len(texts) < len(kinds):
        raise FedMomError(f"{what} mix texts and numbers. Make all of them one or the other.")
    # NumPy's texts of variable length: one long text does not make all rows long.
    return np.array(array.tolist(), np.dtypes.StringDType() if texts else None)


def refuse_row(what: str, wrong: NDArray[np.bool_], values: NDArray[Any], allowed: str) -> None:
    """Refuse values by the first row that has a wrong one.

    Args:
        what: What a value is, such as "data: the label".
        wrong: True where a value is wrong; one row for every row of ``values``.
        values: The values.
        allowed: What a value must be.
    """
    rows = wrong.reshape(len(wrong), -1)
    bad = np.asarray(rows.any(axis=1))
    if not bad.any():
        return
    row = int(np.argmax(bad))
    column = int(np.argmax(rows[row]))
    where = f"row {row}, column {column}" if values.ndim == 2 else f"row {row}"
    value = values.reshape(len(values), -1)[row, column]
    raise FedMomError(
        f"{what} of {where} is {_short(value)}{others_like(bad)}. It must be {allowed}."
    )


def as_floats(what: str, values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as floats of 32 bits; those that are not finite, or too large, are refused."""
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32)
    refuse_row(what, ~np.isfinite(floats), values, "finite as a 32-bit float")
    return floats


def others_like(bad: NDArray[np.bool_]) -> str:
    """Say how many other rows have the fault, and how rows are counted."""
    others = int(bad.sum()) - 1
    return f" {COUNTED}" if not others else f", as {others:,} other rows have it {COUNTED}"


def _short(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def numbers_or_texts(texts: Sequence[str]) -> NDArray[Any]:
    """Return whole numbers where all texts are such ("7", not "007"), else the texts."""
    if all(is_whole(text) for text in set(texts)):
        return np.array([int(text) for text in texts])
    return np.array(texts, object)


def is_whole(text: str) -> bool:
    """Return whether a text is a whole number, written as Python writes it."""
    return len(text) < 19 and text.lstrip("-").isdecimal() and str(int(text)) == text
