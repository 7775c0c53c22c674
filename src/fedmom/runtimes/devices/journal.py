"""What a run folder says of its devices: who takes part, and what became of every question."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmom.core.files import parse_json

DEVICES, EVENTS = "devices.json", "devices.jsonl"


def write(folder: Path, event: dict[str, Any]) -> None:
    """Add an event to a run folder."""
    with (folder / EVENTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def events(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a run folder; a line that a kill has torn is left out."""
    try:
        with (folder / EVENTS).open(encoding="utf-8", errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    event = parse_json(line)
                    if isinstance(event, dict):
                        yield event
    except FileNotFoundError:
        return
