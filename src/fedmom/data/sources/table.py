"""Tables: a pandas DataFrame, a CSV file, a Parquet file."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

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
READER = 2  # counts changes in what is made of a file, so that no cache hands out the former


def from_csv(
    path: str | Path,
    *,
    label: Names,
    client: str | None = None,
    features: Names | None = None,
    test: str | None = None,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: int = 0,
    task: Task | None = None,
) -> FederatedData:
    """Read a CSV file with a line of column names (.csv, .tsv, or gzipped). Needs pyarrow.

    Args:
        path: The file.
        label: The column of labels; several, ``"a+b"`` or a list, for several labels a row.
        client: The column of client ids. Leave it out to make clients by ``partition``.
        features: The columns of inputs, ``"a+b"`` or a list. By default all other columns.
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
    asked = None if wanted is None else [*wanted, *listed(label), *filter(None, (client, test))]
    division = Division(test_fraction, partition, seed)
    return from_table(_csv(file, asked, client), label, client, wanted, test, division, task)


def from_parquet(
    path: str | Path,
    *,
    label: Names,
    client: str | None = None,
    features: Names | None = None,
    test: str | None = None,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: int = 0,
    task: Task | None = None,
) -> FederatedData:
    """Read a Parquet file, one column after another. Needs pyarrow.

    Args:
        path: The file.
        label: The column of labels, as for ``from_csv``; it may hold lists.
        client: The column of client ids.
        features: The columns of inputs; or one column of lists of numbers, all of one length.
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
    return from_table(table, label, client, features, test, division, task)


def from_dataframe(
    frame: "pd.DataFrame",
    *,
    label: Names,
    client: str | None = None,
    features: Names | None = None,
    test: str | None = None,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: int = 0,
    task: Task | None = None,
    name: str = "dataframe",
) -> FederatedData:
    """Build a population from a pandas DataFrame. Needs pandas and pyarrow.

    Args:
        frame: The DataFrame; its index is not used.
        label: The column of labels, as for ``from_csv``.
        client: The column of client ids.
        features: The columns of inputs. By default all other columns.
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
    return from_table(table_of(frame, name), label, client, features, test, division, task)


def table_of(frame: "pd.DataFrame", name: str) -> Table:
    """Return a DataFrame as a table; columns are called by the texts of their names."""
    import_arrow("A DataFrame")
    import pyarrow as pa

    def read(column: str) -> "pa.ChunkedArray":
        try:
            return pa.chunked_array([pa.array(frame[column], from_pandas=True)])
        except (pa.ArrowException, TypeError) as error:
            raise FedMomError(f"{name}: column {column!r} cannot be read: {said(error)}.") from None

    if not all(isinstance(column, str) for column in frame.columns):
        frame = frame.rename(columns=str)
    return Table(name, list(frame.columns), len(frame), read)


def is_table(path: Path) -> bool:
    """Return whether a path is that of a CSV or Parquet file."""
    return path.name.lower().endswith((*CSV, *PARQUET))


def load_table(
    path: Path,
    *,
    label: str,
    client: str | None = None,
    features: str | None = None,
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


def _csv(path: Path, wanted: list[str] | None, client: str | None) -> Table:
    """Read a CSV file; numbers, bools and texts are told apart over all rows of a column."""
    import_arrow(path.name)
    import pyarrow as pa
    from pyarrow import csv

    parse = csv.ParseOptions(
        delimiter="\t" if ".tsv" in path.name.lower() else ",", newlines_in_values=True
    )
    once = csv.ReadOptions(use_threads=False, block_size=BLOCK)
    with _readable(path, pa):
        rows = _lines(path, pa)
        with _opened(path, pa) as file, csv.open_csv(file, once, parse) as head:
            names = head.schema.names
        asked = names if wanted is None else [name for name in names if name in wanted]
        check_memory(path.name, 12 * rows * len(asked), SMALLER)
        types = {client: pa.string()} if client else {}  # 007 is not 7
        convert = csv.ConvertOptions(
            include_columns=asked, column_types=types, null_values=[""], strings_can_be_null=True
        )
        with _opened(path, pa, f"reading {path.name}") as file:
            table = csv.read_csv(file, once, parse, convert)
    return Table(path.name, names, table.num_rows, table.column)


def _parquet(path: Path) -> Table:
    import_arrow(path.name)
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _readable(path, pa):
        schema = pq.read_schema(path)
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        file = pq.ParquetFile(path, read_dictionary=texts)  # one text in many rows is read once
        rows, names = file.metadata.num_rows, schema.names
    check_memory(path.name, 12 * rows, SMALLER)

    def read(name: str) -> "pa.ChunkedArray":
        with _readable(path, pa):
            _check_values(path, file.metadata, name)
            column = file.read([name], use_threads=False).column(name)
            column.validate(full=True)  # texts that are not UTF-8, places outside a dictionary
        if len(column) != rows:
            raise FedMomError(f"{path.name}: column {name!r} has {len(column)} of {rows} rows.")
        return column

    return Table(path.name, names, rows, read)


def _check_values(path: Path, about: Any, name: str) -> None:
    """Refuse a column that few bytes of the file make long: repeated values cost it nothing."""
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    own = (chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] == name)
    size = 8 * sum(chunk.num_values for chunk in own)
    what = f"{path}: column {name!r}"
    check_ratio(what, size, path.stat().st_size, "Save it as .csv if it is right.")
    check_memory(what, size, SMALLER)


def _lines(path: Path, pa: Any) -> int:
    """Count the ends of lines: a bound of the rows, before memory is asked for."""
    count, size, packed = 1, 0, path.stat().st_size
    with _opened(path, pa) as file:
        while block := file.read(BLOCK):
            size += len(block)
            check_ratio(str(path), size, packed, "Unpack it (gunzip) if it is right.")
            count += max(block.count(b"\n"), block.count(b"\r"))
    return count


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
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
            raise FedMomError(f"{path} cannot be read: {error.strerror}.") from None
        raise FedMomError(f"{path} cannot be read: {said(error)}.") from None
