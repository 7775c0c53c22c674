"""What a run folder says of its devices: who takes part, and what became of every question."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmom.core.files import append, parse_json, read_lines

DEVICES, EVENTS = "devices.json", "devices.jsonl"


def write(folder: Path, event: dict[str, Any]) -> None:
    """Add an event to a run folder."""
    append(folder / EVENTS, json.dumps(event).encode() + b"\n")


def events(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a run folder; a line that a kill has torn is left out."""
    try:
        for line in read_lines(folder / EVENTS):
            with contextlib.suppress(ValueError):
                event = parse_json(line.decode(errors="replace"))
                if isinstance(event, dict):
                    yield event
    except FileNotFoundError:
        return
