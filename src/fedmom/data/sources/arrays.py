"""Data of the user's own: arrays in memory, or the same arrays in an .npz file."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom.core.errors import FedMomError
from fedmom.data.cache import cached, file_identity
from fedmom.data.federated import Features, FederatedData, Split, aligned
from fedmom.data.npz import read_npz
from fedmom.data.save import save_store

LARGEST_LABEL = 2**31 - 2
ALLOWED = {
    "x": "It must hold numbers: whole ones, floats or bools, not complex ones.",
    "labels": "They must be a list of whole numbers from 0.",
    "client ids": "They must be a list of numbers or names.",
    "is_test": "It must be a list of True and False.",
}
NPZ_READER = 3  # counts changes in what is made of a file, so that no cache hands out the former


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    client_ids: ArrayLike,
    *,
    is_test: ArrayLike | None = None,
    users: list[str] | None = None,
    name: str = "arrays",
) -> FederatedData:
    """Build a population from inputs, integer labels and the client of every row.

    Args:
        x: One input per row. Rows of two or more dimensions are images. Bytes (uint8) stay
            bytes, and a batch of them is scaled to [0, 1]; other integers, such as tokens,
            become int32; floats and bools become float32.
        y: The label of every row, a whole number from 0.
        client_ids: The client of every row: numbers from 0, named by ``users``; without
            ``users``, anything that NumPy can sort.
        is_test: True for test rows. By default all rows are for training.
        users: The clients' names. By default they are those in ``client_ids``, sorted.
        name: What the data is called in messages, tables and figures.

    Returns:
        The population, with every client's rows side by side.

    Raises:
        FedMomError: The arrays do not fit together, or a value cannot be used.

    Examples:
        >>> import numpy as np
        >>> x = np.arange(8.0).reshape(4, 2)
        >>> data = from_arrays(x, [0, 1, 1, 0], ["ann", "bob", "ann", "ann"])
        >>> data.users, data.train.size.tolist()
        (['ann', 'bob'], [3, 1])
    """
    inputs, labels, ids = np.asarray(x), np.asarray(y), np.asarray(client_ids)
    marks = np.zeros(labels.shape, bool) if is_test is None else np.asarray(is_test)
    _check(name, inputs, labels, ids, marks)
    marks = marks.astype(bool)
    if users is None:
        names, ids = np.unique(ids, return_inverse=True)
        users = [str(n) for n in names]
    elif not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0 or ids.max() >= len(users):
        raise FedMomError(f"{name}: client ids must be 0..{len(users) - 1}, one for each user.")
    if len(set(users)) < len(users):
        twice = next(user for user, times in Counter(users).items() if times > 1)
        raise FedMomError(f"{name}: two clients are called {twice!r}. Give each a name of its own.")
    order = np.lexsort((marks, ids))  # by client, its training rows first
    counts = [np.bincount(ids[marks == m], minlength=len(users)) for m in (False, True)]
    begin = np.cumsum(counts[0] + counts[1]) - counts[0] - counts[1]
    return FederatedData(
        name=name,
        users=users,
        features=_features(inputs, int(labels.max()) + 1),
        arrays={
            "x": aligned(_inputs(name, inputs)[order]),
            "y": aligned(labels[order].astype(np.int32)),
        },
        train=Split(begin, counts[0]),
        test=Split(begin + counts[0], counts[1]),
    )


def is_npz(path: Path) -> bool:
    """Tell whether a path is that of an .npz file."""
    return path.suffix == ".npz"


def load_npz(path: Path) -> FederatedData:
    """Open an .npz file of arrays; the first time it is packed, later only mapped."""

    def pack(folder: Path) -> None:
        save_store(from_npz(path), folder, {"files": file_identity([path])})

    return cached(path.stem, ["npz", NPZ_READER, file_identity([path])], pack)


def from_npz(path: Path) -> FederatedData:
    """Read arrays ``x, y, user, users`` and ``is_test`` from an .npz file (no pickled objects)."""
    found = read_npz(path, ("x", "y", "user", "users", "is_test"))
    return from_arrays(
        found["x"],
        found["y"],
        found["user"],
        is_test=found["is_test"],
        users=[str(u) for u in found["users"].ravel()],
        name=path.stem,
    )


def _check(
    name: str, x: NDArray[Any], y: NDArray[Any], ids: NDArray[Any], marks: NDArray[Any]
) -> None:
    for what, array, kinds in (
        ("x", x, "biuf"),
        ("labels", y, "iu"),
        ("client ids", ids, "biufUST"),
        ("is_test", marks, "biuf"),
    ):
        if array.ndim < 1 or array.dtype.kind not in kinds:
            raise FedMomError(
                f"{name}: {what} is an array of type {array.dtype} and {array.ndim} dimensions."
                f" {ALLOWED[what]}"
            )
    if not len(x) == len(y) == len(ids) == len(marks):
        raise FedMomError(
            f"{name}: x, y, client ids and is_test have {len(x)}, {len(y)}, {len(ids)} and"
            f" {len(marks)} rows; they must be equal."
        )
    if not x.size:
        raise FedMomError(f"{name} has no rows, or its rows have no values.")
    if y.ndim != 1 or y.min() < 0 or y.max() > LARGEST_LABEL:
        raise FedMomError(
            f"{name}: labels must be a list of whole numbers from 0 to {LARGEST_LABEL}; there are"
            f" labels from {y.min()} to {y.max()}."
        )
    if ids.ndim != 1 or (ids.dtype.kind == "f" and not np.isfinite(ids).all()):
        raise FedMomError(f"{name}: client ids must be a list, without NaN.")
    if marks.ndim != 1 or not np.isin(marks, (0, 1)).all():
        raise FedMomError(f"{name}: is_test must be a list of True and False, or of 0 and 1.")


def _inputs(name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return inputs in a type that JAX keeps: whole numbers stay whole, so tokens can be looked up.

    Bytes are taken for the grey levels of images.
    """
    if x.dtype == np.uint8:
        return x
    if not np.issubdtype(x.dtype, np.integer):
        with np.errstate(over="ignore"):
            floats = x.astype(np.float32)
        if not np.isfinite(floats).all():
            raise FedMomError(
                f"{name}: x has values that are not finite as 32-bit floats, which reach to"
                f" {np.finfo(np.float32).max:.2g}. Scale or mend them."
            )
        return floats
    bounds = np.iinfo(np.int32)
    if x.min() < bounds.min or x.max() > bounds.max:
        raise FedMomError(
            f"{name}: x has whole numbers from {x.min()} to {x.max()}, which do not all fit 32"
            " bits. Give x as floats, or number its values anew."
        )
    return x.astype(np.int32)


def _features(x: NDArray[Any], classes: int) -> Features:
    shape = x.shape[1:]
    return Features("image" if len(shape) >= 2 else "vector", shape, classes)
