"""The devices of a deployed run, as a table: who was asked, who answered, and why not."""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.files import parse_json
from fedmom.reports.charts import Grid
from fedmom.runtimes.devices.journal import DEVICES, events

COLUMNS = (
    *("device", "training samples", "asked", "answered", "median s", "not answered"),
    *("is", "last", "why not, the last time"),
)
WORDS = {
    "asked": "asked to train",
    "answered": "trained",
    "evaluated": "evaluated",
    "failed": "failed",
    "too late": "was too late",
}


def grid(folder: Path, rejected: Mapping[int, str]) -> Grid | None:
    """Return the table of a run's devices; None for a run that was not deployed.

    Args:
        folder: The run's folder.
        rejected: Per client, why its last reply that does not count was rejected.
    """
    known = _known(folder)
    if known is None:
        return None
    seen: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    repeated, there = 0, None
    for event in events(folder):
        repeated += event.get("event") == "repeated"
        if event.get("event") == "online" and isinstance(event.get("clients"), list):
            there = event["clients"]
        if type(event.get("client")) is int:
            seen[event["client"]].append(event)
    rows = [
        _row(device, seen[k], _presence(k, there), rejected.get(k, ""))
        for k, device in enumerate(known)
    ]
    note = f"Rounds that were repeated, since too few had answered: {repeated}." if repeated else ""
    return Grid("devices", "Devices", COLUMNS, rows, note)


def _known(folder: Path) -> list[Mapping[str, Any]] | None:
    try:
        devices = parse_json((folder / DEVICES).read_bytes())["devices"]
        return [{"name": str(d["name"]), "train": int(d["train"])} for d in devices]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        raise FedMomError(
            f"{folder / DEVICES} is damaged: it does not tell the devices' names and samples. Put"
            " it back from a copy."
        ) from None


def _presence(client: int, there: list[Any] | None) -> str:
    """Return whether a device was online when somebody was last asked."""
    return "–" if there is None else "online" if client in there else "offline"


def _row(
    device: Mapping[str, Any], seen: list[Mapping[str, Any]], presence: str, rejected: str
) -> list[str]:
    of = {name: [e for e in seen if e.get("event") == name] for name in WORDS}
    seconds = [e["seconds"] for e in of["answered"] if _is_number(e.get("seconds"))]
    missed = of["failed"] + of["too late"]
    why = str(missed[-1].get("reason", "")) if missed else ""
    return [
        device["name"],
        f"{device['train']:,}",
        str(len(of["asked"])),
        str(len(of["answered"])),
        f"{statistics.median(seconds):.1f}" if seconds else "–",
        str(len(missed)),
        presence,
        _last(seen),
        rejected or why,
    ]


def _last(seen: list[Mapping[str, Any]]) -> str:
    if not seen:
        return "–"
    event = seen[-1]
    what = WORDS.get(str(event.get("event")), str(event.get("event")))
    place = f", round {event['round']}" if "round" in event else ""
    return f"{_clock(event.get('at'))} {what}{place}".strip()


def _clock(at: Any) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(at)) if _is_number(at) else ""
    except (OverflowError, ValueError, OSError):  # no time that a clock has shown
        return ""


def _is_number(value: Any) -> bool:
    """Tell whether an event, which may be damaged, has a finite number here."""
    return isinstance(value, int | float) and math.isfinite(value)
