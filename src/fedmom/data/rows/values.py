"""Values of a user's data: made plain, refused with their row, and what labels stand for."""

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom.core.errors import FedMomError
from fedmom.data.federated import Task

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


LARGEST_LABEL = 2**31 - 2
TASKS: tuple[Task, ...] = get_args(Task)
ALLOWED = (
    "Labels may be whole numbers, texts or bools (classes), floats (regression), a matrix of 0 and"
    " 1 (several labels), or a class at every position of a sequence"
)


class Labels(NamedTuple):
    """Labels as ``Features.task`` describes them.

    Args:
        values: One row of labels for every sample.
        classes: How many numbers a model returns for one sample, or for one position.
        task: What they are.
        names: What the classes are called, where they are more than numbers.
    """

    values: NDArray[Any]
    classes: int
    task: Task
    names: tuple[str, ...] | None = None


def read_labels(
    name: str, y: NDArray[Any], inputs: tuple[int, ...], task: Task | None = None
) -> Labels:
    """Find out what labels are, and bring them into their form.

    Args:
        name: What the data is called in messages.
        y: One row of labels for every sample.
        inputs: The shape of one input.
        task: What they are, where the user says so.
    """
    if task is not None and task not in TASKS:
        raise FedMomError(f"{name}: there is no task {task!r}. Choose one of: {', '.join(TASKS)}.")
    y = as_plain(f"{name}: labels", y)
    if y.ndim not in (1, 2) or y.dtype.kind not in "biufUST":
        raise FedMomError(
            f"{name}: labels are an array of type {y.dtype} and {y.ndim} dimensions. {ALLOWED}."
        )
    task = task or _guessed(name, y, inputs)
    if task == "regression":
        return _regression(name, y)
    if (y.ndim == 1) != (task == "classes") or (task == "sequence" and y.shape[1] != inputs[0]):
        shapes = {
            "classes": f"{(len(y),)}, a class for every row",
            "multilabel": f"({len(y)}, labels), 0 or 1 for every label",
            "sequence": f"{(len(y), inputs[0])}, a class at every position of an input",
        }
        raise FedMomError(
            f"{name}: labels have the shape {y.shape}; task {task} needs {shapes[task]}."
        )
    return _multilabel(name, y) if task == "multilabel" else _classes(name, y, task)


def _guessed(name: str, y: NDArray[Any], inputs: tuple[int, ...]) -> Task:
    """Return the task that labels stand for where nobody has said it."""
    if y.dtype.kind == "f":
        return "regression"
    if y.ndim == 1:
        return "classes"
    like_inputs = y.shape[1] == inputs[0] and y.shape[1] > 1
    binary = y.dtype.kind == "b" or (y.dtype.kind in "iu" and bool(((y == 0) | (y == 1)).all()))
    if binary and not (like_inputs and y.dtype.kind != "b") and y.shape[1] > 1:
        return "multilabel"
    if like_inputs and not binary:
        return "sequence"
    raise FedMomError(
        f"{name}: labels of shape {y.shape} for inputs of shape {inputs} may be several things."
        " Say which: task=multilabel (0 or 1 for every label) or task=sequence (a class at every"
        " position); or give one label for every row."
    )


def _regression(name: str, y: NDArray[Any]) -> Labels:
    if y.dtype.kind not in "biuf":
        raise FedMomError(f"{name}: labels of type {y.dtype} are not numbers. {ALLOWED}.")
    values = as_floats(f"{name}: the label", y).reshape(len(y), -1)
    return Labels(values, values.shape[1], "regression")


def _multilabel(name: str, y: NDArray[Any]) -> Labels:
    if y.dtype.kind not in "biuf":
        raise FedMomError(f"{name}: labels of type {y.dtype} are not 0 and 1. {ALLOWED}.")
    refuse_row(f"{name}: the label", (y != 0) & (y != 1), y, "0 or 1")
    return Labels(y.astype(np.int32), y.shape[1], "multilabel")


def _classes(name: str, y: NDArray[Any], task: Task) -> Labels:
    """Number classes: whole numbers from 0 stay as they are, all others go by their order."""
    if y.dtype.kind == "f":
        refuse_row(f"{name}: the label", y != np.rint(y), y, "a whole number, as task classes asks")
        refuse_row(f"{name}: the label", abs(y) > LARGEST_LABEL, y, f"at most {LARGEST_LABEL}")
        y = y.astype(np.int64)
    if y.dtype.kind == "b":
        return Labels(y.astype(np.int32), 2, task, ("False", "True"))
    if y.dtype.kind in "iu" and y.min() >= 0:
        allowed = f"at most {LARGEST_LABEL}. Number the classes anew, or give them as texts"
        refuse_row(f"{name}: the label", y > LARGEST_LABEL, y, allowed)
        return Labels(y.astype(np.int32), int(y.max()) + 1, task)
    found, places = np.unique(y, return_inverse=True)
    numbers = places.reshape(y.shape).astype(np.int32)
    return Labels(numbers, len(found), task, tuple(map(str, found)))
