"""Columns of a table -> a population: what all kinds of tables share."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.registry import pick_name
from fedmom.data import columns
from fedmom.data.assembly import assemble, check_division, inputs
from fedmom.data.columns import Table
from fedmom.data.federated import FederatedData, Task
from fedmom.data.ids import owners
from fedmom.data.labels import Labels, read_labels

Names = str | Sequence[str]
Decode = Callable[[Any], NDArray[Any]]


def from_table(
    table: Table,
    *,
    label: Names,
    client: str | None,
    features: Names | None,
    test: str | None,
    test_fraction: float | None,
    partition: str | None,
    seed: int,
    task: Task | None,
    is_test: NDArray[np.bool_] | None = None,
    decode: Mapping[str, Decode] | None = None,
    class_names: Sequence[str] | None = None,
) -> FederatedData:
    """Read the columns of a table that are asked for, and build a population.

    Args:
        table: The table.
        label: The column of labels, or several.
        client: The column of client ids.
        features: The columns of inputs; all others, if None.
        test: The column of test marks.
        test_fraction: The share of every client's rows that is drawn for testing.
        partition: How rows are dealt to clients, where there are no ids.
        seed: The seed of both.
        task: What the labels are, where it does not show.
        is_test: The test marks themselves, in place of a column.
        decode: Columns that are images, with what makes an array of them.
        class_names: The names of classes 0, 1, ..., where the table knows them.
    """
    if test is not None and is_test is not None:
        raise FedMomError(f"{table.name} has a split for testing already. Leave test={test} out.")
    marked = test is not None or is_test is not None
    check_division(table.name, client is not None, marked, test_fraction, partition, seed)
    labels = listed(label, table.columns)
    others = [*labels, *filter(None, (client, test))]
    if features is None:
        inputs_from = [column for column in table.columns if column not in others]
    else:
        inputs_from = listed(features, table.columns)
    _check_columns(table, [*others, *inputs_from])
    if decode and len(inputs_from) == 1 and inputs_from[0] in decode:
        x = decode[inputs_from[0]](table.read(inputs_from[0]))
    else:
        x = inputs(table.name, columns.features(table, inputs_from))
    return assemble(
        table.name,
        x,
        _named(table, _labels(table, labels, x.shape[1:], task), class_names),
        None if client is None else owners(table.name, columns.ids(table, client)),
        is_test=is_test if test is None else columns.values(table, test),
        test_fraction=test_fraction,
        partition=partition,
        seed=seed,
    )


def _labels(
    table: Table, names: Sequence[str], shape: tuple[int, ...], task: Task | None
) -> Labels:
    found = [columns.values(table, name) for name in names]
    what = f"{table.name}, label {'+'.join(names)}"
    if len(found) == 1:
        return read_labels(what, found[0], shape, task)
    if any(column.ndim > 1 for column in found):
        raise FedMomError(f"{what}: a column of lists must be the only label.")
    labels = read_labels(what, np.column_stack(found), shape, task)
    return labels._replace(names=tuple(names)) if labels.task == "multilabel" else labels


def _named(table: Table, labels: Labels, names: Sequence[str] | None) -> Labels:
    """Give classes the names that the table has for them."""
    if names is None or labels.task not in ("classes", "sequence"):
        return labels
    if labels.names is not None or labels.classes > len(names):  # negative, or beyond the names
        raise FedMomError(
            f"{table.name}: there are {len(names)} names of classes, and labels outside"
            f" 0..{len(names) - 1}. Leave rows without a label out."
        )
    return labels._replace(classes=len(names), names=tuple(names))


def _check_columns(table: Table, wanted: Sequence[str]) -> None:
    if len(table.columns) == 1 and any(name not in table.columns for name in wanted):
        raise FedMomError(
            f"{table.name} has one column, {table.columns[0]!r}. Columns are separated by commas in"
            " .csv files, and by tabs in .tsv files."
        )
    here, asked = Counter(table.columns), Counter(wanted)  # there may be many thousands
    for name in asked:
        pick_name(here, name, f"column in {table.name} called")
        if here[name] > 1:
            raise FedMomError(f"{table.name} has two columns called {name!r}. Rename one.")
        if asked[name] > 1:
            raise FedMomError(
                f"{table.name}: column {name!r} is named twice. It is one of client, label, test"
                " or features."
            )
    if not table.rows:
        raise FedMomError(f"{table.name} has no rows.")


def listed(names: Names, columns: Sequence[str] = ()) -> list[str]:
    """Return names of columns; on the command line several are joined by +."""
    if not isinstance(names, str):
        return list(names)
    return [names] if names in columns else names.split("+")
