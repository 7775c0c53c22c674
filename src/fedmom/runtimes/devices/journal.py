"""What a run folder says of its devices: who takes part, and what became of every question."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedmom.core.files import parse_json

DEVICES, EVENTS = "devices.json", "devices.jsonl"


def writer(folder: Path) -> Callable[[dict[str, Any]], None]:
    """Return what adds an event to a run folder."""

    def write(event: dict[str, Any]) -> None:
        with (folder / EVENTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    return write


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
