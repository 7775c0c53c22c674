"""Clients' ids, as users give them: numbers or texts -> names, and the client of every row."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.data.rows.values import COUNTED, refuse_row


class Owners(NamedTuple):
    """The clients' names, and the number of its client for every row."""

    users: Sequence[str]
    rows: NDArray[np.int64]


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
        return _numbered(name, ids, users)
    if ids.dtype.kind == "O":
        return _of_objects(name, ids.tolist())
    found, rows = np.unique(ids, return_inverse=True)
    texts = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in found]
    return Owners(checked_names(name, texts), rows.astype(np.int64))


def checked_names(name: str, users: Sequence[str]) -> Sequence[str]:
    """Refuse names that two clients share, or that cannot be written to a file."""
    if len(set(users)) < len(users):
        seen: set[str] = set()
        twice = next(user for user in users if user in seen or seen.add(user))  # type: ignore[func-returns-value]
        raise FedMomError(f"{name}: two clients are called {twice!r}. Give each a name of its own.")
    for user in users:
        try:
            user.encode()
        except UnicodeEncodeError:
            raise FedMomError(
                f"{name}: the client id {user!r} is no text that can be written as UTF-8. Rename"
                " it."
            ) from None
    return users


def _numbered(name: str, ids: NDArray[Any], users: Sequence[str]) -> Owners:
    if ids.dtype.kind not in "iu" or (ids.size and (ids.min() < 0 or ids.max() >= len(users))):
        raise FedMomError(f"{name}: client ids must be 0..{len(users) - 1}, one for each user.")
    return Owners(checked_names(name, users), ids.astype(np.int64))


def _of_objects(name: str, ids: list[Any]) -> Owners:
    """Number ids of Python's own types. 1 and "1" are two ids of one name, and refused."""
    first: dict[Any, int] = {}  # by (type, value): in Python 1 == True
    for row, value in enumerate(ids):
        if not isinstance(value, (str, int, np.integer, np.str_)):
            raise FedMomError(
                f"{name}: the client id of row {row} is {value!r} {COUNTED}. It must be a whole"
                " number or a text; fill it in, or leave the row out."
            )
        first.setdefault((isinstance(value, str), value), row)
    named: dict[str, Any] = {}
    for (_, value), row in first.items():
        if (other := named.setdefault(str(value), value)) is not value:
            raise FedMomError(
                f"{name}: the client ids {other!r} and {value!r} (row {row}) would have one name."
                " Make all ids texts, or all of them numbers."
            )
    whole = not any(text for text, _ in first)
    users = sorted(named, key=named.__getitem__) if whole else sorted(named)
    place = {user: k for k, user in enumerate(users)}
    rows = np.fromiter((place[str(value)] for value in ids), np.int64, len(ids))
    return Owners(checked_names(name, users), rows)
