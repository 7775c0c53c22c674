"""Tables: a pandas DataFrame, a CSV file, a Parquet file."""

import contextlib
import csv
import datetime
import functools
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from fedmom.core.arguments import checked, short
from fedmom.core.errors import FedMomError
from fedmom.core.files import user_path
from fedmom.core.validation import Seed, check_memory
from fedmom.data.federated import FederatedData, Task
from fedmom.data.rows.assembly import Division
from fedmom.data.rows.columns import SMALLER, Names, Table, from_table, import_arrow, listed
from fedmom.data.source_files import check_ratio, file_identity, said
from fedmom.data.store.writer import cached, save_store

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
PARQUET = (".parquet",)
BLOCK = 2**24  # bytes: how much of a file is looked at together, and the longest row
OBJECTS: dict[str, tuple[type, ...]] = {  # what a pandas column of objects may hold
    "texts": (str,),
    "bools": (bool, np.bool_),
    "numbers": (int, float, np.integer, np.floating, Decimal),
    "dates": (datetime.date,),
    "lists": (list, tuple, np.ndarray),
}
AT_ONCE, NESTED_AT_ONCE = 2**16, 2**8  # rows
TEXTS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
COLUMN = 2**13  # bytes that Arrow takes to read a column of a CSV file, however short it is
READER = 3  # counts changes in what is made of a file, so that no cache hands out the former


@checked
def from_csv(
    path: str | Path,
    *,
    label: Names,
    client: str | None = None,
    features: Names | None = None,
    categories: Names | None = None,
    test: str | None = None,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: Seed = 0,
    task: Task | None = None,
) -> FederatedData:
    """Read a CSV file with a line of column names (.csv, .tsv, or gzipped). Needs pyarrow.

    Args:
        path: The file.
        label: The column of labels; several, ``"a+b"`` or a list, for several labels a row.
        client: The column of client ids. Leave it out to make clients by ``partition``.
        features: The columns of inputs, ``"a+b"`` or a list. By default all other columns.
        categories: Those of them that hold categories, texts or whole numbers: each category
            becomes an input of 0 and 1.
        test: The column that says which rows are for testing: true or false, 1 or 0, test or
            train.
        test_fraction: As for ``from_arrays``, and so are the others.
        partition: Instead of ``client``: how rows are dealt to clients.
        seed: The seed of ``test_fraction`` and ``partition``.
        task: What the labels are, where it does not show.

    Returns:
        The population. Columns of whole numbers alone make whole inputs, others make floats.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "visits.csv"
        >>> _ = path.write_text("user,age,ill\\nann,31,no\\nbob,54,yes\\nann,32,no\\n")
        >>> data = from_csv(path, client="user", label="ill")
        >>> list(data.users), data.features.shape, data.class_names
        (['ann', 'bob'], (1,), ('no', 'yes'))
    """
    file = user_path(str(path), "path")
    wanted = None if features is None else listed(features)
    others = [name for name in (client, test) if name is not None]
    asked = None if wanted is None else {*wanted, *listed(label), *others}
    division = Division(test_fraction, partition, seed)
    chosen = None if categories is None else listed(categories)
    texts = [name for name in (client, *(chosen or ())) if name is not None]  # 007 is not 7
    table = _csv(file, asked, texts)
    return from_table(table, label, client, wanted, test, division, task, categories=chosen)


@checked
def from_parquet(
    path: str | Path,
    *,
    label: Names,
    client: str | None = None,
    features: Names | None = None,
    categories: Names | None = None,
    test: str | None = None,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: Seed = 0,
    task: Task | None = None,
) -> FederatedData:
    """Read a Parquet file, one column after another. Needs pyarrow.

    Args:
        path: The file.
        label: The column of labels, as for ``from_csv``; it may hold lists.
        client: The column of client ids.
        features: The columns of inputs; or one column of lists of numbers, all of one length.
        categories: Those that hold categories, as for ``from_csv``.
        test: The column that says which rows are for testing.
        test_fraction: As for ``from_arrays``, and so are the others.
        partition: Instead of ``client``: how rows are dealt to clients.
        seed: The seed of ``test_fraction`` and ``partition``.
        task: What the labels are, where it does not show.

    Returns:
        The population.

    Examples:
        >>> import pyarrow as pa, pyarrow.parquet, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "points.parquet"
        >>> table = pa.table({"who": [7, 8, 7], "x": [[1, 2], [3, 4], [5, 6]], "y": [0, 1, 1]})
        >>> pa.parquet.write_table(table, path)
        >>> from_parquet(path, client="who", label="y").features.shape
        (2,)
    """
    division = Division(test_fraction, partition, seed)
    table = _parquet(user_path(str(path), "path"))
    return from_table(table, label, client, features, test, division, task, categories=categories)


@checked
def from_dataframe(
    frame: "pd.DataFrame",
    *,
    label: Names,
    client: str | None = None,
    features: Names | None = None,
    categories: Names | None = None,
    test: str | None = None,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: Seed = 0,
    task: Task | None = None,
    name: str = "dataframe",
) -> FederatedData:
    """Build a population from a pandas DataFrame. Needs pandas and pyarrow.

    Args:
        frame: The DataFrame; its index is not used.
        label: The column of labels, as for ``from_csv``.
        client: The column of client ids.
        features: The columns of inputs. By default all other columns.
        categories: Those that hold categories, as for ``from_csv``; those of pandas' type
            "category" do, in any case, and have all categories of the type.
        test: The column that says which rows are for testing.
        test_fraction: As for ``from_arrays``, and so are the others.
        partition: Instead of ``client``: how rows are dealt to clients.
        seed: The seed of ``test_fraction`` and ``partition``.
        task: What the labels are, where it does not show.
        name: What the data is called in messages, tables and figures.

    Returns:
        The population.

    Examples:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"user": [3, 3, 5], "a": [0.5, 1, 2], "y": [1, 0, 1]})
        >>> data = from_dataframe(frame, client="user", label="y")
        >>> list(data.users), data.train.size.tolist()
        (['3', '5'], [2, 1])
    """
    division = Division(test_fraction, partition, seed)
    table = table_of(frame, name)
    return from_table(table, label, client, features, test, division, task, categories=categories)


def table_of(frame: "pd.DataFrame", name: str) -> Table:
    """Return a DataFrame as a table; columns are called by the texts of their names."""
    import_arrow("A DataFrame")
    import pyarrow as pa

    if not hasattr(frame, "columns") or not hasattr(frame, "set_axis"):
        raise FedMomError(f"{name}: frame is {short(frame)}. It must be a pandas DataFrame.")

    def read(column: str) -> "pa.ChunkedArray":
        values = frame[column]
        if values.dtype == object:
            _check_objects(f"{name}: column {column!r}", set(map(type, values.dropna())))
        try:
            array = pa.array(values, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise FedMomError(f"{name}: column {column!r} cannot be read: {said(error)}.") from None
        return pa.chunked_array([array])

    if not all(isinstance(column, str) for column in frame.columns):
        frame = frame.set_axis([str(column) for column in frame.columns], axis="columns")
    kinds: dict[str, Any] = {name: getattr(frame[name], "dtype", None) for name in frame.columns}
    own = {
        name: [str(value) for value in kind.categories]
        for name, kind in kinds.items()
        if getattr(kind, "name", "") == "category"
    }
    return Table(name, list(frame.columns), len(frame), read, own)


def _check_objects(what: str, kinds: set[type]) -> None:
    """Refuse a column of several types: Arrow takes the number 0 for the day 1970-01-01."""
    words = {
        kind: next((word for word, known in OBJECTS.items() if issubclass(kind, known)), None)
        for kind in kinds
        if not issubclass(kind, np.timedelta64)
    }
    if len(words) < len(kinds) or len({*words.values()}) > 1 or None in words.values():
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise FedMomError(
            f"{what} has values of type {names}. All must be texts, bools, numbers, or lists of"
            " numbers."
        )


def is_table(path: Path) -> bool:
    """Return whether a path is that of a CSV or Parquet file."""
    return path.name.lower().endswith((*CSV, *PARQUET))


def load_table(
    path: Path,
    *,
    label: str,
    client: str | None = None,
    features: str | None = None,
    categories: str | None = None,
    test: str | None = None,
    test_fraction: float | None = None,
    seed: Seed = 0,
    task: Task | None = None,
    partition: str | None = None,
) -> FederatedData:
    """Open a CSV or Parquet file; the first time it is packed, later only mapped."""
    options = {name: value for name, value in locals().items() if name != "path"}
    read = from_parquet if path.name.lower().endswith(PARQUET) else from_csv
    files = file_identity([path])
    return cached(
        path.stem,
        ["table", READER, files, options],
        lambda folder: save_store(read(path, **options), folder, {"files": files, **options}),
    )


def _csv(path: Path, wanted: set[str] | None, texts: Sequence[str]) -> Table:
    """Read a CSV file; numbers, bools and texts are told apart over all rows of a column."""
    import_arrow(path.name)
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    parse = arrow_csv.ParseOptions(
        delimiter="\t" if ".tsv" in path.name.lower() else ",", newlines_in_values=True
    )
    once = arrow_csv.ReadOptions(use_threads=False, block_size=BLOCK)
    with _readable(path, pa):
        rows, head = _lines(path, pa)
        names = _header(head, parse.delimiter)
        asked = names if wanted is None else [name for name in names if name in wanted]
        what, room = f"{path.name} with {len(asked):,} columns", COLUMN * len(asked)
        check_ratio(what, room, path.stat().st_size, "Save it as .parquet if it is right.")
        check_memory(what, room + 12 * rows * len(asked), SMALLER)
        types = dict.fromkeys(texts, pa.string())
        convert = arrow_csv.ConvertOptions(
            include_columns=asked, column_types=types, null_values=[""], strings_can_be_null=True
        )
        with _opened(path, pa, f"reading {path.name}") as file:
            table = arrow_csv.read_csv(file, once, parse, convert)
    return Table(path.name, names, table.num_rows, table.column)


def _parquet(path: Path) -> Table:
    import_arrow(path.name)
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _readable(path, pa):
        schema = pq.read_schema(path)
        texts = [field.name for field in schema if str(field.type) in TEXTS]
        file = pq.ParquetFile(path, read_dictionary=texts)  # one text in many rows is read once
        rows, names = file.metadata.num_rows, schema.names
        place = {name: number for number, name in enumerate(names)}
        sizes = _sizes(file.metadata)
    check_memory(path.name, 12 * rows, SMALLER)

    def read(name: str) -> "pa.ChunkedArray":
        with _readable(path, pa):
            check = functools.partial(_check_size, path, name)
            check(sizes[name])
            column = _read_column(file, name, schema.field(place[name]).type, check)
            column.validate(full=True)  # texts that are not UTF-8, places outside a dictionary
        if len(column) != rows:
            raise FedMomError(f"{path.name}: column {name!r} has {len(column)} of {rows} rows.")
        return column

    return Table(path.name, names, rows, read)


def _sizes(about: Any) -> Counter[str]:
    """Return how many bytes every column takes, as the file says, or has values for."""
    sizes: Counter[str] = Counter()
    for number in range(about.num_row_groups):
        group = about.row_group(number)
        for place in range(group.num_columns):
            chunk = group.column(place)
            size = max(8 * chunk.num_values, chunk.total_uncompressed_size)
            names = chunk.path_in_schema.split(".")  # of a column a.b, or b inside a
            for end in range(1, len(names) + 1):
                sizes[".".join(names[:end])] += size
    return sizes


def _check_size(path: Path, name: str, size: int) -> None:
    """Refuse a column that few bytes of the file make long: repeated values cost it nothing."""
    what = f"{path}: column {name!r}"
    check_ratio(what, size, path.stat().st_size, "Save it as .csv if it is right.")
    check_memory(what, size, SMALLER)


def _read_column(
    file: Any, name: str, kind: Any, check: Callable[[int], None]
) -> "pa.ChunkedArray":
    """Read a column in parts, as what a file says of its own size need not be true."""
    import pyarrow as pa

    parts, before = [], pa.total_allocated_bytes()
    rows = NESTED_AT_ONCE if pa.types.is_nested(kind) else AT_ONCE
    for batch in file.iter_batches(rows, columns=[name], use_threads=False):
        parts.append(batch.column(0))
        check(pa.total_allocated_bytes() - before)
    return pa.chunked_array(parts)


def _header(head: bytes, delimiter: str) -> list[str]:
    """Return the names in the first line that is not empty: Arrow takes kilobytes for each."""
    text = io.StringIO(head.decode("utf-8-sig", "surrogateescape"), newline="")
    return next(filter(None, csv.reader(text, delimiter=delimiter)), [])


def _lines(path: Path, pa: Any) -> tuple[int, bytes]:
    """Count the ends of lines: a bound of the rows, before memory is asked for.

    Also returns the first block of the file.
    """
    count, size, packed, head = 1, 0, path.stat().st_size, b""
    with _opened(path, pa) as file:
        while block := file.read(BLOCK):
            head = head or block
            size += len(block)
            check_ratio(str(path), size, packed, "Unpack it (gunzip) if it is right.")
            count += max(block.count(b"\n"), block.count(b"\r"))
    return count, head


@contextlib.contextmanager
def _opened(path: Path, pa: Any, progress: str = "") -> Iterator[IO[bytes]]:
    from fedmom.core.progress import bars

    packed = path.suffix.lower() == ".gz"
    with bars() as bar, bar.open(path, "rb", description=progress) as file:
        yield pa.CompressedInputStream(pa.PythonFile(file), "gzip") if packed else file


@contextlib.contextmanager
def _readable(path: Path, pa: Any) -> Iterator[None]:
    """Make a sentence of what Arrow raises on files that are damaged or not what they say."""
    try:
        yield
    except FedMomError:
        raise
    except (pa.ArrowException, csv.Error, OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
            raise FedMomError(f"{path} cannot be read: {error.strerror}.") from None
        raise FedMomError(f"{path} cannot be read: {said(error)}.") from None
