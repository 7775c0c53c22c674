"""What goes over the wire: trees of arrays and numbers as Flower's records, and back.

What devices send is checked, never trusted: every number, before it counts.
"""

import io
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedmom.core.types import Params
from fedmom.models.base import Model
from fedmom.models.losses import NEVER_NEGATIVE
from fedmom.runtimes.base import Block, Clients
from fedmom.runtimes.scoring import cap

MODEL, TASK, UPDATE, FACTS = "model", "task", "update", "facts"  # the names of records
NEW = -1  # in place of a round: a client that has no state yet
HEADER = 4096  # bytes: more than NumPy writes before an array's numbers
HEADERS = {  # what reads one, by the version of NumPy's format
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
MOST_METRICS = 100
LONGEST_ROW = 100_000  # numbers that a metric may be made of
BYTES_OF_A_ROW = 8 * LONGEST_ROW
METRIC = r"(?!norm$)[A-Za-z][\w./-]{0,63}"  # the norm is measured by the server
Sums = dict[str, float | list[float]]  # by metric, over a client's samples


class UnusableReplyError(Exception):
    """What a device sent cannot be used; the text says why, in words for the round's record."""


def arrays_of(tree: Params) -> ArrayRecord:
    """Return the leaves of a tree as arrays called 0, 1, 2, ..."""
    return ArrayRecord([_plain(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)])


def tree_of(content: RecordDict, name: str, form: Params) -> Params:
    """Return a tree from a message's arrays, if they have the form that is expected.

    Args:
        content: What was received.
        name: The record's name.
        form: A tree of arrays, or of shapes and types.

    Raises:
        UnusableReplyError: Names, shapes, types or lengths are others.
    """
    record = content.get(name)
    leaves, structure = jax.tree.flatten(form)
    if not isinstance(record, ArrayRecord):
        raise UnusableReplyError(f"it has no arrays called {name!r}")
    if set(record) != {str(i) for i in range(len(leaves))}:
        raise UnusableReplyError(
            f"it has {len(record)} arrays, not {len(leaves)} named 0 to {len(leaves) - 1}"
        )
    read = [_read(record[str(i)], leaf) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, read)


def named_arrays(
    content: RecordDict, name: str, form: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a record that keeps their names, if they have the expected form.

    Raises:
        UnusableReplyError: Names, shapes, types or lengths are others.
    """
    record = content.get(name)
    if not isinstance(record, ArrayRecord) or set(record) != set(form):
        raise UnusableReplyError(f"its {name} do not have the model's names")
    return {key: _read(record[key], expected) for key, expected in form.items()}


def bytes_of(form: Params) -> int:
    """Return how many bytes a tree may take as a record, at most."""
    return sum(
        math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize + HEADER
        for leaf in jax.tree.leaves(form)
    )


def size_of(content: RecordDict) -> int:
    """Return the bytes of what a message says, without Flower's own around it."""
    arrays = (len(a.data) for record in content.array_records.values() for a in record.values())
    others = (*content.metric_records.values(), *content.config_records.values())
    return sum(arrays) + sum(len(record.deflate()) for record in others)


def number(content: RecordDict, name: str, kind: type) -> Any:
    """Return a number that a device tells.

    Raises:
        UnusableReplyError: It is missing, or of another type.
    """
    found = _told(content, name)
    if type(found) is not kind:
        raise UnusableReplyError(f"it does not tell {name} as a number of type {kind.__name__}")
    return found


def numbers(content: RecordDict, name: str) -> float | list[float]:
    """Return a number that a device tells, or a short row of them.

    Raises:
        UnusableReplyError: It is missing, too long, or of another type.
    """
    found = _told(content, name)
    row = found if isinstance(found, list) else [found]
    if not 0 < len(row) <= LONGEST_ROW or any(type(value) is not float for value in row):
        raise UnusableReplyError(f"it does not tell {name} as numbers of type float")
    return found


def _told(content: RecordDict, name: str) -> Any:
    facts = content.get(FACTS)
    return facts.get(name) if isinstance(facts, MetricRecord) else None


def block(client: int, round_: int, content: RecordDict, form: Params) -> Block:
    """Return a reply as the loop takes it.

    Args:
        client: Who was asked.
        round_: The round.
        content: What came back.
        form: The shapes and types of an update.

    Raises:
        UnusableReplyError: It is not what was asked for.
    """
    update = tree_of(content, UPDATE, form)
    samples = number(content, "samples", int)
    metrics = _metrics(content)
    if not 0 <= samples < 2**62:
        raise UnusableReplyError("it claims a number of samples that nobody has")
    return Block(
        clients=np.array([client]),
        update=jax.tree.map(lambda leaf: leaf[None], update),
        samples=np.array([samples]),
        metrics={name: np.array([value], np.float32) for name, value in metrics.items()},
        version=round_,
    )


def _metrics(content: RecordDict) -> dict[str, float]:
    """Return the loss, and what else a device reports of its training."""
    loss = number(content, "loss", float)
    names = [name for name in content.metric_records[FACTS] if name not in ("loss", "samples")]
    if len(names) > MOST_METRICS or not all(re.fullmatch(METRIC, name) for name in names):
        raise UnusableReplyError("it reports too many metrics, or names that no metric has")
    return {"loss": loss} | {name: number(content, name, float) for name in names}


def taken(sizes: Clients, budget: int | None) -> Clients:
    """Return how many of its samples every client evaluates."""
    return np.minimum(sizes, cap(sizes[sizes > 0], budget))


def all_sums(
    content: RecordDict, takes: Mapping[str, Clients], client: int, model: Model
) -> dict[str, Sums]:
    """Return a device's sums on every split that it has samples of."""
    counts = {split: int(count[client]) for split, count in takes.items()}
    return {split: _sums(content, split, count, model) for split, count in counts.items() if count}


def _sums(content: RecordDict, split: str, expected: int, model: Model) -> Sums:
    """Return a device's sums over its samples of a split."""
    metrics = model.metrics
    evaluated = number(content, f"{split}/evaluated", int)
    if evaluated != expected:
        raise UnusableReplyError(f"it evaluated {evaluated} {split} samples, not {expected}")
    names = ("loss", *(metric.name for metric in metrics))
    sums = {name: numbers(content, f"{split}/sum/{name}") for name in names}
    if not isinstance(sums["loss"], float) and len(sums["loss"]) != 2:
        raise UnusableReplyError("it does not tell its loss as one number, or a sum and a count")
    if model.loss in NEVER_NEGATIVE and np.min(sums["loss"]) < 0:
        raise UnusableReplyError(f"it reports a loss below 0, {np.min(sums['loss']):g}")
    for metric in metrics:
        right = sums[metric.name]
        if metric.hits and not (isinstance(right, float) and 0 <= right <= evaluated):
            raise UnusableReplyError(f"it claims to be right on {right} of {evaluated}")
    return sums


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in a type that NumPy's files know; bfloat16 and the like become bits."""
    array = np.asarray(array, order="C")  # ascontiguousarray would give a number a dimension
    return array.view(_wire_type(array.dtype)) if array.dtype.kind == "V" else array


def _wire_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else dtype


def _read(array: Array, expected: Any) -> NDArray[Any]:
    """Return the numbers of one array. Its header is read first: it may claim anything."""
    shape, dtype = tuple(expected.shape), np.dtype(expected.dtype)
    wire = _wire_type(dtype)
    if tuple(array.shape) != shape or array.dtype != str(wire):
        raise UnusableReplyError(
            f"it has an array {_short(array.dtype)} of shape {_short(tuple(array.shape))},"
            f" not {wire} of shape {shape}"
        )
    file = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(file)
        found, fortran, inside = HEADERS[version](file)
    except (ValueError, KeyError, EOFError, SyntaxError, TypeError):
        raise UnusableReplyError("it has an array that cannot be read") from None
    if found != shape or inside != wire:
        raise UnusableReplyError(
            f"it has an array that is {_short(inside)} of shape {_short(found)} inside,"
            f" not {wire} of shape {shape}"
        )
    content = array.data[file.tell() :]
    if len(content) != math.prod(shape) * wire.itemsize:
        raise UnusableReplyError(f"it has an array of {len(content)} bytes, for shape {shape}")
    flat = np.frombuffer(content, wire).reshape(shape, order="F" if fortran else "C")
    return np.ascontiguousarray(flat).view(dtype).reshape(shape)


def _short(text: Any) -> str:
    """Return a stranger's text in few letters."""
    return str(text)[:60]
