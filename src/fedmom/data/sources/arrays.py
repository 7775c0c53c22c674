"""Arrays: in memory, in an .npz file, or item after item from a torch ``Dataset``."""

import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import checked, short
from fedmom.core.errors import FedMomError
from fedmom.core.validation import Seed, check_memory
from fedmom.data.federated import FederatedData, Task, Tokens
from fedmom.data.rows.assembly import Division, assemble, check_rows, inputs, owners
from fedmom.data.rows.padding import padded, padded_tokens
from fedmom.data.rows.values import (
    COUNTED,
    IGNORED,
    Rows,
    as_array,
    as_plain,
    read_labels,
    refuse_missing,
)
from fedmom.data.source_files import check_known, check_ratio, file_identity, said
from fedmom.data.store.writer import cached, save_store

NPZ_READER = 5  # counts changes in what is made of a file, so that no cache hands out the former
ARRAYS = ("x", "y", "user", "users", "is_test")
KINDS = "biufcUS"  # plain values: no objects, records or dates
# What zipfile, its decompressors and NumPy's reader of headers raise on files that are damaged,
# encrypted, compressed by unknown means, or not what they say.
DAMAGE = (
    *(OSError, EOFError, ValueError, SyntaxError, KeyError, TypeError, OverflowError, MemoryError),
    *(RuntimeError, NotImplementedError, RecursionError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError),
)


@checked
def from_arrays(
    x: Rows,
    y: Rows,
    client_ids: Rows | None = None,
    *,
    is_test: Rows | None = None,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: Seed = 0,
    task: Task | None = None,
    users: Sequence[str] | None = None,
    pad: int | None = None,
    name: str = "arrays",
) -> FederatedData:
    """Build a population from inputs, labels and the client of every row.

    Args:
        x: One input per row. Rows of two or more dimensions are images. Bytes (uint8) stay
            bytes, and a batch of them is scaled to [0, 1]; other integers, such as tokens,
            become int32; floats and bools become float32.
        y: The label of every row. Whole numbers, texts and bools are classes: those that occur,
            in sorted order, called by their labels unless these are 0, 1, 2, ...; floats are
            values to predict, one or several a row; a matrix of 0 and 1 has a column for every
            label; other matrices have a class at every position of an input, -100 where it does
            not count.
        client_ids: The client of every row, whole numbers or texts. Leave it out to make
            clients by ``partition``.
        is_test: True for test rows. By default all rows are for training.
        test_fraction: Instead of ``is_test``: the share of every client's rows that is drawn
            for testing, rounded; one row at least stays for training.
        partition: Instead of ``client_ids``: how rows are dealt to clients, such as
            ``dirichlet:alpha=0.3,clients=100``.
        seed: The seed of ``test_fraction`` and ``partition``.
        task: What the labels are, where it does not show: "classes", "regression",
            "multilabel" or "sequence".
        users: The clients' names, where ``client_ids`` are their numbers from 0. By default
            clients are called by their ids, in sorted order.
        pad: For lists of whole numbers of different lengths: the number that fills up the shorter
            ones behind their end. Labels at positions are lists of the same lengths; those of the
            padding do not count.
        name: What the data is called in messages, tables and figures.

    Returns:
        The population, with every client's rows side by side.

    Raises:
        FedMomError: The arrays do not fit together, or a value cannot be used.

    Examples:
        >>> import numpy as np
        >>> x = np.arange(8.0).reshape(4, 2)
        >>> data = from_arrays(x, ["no", "yes", "yes", "no"], ["ann", "bob", "ann", "ann"])
        >>> data.users, data.train.size.tolist(), data.class_names
        (['ann', 'bob'], [3, 1], ('no', 'yes'))
        >>> from_arrays(x, [0.5, 1, 2, 3], partition="iid:clients=2").features.task
        'regression'
        >>> data = from_arrays([[5, 7, 6], [6]], [[1, 0, 1], [0]], [0, 1], pad=0)
        >>> data.arrays["x"].tolist(), data.arrays["y"].tolist()
        ([[5, 7, 6], [6, 0, 0]], [[1, 0, 1], [0, -100, -100]])
    """
    ids = None if client_ids is None else as_array(f"{name}: client_ids", client_ids)
    division = Division(test_fraction, partition, seed)
    division.check(name, ids=ids is not None, marked=is_test is not None)
    if users is not None and client_ids is None:
        raise FedMomError(f"{name}: users are the names of client_ids, which are not given.")
    marks = None if is_test is None else as_array(f"{name}: is_test", is_test)
    counted, tokens = None, None
    if pad is None:
        given, targets = as_array(f"{name}: x", x), as_array(f"{name}: y", y)
    else:
        given, targets, counted = _padded(name, x, y, pad)
        task, tokens = task or ("sequence" if counted is not None else None), Tokens(pad)
    check_rows(name, {"x": given, "y": targets, "client_ids": ids, "is_test": marks})
    array = inputs(name, as_plain(f"{name}: x", given))
    labels = read_labels(name, targets, array.shape[1:], task, counted=counted)
    clients = None if ids is None else owners(name, ids, users)
    data = assemble(name, array, labels, clients, division, marks)
    return replace(data, tokens=tokens)


def _padded(
    name: str, x: Rows, y: Any, pad: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_] | None]:
    """Return inputs and labels of one length, and which labels count if there are some a row."""
    rows = padded_tokens(f"{name}: x", x, pad)
    if not hasattr(y, "__iter__") or all(isinstance(row, str) or not np.ndim(row) for row in y):
        return rows.values, as_array(f"{name}: y", y), None
    labels = padded(f"{name}: y", y, IGNORED)
    check_rows(name, {"x": rows.values, "y": labels.values})
    if (wrong := labels.lengths != rows.lengths).any():
        row = int(np.argmax(wrong))
        raise FedMomError(
            f"{name}: y has {labels.lengths[row]} labels in row {row}, and x has"
            f" {rows.lengths[row]} values {COUNTED}. Give a label for every value, or one for every"
            " row."
        )
    return rows.values, labels.values, labels.given


def is_npz(path: Path) -> bool:
    """Return whether a path is that of an .npz file."""
    return path.suffix == ".npz"


def load_npz(
    path: Path,
    *,
    test_fraction: float | None = None,
    seed: Seed = 0,
    task: Task | None = None,
    partition: str | None = None,
) -> FederatedData:
    """Open an .npz file of arrays; the first time it is packed, later only mapped."""
    options = {name: value for name, value in locals().items() if name != "path"}
    files = file_identity([path])
    return cached(
        path.stem,
        ["npz", NPZ_READER, files, [*options.values()]],
        lambda folder: save_store(from_npz(path, **options), folder, {"files": files}),
    )


def from_npz(path: Path, **options: Any) -> FederatedData:
    """Read an .npz file: ``x`` and ``y``, and where it has them ``user``, ``users``, ``is_test``.

    Nothing in it is run (no pickled objects). The options are those of ``from_arrays``.
    """
    found = read_npz(path)
    user, users = found.get("user"), found.get("users")
    numbered = user is not None and user.dtype.kind not in "UST"
    if user is not None and users is not None and not numbered:
        raise FedMomError(
            f"{path}: users are the names of the numbers in user, which holds texts. Leave users"
            " out."
        )
    names = None if users is None else _names(f"{path}: users", users)
    known: dict[str, Any] = {"is_test": found.get("is_test"), "users": names, "name": path.stem}
    return from_arrays(found["x"], found["y"], user, **known, **options)


def _names(what: str, users: NDArray[Any]) -> list[str]:
    names = as_array(what, users)
    if names.ndim != 1 or names.dtype.kind not in "iuUO":
        raise FedMomError(f"{what} are {short(users)}. They must be a list of texts.")
    refuse_missing(what, names)
    return [str(name) for name in names]


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name. Nothing in it is run (no pickled objects)."""
    try:
        with zipfile.ZipFile(path) as archive:
            here = [name.removesuffix(".npy") for name in archive.namelist()]
            check_known(f"{path}: the array", here, ARRAYS)
            if len(set(here)) < len(here):
                raise FedMomError(f"{path} has two arrays of one name. Save it again.")
            for name in sorted({"x", "y"} - set(here)):
                raise FedMomError(
                    f"{path}: the array {name!r} is missing. It must hold x (inputs) and y"
                    " (labels), and may hold user (client of each row, a number or a name),"
                    " users (names of numbers from 0), is_test."
                )
            return {name: _member(archive, f"{name}.npy", path) for name in ARRAYS if name in here}
    except FedMomError:
        raise
    except DAMAGE as error:
        raise FedMomError(f"{path} is not a readable .npz file: {said(error)}.") from None


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> NDArray[Any]:
    entry = archive.getinfo(name)
    with archive.open(entry) as file:
        shape, fortran, dtype = _header(file)
        if dtype.kind not in KINDS:
            raise FedMomError(
                f"{path}: {name.removesuffix('.npy')} is an array of type {dtype}; it must hold"
                " plain numbers or texts."
            )
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0:
            raise FedMomError(f"{path}: {name} has the shape {shape}, which no array has.")
        if size > entry.file_size:
            raise FedMomError(
                f"{path}: {name} says that it has {size:,} bytes, but it has {entry.file_size:,}."
            )
        remedy = "Save it without compression (np.savez) if it is right."
        packed = min(entry.compress_size, path.stat().st_size)  # the first is the file's own word
        check_ratio(f"{path}: {name}", size, packed, remedy)
        check_memory(f"{path}: {name}", size, "Pack it in parts (docs/data.md).")
        content = file.read(size)
    if len(content) < size:
        raise FedMomError(f"{path}: {name} ends after {len(content):,} of {size:,} bytes.")
    flat = np.frombuffer(content, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array of the format {version}, which is not known")
    return getattr(np.lib.format, f"read_array_header_{version[0]}_0")(file)


class Pairs(Protocol):
    """What is asked of a dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@checked
def from_torch(
    dataset: Pairs,
    client_ids: Rows | None = None,
    *,
    is_test: Rows | None = None,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: Seed = 0,
    task: Task | None = None,
    name: str | None = None,
) -> FederatedData:
    """Build a population from a torch ``Dataset`` and the client of every item.

    Every item is read once, with its transforms, into memory. Tensors of three dimensions have
    their channels first in torch, and last here; a single channel is left out. Arrays and
    images are taken as they are.

    Args:
        dataset: Gives (input, label) by number. Train and test sets in one:
            ``torch.utils.data.ConcatDataset([train, test])``, with ``is_test``.
        client_ids: The client of every item. Leave it out to make clients by ``partition``.
        is_test: As for ``from_arrays``, and so are the others.
        test_fraction: The share of every client's items that is drawn for testing.
        partition: Instead of ``client_ids``: how items are dealt to clients.
        seed: The seed of ``test_fraction`` and ``partition``.
        task: What the labels are, where it does not show.
        name: What the data is called. By default the dataset's class.

    Returns:
        The population.

    Examples:
        >>> pairs = [(np.ones(4), "yes"), (np.zeros(4), "no"), (np.ones(4), "yes")]
        >>> data = from_torch(pairs, ["ann", "bob", "ann"])
        >>> data.train.size.tolist(), data.class_names
        ([2, 1], ('no', 'yes'))
    """
    from fedmom.core.progress import track  # slow to import

    name = name or type(dataset).__name__
    division = Division(test_fraction, partition, seed)
    division.check(name, ids=client_ids is not None, marked=is_test is not None)
    if isinstance(dataset, Mapping) or hasattr(dataset, "iloc"):
        raise FedMomError(
            f"from_torch: dataset is {short(dataset)}. It must give pairs (input, label) by number."
        )
    if not hasattr(dataset, "__getitem__"):
        _refuse_unnumbered(name)
    try:
        count = len(dataset)
    except TypeError:
        _refuse_unnumbered(name)
    if not count:
        raise FedMomError(f"The dataset {name} has no items.")
    x: NDArray[Any] | None = None
    y: list[Any] = []
    for row in track(range(count), f"reading {name}", total=count):
        value, label = _item(name, dataset[row], row)
        if x is None:
            check_memory(name, count * value.nbytes, "Use fewer items or smaller inputs.")
            x = np.empty((count, *value.shape), value.dtype)
        if value.shape != x.shape[1:] or value.dtype != x.dtype:
            raise FedMomError(
                f"{name}: the input of item {row} is {value.dtype} of shape {value.shape}, and that"
                f" of item 0 is {x.dtype} of shape {x.shape[1:]} {COUNTED}. All must be alike."
            )
        x[row] = value
        y.append(label)
    assert x is not None
    options = division._asdict()
    return from_arrays(x, y, client_ids, is_test=is_test, **options, task=task, name=name)


def _refuse_unnumbered(name: str) -> NoReturn:
    raise FedMomError(
        f"{name}: its items cannot be read by number. Give a dataset with __len__ and __getitem__,"
        " not an iterable one."
    ) from None


def _item(name: str, item: Any, row: int) -> tuple[NDArray[Any], Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise FedMomError(
            f"{name}: item {row} of the dataset is a {type(item).__name__}, not a pair (input,"
            " label)."
        )
    value, label = (
        np.asarray(part) if isinstance(part, float | int | np.generic) else part for part in item
    )
    value = as_array(f"{name}: the input of item {row}", value)
    if hasattr(item[0], "detach") and value.ndim == 3:
        value = value[0] if value.shape[0] == 1 else np.moveaxis(value, 0, -1)
    if hasattr(label, "__array__") and not isinstance(label, np.generic):
        label = as_array(f"{name}: the label of item {row}", label)
        return value, label.item() if label.ndim == 0 else label
    return value, label
