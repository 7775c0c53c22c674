"""Traces of real clients: when they were there, and how fast they were.

FedScale's files are dictionaries by client, described in its
``benchmark/dataset/data/device_info``. They are pickled, and a pickle can run code when it is
loaded, so they are read as JSON only.
"""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.files import of_system, read_named

LARGEST = 2**31  # bytes of a trace
KILOBIT = 1024 / 1e6  # FedScale's, in megabits
TRAINING = 3  # times the time of inference, as FedScale counts it
Intervals = list[tuple[float, float]]
RATES = ("samples_per_second", "down", "up")


class Availability(NamedTuple):
    """The intervals in which clients are there, one client after another.

    Args:
        first: Where the intervals of each client begin, and a last entry where all end.
        start: The begin of each interval, in seconds, sorted within a client.
        end: Its end.
        period: After how many seconds each client's trace repeats.
    """

    first: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    period: NDArray[np.float64]

    def at(
        self, seconds: float | NDArray[np.float64], clients: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return who is there, at one time or at one for every client."""
        pairs = np.broadcast(clients % len(self.period), seconds)
        return np.array([self._is_there(int(k), float(t)) for k, t in pairs], bool)

    def _is_there(self, k: int, seconds: float) -> bool:
        first, last = self.first[k], self.first[k + 1]
        at = seconds % self.period[k]
        place = int(np.searchsorted(self.start[first:last], at, "right"))
        return place > 0 and bool(at < self.end[first + place - 1])


def availability(path: Path, period: float) -> Availability:
    """Read when clients are there."""
    if path.suffix == ".csv":
        by_client, last = _intervals(path, _table(path, ("client", "start", "end")))
        rows = [by_client.get(k, []) for k in range(max(by_client) + 1)]
        periods = [period or last] * len(rows)
    else:
        found = _fedscale(path, ("active", "inactive", "finish_time"))
        rows = [_paired(path, each["active"], each["inactive"]) for each in found]
        periods = [_number(path, each["finish_time"]) for each in found]
    rows = [_merged(row) for row in rows]
    if min(periods) <= 0:
        raise _bad(path, "a trace has no length")
    counts = [len(row) for row in rows]
    flat = np.array([pair for row in rows for pair in row], np.float64).reshape(-1, 2)
    return Availability(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        flat[:, 0].copy(),
        flat[:, 1].copy(),
        np.array(periods, np.float64),
    )


def capacities(path: Path) -> NDArray[np.float64]:
    """Read samples per second, and megabits per second down and up: a column per client."""
    if path.suffix == ".csv":
        rows = [[_number(path, row[name]) for name in RATES] for row in _table(path, RATES)]
    else:
        rows = []
        for each in _fedscale(path, ("computation", "communication")):
            latency, rate = (_number(path, each[n]) for n in ("computation", "communication"))
            if latency <= 0:
                raise _bad(path, f"a computation is {latency:g}; it must be greater than 0")
            rows.append([1000 / (TRAINING * latency), rate * KILOBIT, rate * KILOBIT])
    found = np.array(rows, np.float64).T
    if not (found > 0).all():
        raise _bad(path, "a speed is not greater than 0")
    return found


def _content(path: Path) -> bytes:
    try:
        return read_named(path, "a trace", LARGEST)
    except OSError as error:
        raise FedMomError(f"file {of_system(error, path)}") from None


def _table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    content = _content(path)
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig")))
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise _bad(path, f"it is not CSV: {error}") from None
    if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
        raise _bad(path, f"it has no column {missing[0]}. Its columns must be {','.join(columns)}")
    if not rows:
        raise _bad(path, "it has no lines")
    return rows


def _intervals(path: Path, rows: Sequence[Mapping[str, str]]) -> tuple[dict[int, Intervals], float]:
    by_client: dict[int, Intervals] = {}
    for row in rows:
        client, start, end = (_number(path, row[name]) for name in ("client", "start", "end"))
        if client != int(client) or not 0 <= client < 2**31:
            raise _bad(path, f"the client {row['client']} is not a whole number from 0")
        if not 0 <= start < end:
            raise _bad(path, f"client {client:.0f} is there from {start:g} to {end:g}")
        by_client.setdefault(int(client), []).append((start, end))
    return by_client, max(end for pairs in by_client.values() for _, end in pairs)


def _paired(path: Path, starts: Any, ends: Any) -> Intervals:
    """Return FedScale's intervals: from each "active" to the "inactive" at the same place."""
    if not (isinstance(starts, list) and isinstance(ends, list)):
        raise _bad(path, "active and inactive are not lists")
    pairs = ((_number(path, a), _number(path, b)) for a, b in zip(starts, ends, strict=False))
    return [(start, end) for start, end in pairs if start < end]


def _merged(intervals: Intervals) -> Intervals:
    """Return intervals in order, with those that overlap made one."""
    found: Intervals = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _fedscale(path: Path, keys: Sequence[str]) -> list[Mapping[str, Any]]:
    content = _content(path)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _bad(
            path,
            f"it is neither CSV (.csv) nor JSON: {error}. Save FedScale's pickled files as JSON"
            " (docs/world.md)",
        ) from None
    if not isinstance(found, dict) or not found:
        raise _bad(path, "it is not a dictionary by client")
    return list(_entries(path, found, keys))


def _entries(
    path: Path, found: Mapping[Any, Any], keys: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    for client, entry in found.items():
        if not isinstance(entry, dict) or not set(keys) <= set(entry):
            raise _bad(path, f"client {client} does not have {', '.join(keys)}")
        yield entry


def _number(path: Path, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise _bad(path, f"{str(value)[:40]!r} is not a number")
    return number


def _bad(path: Path, what: str) -> FedMomError:
    return FedMomError(f"{path} cannot be used as a trace: {what}.")
