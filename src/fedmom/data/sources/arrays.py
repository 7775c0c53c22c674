"""Data of the user's own: arrays in memory, or the same arrays in an .npz file."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom.core.errors import FedMomError
from fedmom.data.cache import cached, file_identity
from fedmom.data.federated import Features, FederatedData, Split, aligned
from fedmom.data.save import save_store

NPZ_READER = 2  # counts changes in what is made of a file, so that no cache hands out the former


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
    marks = np.zeros(len(labels), bool) if is_test is None else np.asarray(is_test, bool)
    _check(name, inputs, labels, ids, marks)
    if users is None:
        names, ids = np.unique(ids, return_inverse=True)
        users = [str(n) for n in names]
    elif not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0 or ids.max() >= len(users):
        raise FedMomError(f"{name}: client ids must be 0..{len(users) - 1}, one for each user.")
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
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            missing = [n for n in ("x", "y", "user", "users", "is_test") if n not in file]
            if missing:
                raise FedMomError(
                    f"{path}: the array {missing[0]!r} is missing. It must hold x (inputs),"
                    " y (labels), user (client of each row), users (names), is_test."
                )
            return from_arrays(
                file["x"],
                file["y"],
                file["user"],
                is_test=file["is_test"],
                users=[str(u) for u in file["users"]],
                name=path.stem,
            )
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        raise FedMomError(f"{path} is not a readable .npz file: {error}.") from None
    except ValueError as error:
        if isinstance(error, FedMomError):
            raise
        raise FedMomError(f"{path} is not a readable .npz file: {error}.") from None


def _check(
    name: str, x: NDArray[Any], y: NDArray[Any], ids: NDArray[Any], marks: NDArray[Any]
) -> None:
    if not len(x) == len(y) == len(ids) == len(marks):
        raise FedMomError(
            f"{name}: x, y, client ids and is_test have {len(x)}, {len(y)}, {len(ids)} and"
            f" {len(marks)} rows; they must be equal."
        )
    if not len(x):
        raise FedMomError(f"{name} has no rows.")
    if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1 or y.min() < 0:
        raise FedMomError(f"{name}: labels must be a list of whole numbers from 0.")
    if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
        raise FedMomError(f"{name}: x has values that are not finite.")


def _inputs(name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return inputs in a type that JAX keeps: whole numbers stay whole, so tokens can be looked up.

    Bytes are taken for the grey levels of images.
    """
    if x.dtype == np.uint8:
        return x
    if not np.issubdtype(x.dtype, np.integer):
        return x.astype(np.float32)
    bounds = np.iinfo(np.int32)
    if x.size and (x.min() < bounds.min or x.max() > bounds.max):
        raise FedMomError(
            f"{name}: x has whole numbers from {x.min()} to {x.max()}, which do not all fit 32"
            " bits. Give x as floats, or number its values anew."
        )
    return x.astype(np.int32)


def _features(x: NDArray[Any], classes: int) -> Features:
    shape = x.shape[1:]
    return Features("image" if len(shape) >= 2 else "vector", shape, classes)
