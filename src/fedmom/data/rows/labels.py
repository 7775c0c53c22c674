"""The labels of a user's data: what they are, and in which form they are kept."""

from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.data.federated import Task
from fedmom.data.rows.values import as_floats, as_plain, refuse_row

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
        refuse_row(
            f"{name}: the label",
            y > LARGEST_LABEL,
            y,
            f"at most {LARGEST_LABEL}. Number the classes anew, or give them as texts",
        )
        return Labels(y.astype(np.int32), int(y.max()) + 1, task)
    found, places = np.unique(y, return_inverse=True)
    return Labels(
        places.reshape(y.shape).astype(np.int32), len(found), task, tuple(map(str, found))
    )
