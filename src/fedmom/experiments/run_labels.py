"""What runs are called in tables and figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

# After the algorithm, these settings name a run first, if they differ.
NAMING = ("data", "model", "lr", "local-steps", "local-epochs", "clients-per-round")


def apart(labels: list[str], groups: Sequence[Mapping[str, str]]) -> list[str]:
    """Return labels, each with as many settings as it takes to tell the groups apart."""
    for name in dict.fromkeys([*NAMING, *(n for group in groups for n in group)]):
        alike: dict[str, set[str | None]] = {}
        for label, group in zip(labels, groups, strict=True):
            alike.setdefault(label, set()).add(group.get(name))
        labels = [
            label if len(alike[label]) == 1 else f"{label}, {_said(name, group.get(name))}"
            for label, group in zip(labels, groups, strict=True)
        ]
        if len(set(labels)) == len(labels):
            break
    times = [labels[:place].count(label) + 1 for place, label in enumerate(labels)]
    return [f"{x} ({n})" if n > 1 else x for x, n in zip(labels, times, strict=True)]


def _said(name: str, value: str | None) -> str:
    if value is None:
        return f"no {name}"
    if name == "data":  # a path is long, and its end says most
        return Path(value).name
    return f"{name} {value}"
