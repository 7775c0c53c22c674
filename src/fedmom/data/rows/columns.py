"""A table's columns (Arrow's) -> a population, or a message that names the column and the row."""

import difflib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import LETTERS, short
from fedmom.core.errors import FedMomError
from fedmom.core.validation import check_memory
from fedmom.data.federated import Column, Columns, FederatedData, Task
from fedmom.data.rows.assembly import Division, assemble, inputs, owners
from fedmom.data.rows.categories import coded, spread
from fedmom.data.rows.values import (
    Labels,
    as_floats,
    numbers_or_texts,
    others_like,
    read_labels,
    refuse_row,
)
from fedmom.data.rows.values import listed as some_of

if TYPE_CHECKING:
    import pyarrow as pa

Names = str | Sequence[str]
Decode = Callable[[Any], NDArray[Any]]

SHOWN = 20  # columns, in a message
SMALLER = "Name fewer columns (features=), or fewer rows."


class Table(NamedTuple):
    """A table that is read a column at a time.

    Args:
        name: What it is called in messages.
        columns: The names of its columns.
        rows: How many rows it has.
        read: Returns a column by its name.
        categories: The columns that it says hold categories, with all that they have.
    """

    name: str
    columns: Sequence[str]
    rows: int
    read: Callable[[str], "pa.ChunkedArray"]
    categories: Mapping[str, Sequence[str]] = MappingProxyType({})


def needed(package: str, extra: str, what: str) -> FedMomError:
    """Return the error of a package that is not installed."""
    return FedMomError(f"{what} needs {package}: pip install 'fedmom[{extra}]'")


def import_arrow(what: str) -> None:
    """Raise an error if pyarrow is missing."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise needed("pyarrow", "pandas", what) from None


def from_table(
    table: Table,
    label: Names,
    client: str | None,
    features: Names | None,
    test: str | None,
    division: Division,
    task: Task | None,
    is_test: NDArray[np.bool_] | None = None,
    decode: Mapping[str, Decode] | None = None,
    class_names: Sequence[str] | None = None,
    categories: Names | None = None,
) -> FederatedData:
    """Read the columns of a table that are asked for, and build a population.

    Args:
        table: The table.
        label: The column of labels, or several.
        client: The column of client ids.
        features: The columns of inputs; all others, if None.
        test: The column of test marks.
        division: How rows are divided.
        task: What the labels are, where it does not show.
        is_test: The test marks themselves, instead of a column.
        decode: Columns that are images, with what makes an array of them.
        class_names: The names of classes 0, 1, ..., where the table knows them.
        categories: The columns of inputs that hold categories; see ``Table.categories``, too.
    """
    if test is not None and is_test is not None:
        raise FedMomError(f"{table.name} has a split for testing already. Leave test={test} out.")
    marked = test is not None or is_test is not None
    division.check(table.name, ids=client is not None, marked=marked)
    labels = listed(label, table.columns)
    marks = tuple(name for name in (client, test) if name is not None)
    if not labels:
        raise FedMomError(f"{table.name}: label names no column.")
    others = [*labels, *marks]
    if features is None:
        inputs_from = [column for column in table.columns if column not in others]
    else:
        inputs_from = listed(features, table.columns)
    roles = [(name, "label") for name in labels] + [(name, "features") for name in inputs_from]
    pairs = (client, "client"), (test, "test")
    _check_columns(table, [*roles, *((name, role) for name, role in pairs if name is not None)])
    known = _categories(table, inputs_from, categories)
    if decode and len(inputs_from) == 1 and inputs_from[0] in decode:
        x = decode[inputs_from[0]](table.read(inputs_from[0]))
        read_from: tuple[Column, ...] = (Column(inputs_from[0], "image"),)
    else:
        x, read_from = table_inputs(table, inputs_from, known)
    found = _labels(table, labels, x.shape[1:], task, class_names)
    clients = None if client is None else owners(table.name, _ids(table, client))
    tests = is_test if test is None else _values(table, test)
    columns = Columns(read_from, tuple(labels), marks)
    return replace(assemble(table.name, x, found, clients, division, tests), columns=columns)


def _categories(
    table: Table, inputs_from: Sequence[str], asked: Names | None
) -> dict[str, Sequence[str] | None]:
    """Return the columns of inputs that hold categories, with those that are known."""
    known: dict[str, Sequence[str] | None] = {
        name: own for name, own in table.categories.items() if name in inputs_from
    }
    for name in listed(asked or (), table.columns):
        if name not in inputs_from:
            raise FedMomError(
                f"{table.name}: categories names {short(name)}, which is not a column of inputs."
                f" Choose some of: {some_of(inputs_from)}."
            )
        known.setdefault(name, None)
    return known


def table_inputs(
    table: Table, names: Sequence[str], categories: Mapping[str, Sequence[str] | None]
) -> tuple[NDArray[Any], tuple[Column, ...]]:
    """Return columns side by side as inputs, and what each of them holds.

    Args:
        table: The table.
        names: The columns.
        categories: Those of them that hold categories, with all that they have; None: those that
            occur.
    """
    kinds: dict[str, Any] = {}
    codes = {
        name: coded(f"{table.name}: column {name!r}", _values(table, name), categories[name])
        for name in names
        if name in categories
    }

    def read(name: str) -> "pa.ChunkedArray":
        column = table.read(name)
        kinds[name] = _kind(column.type)
        return column

    if not codes:
        x = inputs(table.name, _features(table._replace(read=read), names))
        return x, tuple(Column(name, kinds[name]) for name in names)
    widths = [len(codes[name][1]) if name in codes else 1 for name in names]
    check_memory(table.name, 4 * table.rows * sum(widths), SMALLER)
    x = np.empty((table.rows, sum(widths)), np.float32)
    for name, end, width in zip(names, np.cumsum(widths).tolist(), widths, strict=True):
        part = x[:, end - width : end]
        if name in codes:
            spread(codes[name][0], part)
        else:
            part[...] = inputs(table.name, _features(table._replace(read=read), [name]))
    return x, tuple(
        Column(name, "category", codes[name][1]) if name in codes else Column(name, kinds[name])
        for name in names
    )


def _kind(arrow: "pa.DataType") -> str:
    """Return what a column of inputs holds; texts that are numbers are read as numbers."""
    import pyarrow.types as types

    if types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow):
        return "list"
    return "bool" if types.is_boolean(arrow) else "number"


def _labels(
    table: Table,
    names: Sequence[str],
    shape: tuple[int, ...],
    task: Task | None,
    classes: Sequence[str] | None,
) -> Labels:
    found = [_values(table, name) for name in names]
    what = f"{table.name}, label {'+'.join(names)}"
    if len(found) == 1:
        return read_labels(what, found[0], shape, task, classes)
    if any(column.ndim > 1 for column in found):
        raise FedMomError(f"{what}: a column of lists must be the only label.")
    labels = read_labels(what, np.column_stack(found), shape, task)
    return labels._replace(names=tuple(names)) if labels.task == "multilabel" else labels


def _check_columns(table: Table, roles: Sequence[tuple[str, str]]) -> None:
    """Refuse columns that are not there; they come with the arguments that name them."""
    wanted = [name for name, _ in roles]
    if len(table.columns) == 1 and any(name not in table.columns for name in wanted):
        raise FedMomError(
            f"{table.name} has one column, {table.columns[0]!r}. Columns are separated by commas in"
            " .csv files, and by tabs in .tsv files."
        )
    here, asked = Counter(table.columns), Counter(wanted)  # there may be many thousands
    for name in asked:
        if name not in here:
            _refuse_missing_column(table, name, dict(roles)[name])
        if here[name] > 1:
            raise FedMomError(f"{table.name} has two columns called {name!r}. Rename one.")
        if asked[name] > 1:
            raise FedMomError(
                f"{table.name}: column {name!r} is named twice. It is one of client, label, test"
                " or features."
            )
    if not table.rows:
        raise FedMomError(f"{table.name} has no rows.")


def _refuse_missing_column(table: Table, name: str, role: str) -> NoReturn:
    close = difflib.get_close_matches(name[:LETTERS], table.columns, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    others = len(table.columns) - SHOWN
    shown = ", ".join(table.columns[:SHOWN]) + (f" and {others:,} others" if others > 0 else "")
    raise FedMomError(
        f"There is no column in {table.name} called {short(name)}, as {role} says.{hint} Choose one"
        f" of: {shown}."
    )


def listed(names: Names, columns: Sequence[str] = ()) -> list[str]:
    """Return names of columns; on the command line several are joined by +."""
    if not isinstance(names, str):
        return list(names)
    return [names] if names in columns else names.split("+")


def _values(table: Table, name: str) -> NDArray[Any]:
    """Return a column of numbers, bools, texts, or lists of numbers of one length."""
    return _array(f"{table.name}: column {name!r}", table.read(name))


def text_values(table: Table, name: str) -> list[str]:
    """Return a column of texts."""
    _check_columns(table, [(name, "text")])
    found = _values(table, name)
    if found.dtype.kind != "O":
        raise FedMomError(f"{table.name}: column {name!r} does not hold texts.")
    return list(found)


def _ids(table: Table, name: str) -> NDArray[Any]:
    """Return a column of client ids. Texts that are whole numbers are sorted as such."""
    import pyarrow as pa
    import pyarrow.types as types

    column = table.read(name)
    kind = column.type
    if types.is_temporal(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        column = column.cast(pa.string())
    found = _array(f"{table.name}: client column {name!r}", column)
    if found.dtype.kind == "O":
        return numbers_or_texts(found.tolist())
    return found


def _features(table: Table, names: Sequence[str]) -> NDArray[Any]:
    """Return columns of numbers side by side: whole where all are whole, else 32-bit floats.

    Columns are read one after another. A single column may hold lists.
    """
    if not names:
        raise FedMomError(
            f"{table.name} has no column left for the inputs. Name them: features=a+b+c."
        )
    first = _numbers(table, names[0])
    if first.ndim > 1:
        if len(names) > 1:
            raise FedMomError(
                f"{table.name}: column {names[0]!r} holds lists, so it must be the only input, but"
                f" so are {len(names) - 1} others. Name the one: features={names[0]}."
            )
        return first
    check_memory(table.name, 12 * table.rows * len(names), SMALLER)
    out = np.empty((table.rows, len(names)), first.dtype)
    for place, name in enumerate(names):
        column = first if place == 0 else _numbers(table, name)
        if column.ndim > 1:
            raise FedMomError(
                f"{table.name}: column {name!r} holds lists, so it must be the only input. Name"
                f" the inputs: features={name}, or all others."
            )
        if (kind := np.result_type(out, column)) != out.dtype:
            out = out.astype(np.float32 if kind.kind == "f" else kind)
        out[:, place] = column
    return out


def _numbers(table: Table, name: str) -> NDArray[Any]:
    """Return a column of finite numbers in 32 bits (bytes stay bytes)."""
    column = _values(table, name)
    what = f"{table.name}: column {name!r}"
    if column.dtype.kind == "O":
        wrong = np.array([not _is_float(text) for text in column])
        refuse_row(
            f"{what}: the value",
            wrong,
            column,
            "a number; name columns of categories in categories=, or exclude them with features=",
        )
        column = column.astype(np.float64)
    if column.dtype.kind in "bf":
        return as_floats(f"{what}: the value", column)
    if column.dtype.itemsize > 4 or column.dtype == np.uint32:
        bounds = np.iinfo(np.int32)
        wrong = (column < bounds.min) | (column > bounds.max)
        refuse_row(f"{what}: the value", wrong, column, "a whole number of 32 bits, or a float")
        return column.astype(np.int32)
    return column


def _array(what: str, column: "pa.ChunkedArray") -> NDArray[Any]:
    import pyarrow as pa
    import pyarrow.types as types

    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([c.storage for c in column.chunks], column.type.storage_type)
    kind = column.type
    if types.is_dictionary(kind) and types.is_primitive(kind.value_type):
        column, kind = column.cast(kind.value_type), kind.value_type
    if column.null_count:
        missing = column.is_null().to_numpy()
        raise FedMomError(
            f"{what} has no value in row {int(np.argmax(missing))}{others_like(missing)}."
            " Fill it in, or leave the row out."
        )
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(what, column)
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if str(inner) in ("string", "large_string", "string_view"):
        return _texts(column)
    if types.is_decimal(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise FedMomError(
            f"{what} is of type {inner}. It must hold numbers, bools, texts, or lists of numbers."
        )
    found: NDArray[Any] = column.to_numpy()
    return found


def _texts(column: "pa.ChunkedArray") -> NDArray[Any]:
    """Return texts as Python's own, each different one once in memory."""
    import pyarrow as pa
    import pyarrow.types as types

    coded = types.is_dictionary(column.type)
    column = column.unify_dictionaries() if coded else column.dictionary_encode()
    if not column.num_chunks:
        return np.empty(0, object)
    different = np.array(column.chunk(0).dictionary.to_pylist(), object)
    codes = pa.chunked_array([c.indices for c in column.chunks]).to_numpy()
    return different[codes]


def _lists(what: str, column: "pa.ChunkedArray") -> NDArray[Any]:
    import pyarrow.compute as pc

    lengths = pc.list_value_length(column).to_numpy()
    if not lengths.size:
        return np.empty((0, 0))
    allowed = f"as long as that of row 0, which is {lengths[0]}"
    refuse_row(f"{what}: the length of the list", lengths != lengths[0], lengths, allowed)
    inner = _array(f"{what}, inside its lists", pc.list_flatten(column))
    return inner.reshape(len(column), int(lengths[0]), *inner.shape[1:])


def _is_float(text: Any) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
