"""What a run folder says of its devices: who takes part, and what became of every question."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEVICES, EVENTS = "devices.json", "devices.jsonl"


def writer(folder: Path) -> Callable[[dict[str, Any]], None]:
    """Return what adds an event to a run folder."""

    def write(event: dict[str, Any]) -> None:
        with (folder / EVENTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    return write
