"""A run's logs: lines of JSON, read with care and never cut without a copy of what is cut.

The last field of a line, ``crc32``, is the checksum of all lines up to it, without its own. So a
number that was changed, and a line that is missing, are noticed. Earlier versions wrote none.
Only the last line may be torn, by a kill while it was written. A log with a bad line elsewhere was
damaged afterwards, and is refused.
"""

import json
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedmom.core.errors import FedMomError
from fedmom.core.files import append_synced, parse_json, read_file, read_lines, write_atomic
from fedmom.core.types import LOWER_IS_BETTER, TAKEN, UNRANKED

LogRows = list[dict[str, Any]]
ROUNDS, EVALS = "rounds.jsonl", "evals.jsonl"
CUT = ".cut"  # after a log's name: the file of all that was ever cut from it
CHECKSUM = re.compile(rb', "crc32": "([0-9a-f]{8})"\}\Z')
LARGEST = 2**63  # whole number: a larger one is nobody's count
# What every line has, in earlier versions too: what reports count on. The rest are numbers.
NEEDED = {
    ROUNDS: ("round", "train_loss", "update_norm", "seconds", "bytes_up", "bytes_down"),
    EVALS: ("round", "split", "loss"),
}
OTHER_TYPES = {"split": str, "cohort": list}


class Log(NamedTuple):
    """The lines of a log, and the bytes of each; ``torn`` is what a kill left of a last one."""

    rows: LogRows
    lines: list[bytes]
    torn: bytes
    checksum: int  # of all lines


def packed(rows: LogRows, checksum: int) -> tuple[bytes, int]:
    r"""Return lines as they are added to a log, and its checksum with them.

    Examples:
        >>> packed([{"round": 1}], checksum=0)
        (b'{"round": 1, "crc32": "d9f40321"}\n', 3656647457)
    """
    content = b""
    for row in rows:
        line = _json(row).encode()
        checksum = zlib.crc32(line, checksum)
        content += line[:-1] + f', "crc32": "{checksum:08x}"}}\n'.encode()
    return content, checksum


def read(path: Path) -> Log:
    """Read a log; one that is not there is empty.

    Args:
        path: The file, whose name says which log it is.

    Returns:
        Its lines, without a torn last one.

    Raises:
        FedMomError: A line is not what the run has written; the message says which.
    """
    rows: LogRows = []
    lines: list[bytes] = []
    checksum, is_checked = 0, False
    try:
        for number, line in enumerate(read_lines(path), 1):
            content = line.removesuffix(b"\n")
            written = CHECKSUM.search(content)
            bare = content[: written.start()] + b"}" if written else content
            after = zlib.crc32(bare, checksum)
            try:  # the last line may be complete, but for its end
                row = _row(path, number, bare)
                if written and int(written[1], 16) != after:
                    raise _bad(path, number, "has changed, or a line before it is missing")
                if is_checked and not written:
                    raise _bad(path, number, "has no checksum (crc32), as those before it have")
            except FedMomError:
                if line.endswith(b"\n"):
                    raise
                return Log(rows, lines, line, checksum)
            rows.append(row)
            lines.append(content + b"\n")
            checksum, is_checked = after, bool(written)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise FedMomError(f"{path} cannot be read: {error.strerror}.") from None
    return Log(rows, lines, b"", checksum)


def cut_after(path: Path, log: Log, round_: int) -> LogRows:
    """Shorten a log to its lines up to a round; what is cut is first added to a file next to it.

    Args:
        path: The log's file.
        log: What was read from it.
        round_: The last round that stays.

    Returns:
        The rows of the lines that stay.
    """
    keep = sum(row["round"] <= round_ for row in log.rows)
    rest = b"".join(log.lines[keep:]) + log.torn
    _keep_what_is_cut(path, rest)
    content = b"".join(log.lines[:keep])
    if rest or not path.exists() or path.stat().st_size != len(content):
        write_atomic(path, content)
    return log.rows[:keep]


def put_aside(path: Path) -> bool:
    """Empty a log; return whether it held anything, which is first added to the file next to it."""
    content = read_file(path, most=None) if path.exists() else b""
    _keep_what_is_cut(path, content)
    write_atomic(path, b"")
    return bool(content)


def _keep_what_is_cut(path: Path, content: bytes) -> None:
    if content:
        append_synced(path.with_name(path.name + CUT), content.removesuffix(b"\n") + b"\n")


def _json(row: Mapping[str, Any]) -> str:
    """Return a line of a log without its end; a metric that is NaN is null in JSON."""
    written = {k: None if v != v and k not in TAKEN else v for k, v in row.items()}  # NaN
    return json.dumps(written, allow_nan=False)


def check_order(path: Path, log: Log) -> None:
    """Refuse a log whose rounds are not one after another: lines are missing, or there twice."""
    evals = path.name == EVALS
    before = 0
    for number, row in enumerate(log.rows, 1):
        found = row["round"]
        if found < before or (not evals and found != before + 1):
            expected = f"{before} or later" if evals else str(before + 1)
            raise _bad(path, number, f"is of round {found}; it must be of round {expected}")
        before = found


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError:
        raise _bad(path, number, "is not JSON") from None
    if not isinstance(row, dict):
        raise _bad(path, number, f"is {_short(row)}, not an object")
    for name in NEEDED.get(path.name, ("round",)):
        if name not in row:
            raise _bad(path, number, f"cannot be used: it has no {name}")
    for name, value in row.items():
        if value is None and path.name == EVALS and name not in TAKEN:
            row[name] = math.nan  # a metric that had no value
        elif not _fits(name, value):
            raise _bad(path, number, f"cannot be used: its {name} is {_short(value)}")
    return row


def _fits(name: str, value: Any) -> bool:
    """Return whether a value is of the kind that a run writes under this name."""
    if name == "round":
        return type(value) is int and 0 <= value < LARGEST
    if name in ("diagnostics", "metrics", "world"):
        return isinstance(value, dict) and all(_is_number(v) for v in value.values())
    if name in (LOWER_IS_BETTER, UNRANKED):
        return isinstance(value, list) and all(isinstance(metric, str) for metric in value)
    if name == "rejected":
        return isinstance(value, list) and all(
            isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str) for pair in value
        )
    if name in OTHER_TYPES:
        return isinstance(value, OTHER_TYPES[name])
    return _is_number(value) or (value is None and name == "train_loss")


def _is_number(value: Any) -> bool:
    # Not True, which counts as 1 in Python, and neither NaN nor infinity, which are read as JSON.
    if type(value) is int:
        return -LARGEST < value < LARGEST
    return isinstance(value, float) and math.isfinite(value)


def _bad(path: Path, number: int, what: str) -> FedMomError:
    return FedMomError(
        f"{path}, line {number} {what}. Mend the line, or restore the file from a copy."
    )


def _short(value: Any) -> str:
    text = json.dumps(value)  # as it stands in the file
    return text if len(text) <= 40 else f"{text[:40]}..."
