"""Values of a user's data: made plain, refused with their row, and what labels stand for."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.data.federated import Task

TEXTS = (str, np.str_)
WHOLE = (int, np.integer)
NUMBERS = (*WHOLE, float, np.floating)
MISSING = frozenset(("nan", "NaN", "NaT", "<NA>"))
COUNTED = "(rows are counted from 0)"
# What is given as one item for every row. Type checkers see what NumPy takes; `as_array` checks it.
if TYPE_CHECKING:
    Rows = ArrayLike
else:
    Rows = Any


def as_array(what: str, values: Rows) -> NDArray[Any]:
    """Return the array that a user's values are: of NumPy, pandas, JAX or PyTorch, or a list.

    Texts, and a list of several types, become an array of objects: NumPy alone would make
    ``["1", 1]`` two equal texts, and ``"nan"`` of a missing one.

    Args:
        what: What they are, for messages.
        values: One item for every row.

    Raises:
        FedMomError: They are of another kind, ragged, or masked in a row.

    Examples:
        >>> as_array("ids", ["a", None]).tolist(), as_array("ids", [2, 1]).tolist()
        (['a', None], [2, 1])
    """
    if hasattr(values, "toarray"):
        raise FedMomError(
            f"{what} is a sparse {type(values).__name__}. Make it dense: give its .toarray()."
        )
    listed = isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray)
    if (
        not listed
        and not hasattr(values, "__array__")
        and not hasattr(values, "__array_interface__")
    ):
        raise FedMomError(
            f"{what} is {short(values)}. It must be an array or a list, with an item for every row."
        )
    try:
        array = _of_list(values) if listed else _of_one(values)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise FedMomError(f"{what} cannot be made an array: {_why(values, error)}.") from None
    if isinstance(array, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(array).reshape(len(array), -1).any(axis=1)
        if masked.any():
            row, others = int(np.argmax(masked)), others_like(np.asarray(masked))
            raise FedMomError(
                f"{what}: row {row} has a masked value{others}. Fill it in, or leave the row out."
            )
        array = array.data
    return array


def refuse_missing(what: str, array: NDArray[Any]) -> None:
    """Refuse texts that other programs write where a value is missing: they are no name."""
    if array.dtype.kind in "UO" and not MISSING.isdisjoint(array.flat):
        allowed = "there: fill it in, leave the row out, or rename it if it is a name"
        refuse_row(what, np.isin(array, [*MISSING]), array, allowed)


def _of_list(values: Any) -> NDArray[Any]:
    items = [_of_tensor(v) if _is_tensor(v) else v for v in values]
    if any(item is np.ma.masked for item in items):
        return np.ma.array(np.zeros(len(items)), mask=[item is np.ma.masked for item in items])
    if _has_masked(items):
        return np.ma.array([_of_list(v) if isinstance(v, list | tuple) else v for v in items])
    array = np.asarray(items)
    kinds = set(map(type, items))
    changed = array.ndim == 1 and (len(kinds) > 1 or (array.dtype.kind == "f" and kinds == {int}))
    return np.array(items, object) if array.dtype.kind in "USc" or changed else array


def _of_one(values: Any) -> NDArray[Any]:
    array = np.asanyarray(_of_tensor(values) if _is_tensor(values) else values)
    if array.dtype.kind == "O" and array.ndim == 1 and all(map(_is_row, array)):
        return _of_list(array.tolist())
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    if array.dtype.kind == "T":
        return array.astype(object)
    if array.dtype.kind == "V" and array.dtype.type is not np.void and array.dtype.names is None:
        return array.astype(np.int8 if "int" in array.dtype.name else np.float32)  # as bfloat16
    return array


def _has_masked(items: Sequence[Any]) -> bool:
    return any(isinstance(item, np.ma.MaskedArray) for item in items) or any(
        _has_masked(item) for item in items if isinstance(item, list | tuple)
    )


def _is_row(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray) or _is_tensor(value)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach")


def _of_tensor(value: Any) -> NDArray[Any]:
    """Return the array of a torch tensor, without importing torch, which takes seconds."""
    value = value.detach().cpu()
    try:
        array: NDArray[Any] = value.numpy()
    except TypeError:  # bfloat16, which NumPy does not have
        array = value.float().numpy()
    return array


def _why(values: Any, error: Exception) -> str:
    """Say which row differs from the first; otherwise what NumPy says."""
    with contextlib.suppress(Exception):
        shapes = [np.shape(value) for value in values]
        row = next(row for row, shape in enumerate(shapes) if shape != shapes[0])
        return f"row {row} has the shape {shapes[row]}, and row 0 has {shapes[0]} {COUNTED}"
    return f"{error}".rstrip(".")


def as_plain(what: str, array: NDArray[Any]) -> NDArray[Any]:
    """Turn an array of Python objects, as pandas has them, into one of numbers or bools.

    Texts stay objects.

    Args:
        what: What it holds, for messages.
        array: The array. One of another type is returned as it is.
    """
    if array.dtype.kind != "O":
        return array
    flat = array.ravel()
    width = max(1, flat.size // max(1, len(array)))
    words = {kind: _word(kind) for kind in set(map(type, flat))}
    for place, value in enumerate(flat) if None in words.values() else ():
        if words[type(value)] is None:
            _refuse_missing(what, place // width, value)
    found = sorted(set(words.values()))  # type: ignore[type-var]
    if len(found) > 1:
        _refuse_mixed(what, flat, [words[type(value)] for value in flat], width)
    whole = all(issubclass(kind, WHOLE) for kind in words)
    if found == ["texts"]:  # as they are: NumPy's own would hold a long text once for every row
        return array
    plain = np.array(array.tolist())
    if plain.dtype.kind == "O" or (whole and plain.dtype.kind == "f"):
        raise FedMomError(f"{what}: a whole number has more than 64 bits. Give texts or floats.")
    return plain


def _word(kind: type) -> str | None:
    if issubclass(kind, TEXTS):
        return "texts"
    if issubclass(kind, bool | np.bool_):
        return "bools"
    is_number = issubclass(kind, NUMBERS) and not issubclass(kind, np.timedelta64)
    return "numbers" if is_number else None


def _refuse_mixed(what: str, flat: NDArray[Any], words: list[str | None], width: int) -> NoReturn:
    for place, value in enumerate(flat):
        if value != value:  # NaN, between texts
            _refuse_missing(what, place // width, value)
    kinds = sorted(set(words))[:2]  # type: ignore[type-var]
    one, two = (
        f"row {words.index(kind) // width} is {_short(flat[words.index(kind)])}" for kind in kinds
    )
    raise FedMomError(
        f"{what}: {one}, and {two} {COUNTED}. Make all of them {kinds[0]}, or all of them"
        f" {kinds[1]}."
    )


def _refuse_missing(what: str, row: int, value: Any) -> NoReturn:
    raise FedMomError(
        f"{what}: row {row} is {_short(value)} {COUNTED}. Every row must be a number or a text;"
        " fill it in, or leave the row out."
    )


def refuse_row(what: str, wrong: NDArray[np.bool_], values: NDArray[Any], allowed: str) -> None:
    """Refuse values by the first row that has a wrong one.

    Args:
        what: What a value is, such as "data: the label".
        wrong: True where a value is wrong; one row for every row of ``values``.
        values: The values.
        allowed: What a value must be.
    """
    if not wrong.any():
        return
    rows = wrong.reshape(len(wrong), -1)
    bad = np.asarray(rows.any(axis=1))
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
    if not others:
        return f" {COUNTED}"
    rows = "1 other row has" if others == 1 else f"{others:,} other rows have"
    return f" {COUNTED[:-1]}; {rows} the same fault)"


def _short(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def listed(names: Sequence[str]) -> str:
    """Return some names for a message, not all of thousands.

    Examples:
        >>> listed(["a", "b"]), listed("abcdefgh")
        ("'a', 'b'", "'a', 'b', 'c', 'd', 'e' and 3 others")
    """
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} others"


def numbers_or_texts(texts: Sequence[str]) -> NDArray[Any]:
    """Return whole numbers where all texts are such ("7", not "007"), else the texts."""
    if all(is_whole(text) for text in set(texts)):
        return np.array([int(text) for text in texts])
    return np.array(texts, object)


def is_whole(text: str) -> bool:
    """Return whether a text is a whole number, written as Python writes it."""
    return len(text) < 19 and text.lstrip("-").isdecimal() and str(int(text)) == text


LARGEST_LABEL = 2**31 - 2
IGNORED = -100  # the label of a position that does not count, as in PyTorch
ALLOWED = (
    "Labels may be whole numbers, texts or bools (classes), floats (regression), a matrix of 0 and"
    " 1 (several labels), or a class at every position of a sequence,"
    f" {IGNORED} where it does not count"
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
    name: str,
    y: NDArray[Any],
    inputs: tuple[int, ...],
    task: Task | None = None,
    known: Sequence[str] | None = None,
    counted: NDArray[np.bool_] | None = None,
) -> Labels:
    """Find out what labels are, and bring them into their form.

    Args:
        name: What the data is called in messages.
        y: One row of labels for every sample.
        inputs: The shape of one input.
        task: What they are, where the user says so.
        known: What classes 0, 1, ... are called, where that is known.
        counted: Which positions of sequences count, besides those that are not marked in ``y``.
    """
    y = as_plain(f"{name}: labels", y)
    refuse_missing(f"{name}: the label", y)
    if y.ndim not in (1, 2) or y.dtype.kind not in "biufUO":
        raise FedMomError(
            f"{name}: labels are an array of type {y.dtype} and {y.ndim} dimensions. {ALLOWED}."
        )
    if not y.size:
        raise FedMomError(
            f"{name}: labels are {short(y)}. There must be one at least for every row."
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
    if task == "multilabel":
        return _multilabel(name, y)
    if task == "classes":
        return _classes(name, y, task, known)
    return _positions(name, y, known, counted)


def _guessed(name: str, y: NDArray[Any], inputs: tuple[int, ...]) -> Task:
    """Return the task that labels stand for where nobody has said it."""
    if y.dtype.kind == "f":
        return "regression"
    if y.ndim == 1:
        return "classes"
    like_inputs = y.shape[1] == inputs[0] and y.shape[1] > 1
    if like_inputs and y.dtype.kind == "i" and bool((y == IGNORED).any()):
        return "sequence"
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


def _positions(
    name: str, y: NDArray[Any], known: Sequence[str] | None, counted: NDArray[np.bool_] | None
) -> Labels:
    """Number the classes at the positions that count; the others are marked."""
    numeric = y.dtype.kind in "iuf"
    counted = np.ones(y.shape, bool) if counted is None else counted
    counted = counted & (y != IGNORED) if numeric else counted
    if not counted.any():
        raise FedMomError(f"{name}: no label counts: all are {IGNORED}, or masked.")
    if numeric:
        allowed = f"at least 0, or {IGNORED} where it does not count. Give other classes as texts"
        refuse_row(f"{name}: the label", counted & (y < 0), y, allowed)
    found = _classes(name, np.where(counted, y, y[counted][0]), "sequence", known)
    return found._replace(values=np.where(counted, found.values, np.int32(IGNORED)))


def _classes(name: str, y: NDArray[Any], task: Task, known: Sequence[str] | None) -> Labels:
    """Number classes by their order, and keep what they are called where that is not 0, 1, 2...

    In a sequence whole numbers from 0 stay, as they may be the tokens of the inputs; and so do
    the numbers of classes whose names are known.
    """
    if y.dtype.kind == "f":
        refuse_row(f"{name}: the label", y != np.rint(y), y, "a whole number, as task classes asks")
        refuse_row(f"{name}: the label", abs(y) > LARGEST_LABEL, y, f"at most {LARGEST_LABEL}")
        y = y.astype(np.int64)
    if known is not None and y.dtype.kind in "iu":
        top = len(known) - 1
        allowed = f"from 0 to {top}, as the classes have names. Leave rows without a label out"
        refuse_row(f"{name}: the label", (y < 0) | (y >= len(known)), y, allowed)
        return Labels(y.astype(np.int32), len(known), task, tuple(known))
    if y.dtype.kind == "b":
        return Labels(y.astype(np.int32), 2, task, ("False", "True"))
    if task == "sequence" and y.dtype.kind in "iu" and y.min() >= 0:
        allowed = f"at most {LARGEST_LABEL}. Number the classes anew, or give them as texts"
        refuse_row(f"{name}: the label", y > LARGEST_LABEL, y, allowed)
        return Labels(y.astype(np.int32), int(y.max()) + 1, task)
    if y.dtype.kind == "O":
        return _of_texts(name, y, task)
    found, places = np.unique(y, return_inverse=True)
    numbers = places.reshape(y.shape).astype(np.int32)
    plain = y.dtype.kind in "iu" and found[0] == 0 and found[-1] == len(found) - 1
    return Labels(numbers, len(found), task, None if plain else tuple(map(str, found)))


def _of_texts(name: str, y: NDArray[Any], task: Task) -> Labels:
    found = sorted({str(text) for text in y.flat})
    place = {text: number for number, text in enumerate(found)}
    for text in found:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise FedMomError(
                f"{name}: the label {_short(text)} cannot be written as UTF-8. Rename it."
            ) from None
    numbers = np.fromiter((place[text] for text in y.flat), np.int32, y.size)
    return Labels(numbers.reshape(y.shape), len(found), task, tuple(found))
