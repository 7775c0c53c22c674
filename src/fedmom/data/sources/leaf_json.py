"""One file of LEAF's JSON, read whole, checked, and made small client by client.

    {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}

The parser hands over each client's ``x`` and ``y`` as soon as it has read them, and they become
arrays at once: except for the text of the file, only one client at a time is a tree of Python
objects. 784 numbers are an image of 28 x 28 (as FEMNIST's), any other count is a vector, and
80 characters are a window of text (as Shakespeare's).
"""

import json
import re
from collections import Counter, deque
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.data.source_files import check_known, read_content
from fedmom.data.sources.shakespeare import SYMBOLS, WINDOW, encode

SIDE = 28
IMAGE_CLASSES = 62  # FEMNIST's: digits, capitals, small letters
MOST_CLASSES = 2**16  # of vectors, whose labels nothing else bounds
KEYS = ("users", "num_samples", "user_data", "hierarchies")  # LEAF writes the last for some
GREY = 1e-6  # how far a pixel may be from k/255 and still be the grey k
REMEDY = "Make or fetch this file again."

_OPENED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:\s*\{')
_KINDS = {str: "text", list: "a list", bool: "true or false", type(None): "null"}


class Samples(NamedTuple):
    """A client's samples in one file; ``kind`` is None where there are none."""

    kind: Literal["vector", "image", "text"] | None
    x: NDArray[Any]
    y: NDArray[Any]


NOTHING = Samples(None, np.empty(0, np.uint8), np.empty(0, np.uint8))


def read_shard(path: Path, part: str) -> dict[str, Samples]:
    """Return the samples of every user in a file of the ``train`` or the ``test`` part."""
    shard = _parsed(path)
    if not isinstance(shard, dict):
        raise refusal(path, "this is not an object with users, num_samples and user_data.")
    check_known(f"{path}: the name", shard, KEYS)
    users = _users(path, shard)
    counts = shard.get("num_samples")
    if not isinstance(counts, list) or len(counts) != len(users):
        raise refusal(path, f"num_samples must be a list of {len(users)} numbers, one per user.")
    data = _user_data(path, shard, users)
    for user, count in zip(users, counts, strict=True):
        _check_client(path, part, user, count, data[user])
    return {user: data[user] for user in users}


def refusal(path: Path, what: str, *, user: str | None = None, remedy: str = REMEDY) -> FedMomError:
    """Return the error that names the file, the user, the fault and the remedy."""
    return FedMomError(f"{path}: {'' if user is None else f'user {user!r}: '}{what} {remedy}")


def _users(path: Path, shard: dict[str, Any]) -> list[str]:
    users = shard.get("users")
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise refusal(path, "users must be a list of names.")
    if not users:
        raise refusal(path, "there are no users.", remedy="Delete the file, or make it again.")
    user, times = Counter(users).most_common(1)[0]
    if times > 1:
        raise refusal(path, f"the name is {times} times in users.", user=user)
    for user in users:
        if any("\ud800" <= c <= "\udfff" for c in user):
            raise refusal(path, "the name is not Unicode text.", user=user, remedy="Rename it.")
    return users


def _user_data(path: Path, shard: dict[str, Any], users: list[str]) -> dict[str, Any]:
    data = shard.get("user_data")
    if isinstance(data, FedMomError):
        raise refusal(path, f"user_data: {data}")
    if not isinstance(data, dict):
        raise refusal(path, "user_data must be an object with x and y of each user.")
    for odd in (*(u for u in users if u not in data), *data.keys() - set(users)):
        place, other = ("user_data", "users") if odd in data else ("users", "user_data")
        raise refusal(path, f"the name is in {place} and not in {other}.", user=odd)
    return data


def _check_client(path: Path, part: str, user: str, count: Any, samples: Any) -> None:
    if isinstance(samples, FedMomError):
        raise refusal(path, str(samples), user=user)
    if not isinstance(samples, Samples):
        raise refusal(path, "its data must be an object with the lists x and y.", user=user)
    held = len(samples.y)
    # LEAF leaves 79 windows out before a text's test part, and counts them nevertheless.
    counted = {held, held + WINDOW - 1} if (samples.kind, part) == ("text", "test") else {held}
    if type(count) is not int or count not in counted:
        raise refusal(path, f"num_samples says {_shown(count)}, and there are {held}.", user=user)
    if part == "train" and not held:
        remedy = "Leave the user out of train and test."
        raise refusal(path, "there are no training samples.", user=user, remedy=remedy)


def _parsed(path: Path) -> Any:
    text = _text(path)
    if not text.strip():
        raise refusal(path, "the file is empty.")
    try:
        content = json.loads(text, object_pairs_hook=_compact)
    except json.JSONDecodeError as error:
        where = f"character {error.pos}{_inside(text[: error.pos])}"
        what = f"the JSON is torn or wrong at {where} ({error.msg})."
        raise refusal(path, what) from None
    except RecursionError:
        raise refusal(path, "the JSON is nested too deep.") from None
    except ValueError:  # Python's limit on the digits of a whole number
        raise refusal(path, "a number has thousands of digits.") from None
    if isinstance(content, FedMomError):
        raise refusal(path, str(content))
    return content


def _text(path: Path) -> str:
    content = read_content(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte {error.start}{_inside(content[: error.start].decode(errors='ignore'))}"
        raise refusal(path, f"the file is not UTF-8 at {where}.") from None


def _inside(text: str) -> str:
    """Name the user whose data were last opened in the beginning of a file."""
    opened = deque(_OPENED.finditer(text), maxlen=1)
    if not opened or opened[0][1] == "user_data":
        return ""
    return f", in or after user {opened[0][1]!r:.80}"


def _compact(pairs: list[tuple[str, Any]]) -> Any:
    """Make the parser's objects: a client's become ``Samples``, or the fault found in them.

    The parser does not say whose object it is, so a fault waits here for the user's name.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        return FedMomError(f"the name {twice!r} is there twice.")
    x, y = fields.get("x"), fields.get("y")
    if "users" in fields or not isinstance(x, list) or not isinstance(y, list):
        return fields
    try:
        check_known("the name", fields, ("x", "y"))
        return _samples(x, y)
    except FedMomError as fault:
        return fault


def _samples(x: list[Any], y: list[Any]) -> Samples:
    if len(x) != len(y):
        raise FedMomError(f"x has {len(x)} samples and y has {len(y)}; they must be equal.")
    kinds = set(map(type, x))
    if not kinds:
        return NOTHING
    if kinds == {str}:
        return _windows(x, y)
    if kinds == {list}:
        return _rows(x, y)
    raise FedMomError("the samples of x must all be lists of numbers, or all be texts.")


def _windows(x: list[str], y: list[Any]) -> Samples:
    for number, (window, label) in enumerate(zip(x, y, strict=True)):
        if len(window) != WINDOW:
            raise FedMomError(
                f"sample {number} of x has {len(window)} characters; a text sample has {WINDOW}."
            )
        if not isinstance(label, str) or len(label) != 1:
            raise FedMomError(f"label {number} of y is {_shown(label)}; it must be one character.")
    text = "".join(chain.from_iterable(zip(x, y, strict=True)))
    strange = set(text) - set(SYMBOLS)
    if strange:
        at = min(text.index(character) for character in strange)
        raise FedMomError(
            f"sample {at // (WINDOW + 1)} has the character {text[at]!r}, which is none of"
            f" LEAF's {len(SYMBOLS)}: {SYMBOLS!r}."
        )
    symbols = encode(text).reshape(-1, WINDOW + 1)
    return Samples("text", symbols[:, :-1], symbols[:, -1])


def _rows(x: list[list[Any]], y: list[Any]) -> Samples:
    width = len(x[0])
    for number, row in enumerate(x):
        if len(row) != width or not row:
            raise FedMomError(
                f"sample {number} of x has {len(row)} numbers and sample 0 has {width}; all must"
                f" have as many (an image: {SIDE * SIDE})."
            )
    values = _numbers(list(chain.from_iterable(x)), "sample {} of x", width)
    if width != SIDE * SIDE:
        rows = values.reshape(-1, width).astype(np.float32)
        return Samples("vector", rows, _labels(y, MOST_CLASSES))
    if values.min() < 0 or values.max() > 1:
        raise FedMomError(
            f"the pixels lie between {values.min():g} and {values.max():g}; they must lie between"
            " 0 and 1."
        )
    greys = np.rint(values * 255)
    exact = np.abs(values - greys / 255).max() <= GREY
    pixels = greys.astype(np.uint8) if exact else values.astype(np.float32)
    return Samples("image", pixels.reshape(-1, SIDE, SIDE), _labels(y, IMAGE_CLASSES))


def _labels(y: list[Any], classes: int) -> NDArray[np.uint16]:
    labels = _numbers(y, "label {} of y", 1)
    wrong = (labels != np.floor(labels)) | (labels < 0) | (labels >= classes)
    if wrong.any():
        number = int(np.argmax(wrong))
        raise FedMomError(
            f"label {number} of y is {_shown(y[number])}; labels must be whole numbers from 0 to"
            f" {classes - 1}."
        )
    return labels.astype(np.uint16)


def _shown(value: Any) -> str:
    simple = value is None or isinstance(value, int | float | str)
    return f"{value!r:.50}" if simple else _KINDS.get(type(value), "an object")


def _numbers(values: list[Any], what: str, width: int) -> NDArray[np.float64]:
    """Turn JSON's numbers into floats, and nothing else: NumPy alone would take "1" and true."""
    for kind in set(map(type, values)) - {int, float}:
        number = next(i for i, value in enumerate(values) if type(value) is kind)
        raise FedMomError(
            f"{what.format(number // width)} has {_KINDS.get(kind, 'an object')} instead of a"
            " number."
        )
    try:
        numbers = np.array(values, np.float64)
    except OverflowError:
        numbers = np.array([float(v) if abs(v) < 2**1000 else np.inf for v in values])
    wrong = ~(np.abs(numbers) <= np.finfo(np.float32).max)
    if wrong.any():
        number = int(np.argmax(wrong))
        raise FedMomError(
            f"{what.format(number // width)} has a number that is not finite, or too large for"
            " 32 bits."
        )
    return numbers
