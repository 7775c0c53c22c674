"""Simulated worlds in reports: test metrics over simulated time, and who replied."""

import bisect
import math
from collections import Counter
from collections.abc import Sequence

from fedmom.core.types import SIMULATED
from fedmom.experiments.results import Group, Points, Result, ranked_by
from fedmom.experiments.seed_statistics import interval
from fedmom.reports.charts import Chart, Figure, Grid, Line
from fedmom.reports.curves import bands_note
from fedmom.reports.result_tables import NONE, mean_text, over_seeds_note, unit_of

NAMED = 4  # reasons
POINTS = 200  # of a curve over time
QUARTERS = {
    "size": ("smallest quarter", "second", "third", "largest quarter"),
    "speed": ("slowest quarter", "second", "third", "fastest quarter"),
}
DUE = "25.0"  # percent


def over_time(groups: Sequence[Group]) -> Figure | None:
    """Return the test metric over simulated time; None without a world."""
    worlds = [group for group in groups if all(run.simulated() for run in group.runs)]
    unit, size = unit_of(worlds)
    if not worlds:
        return None
    metric = ranked_by(groups).metric
    panels = (("test", metric), ("train", "loss"))
    charts = [
        Chart(
            "Training loss" if split == "train" else f"Test {key}",
            f"simulated time ({unit})",
            key,
            [line for group in worlds if (line := _line(group, split, key, size)).x],
        )
        for split, key in panels
    ]
    several = any(len(group.runs) > 1 for group in worlds)
    note = "Every point is the last evaluation before that time."
    return Figure("time", "", charts, note=f"{bands_note(worlds)} {note}" if several else note)


def _line(group: Group, split: str, key: str, size: float) -> Line:
    """Return the mean over seeds at equally spaced times, as long as all seeds are on their way."""
    curves = [_timed(run, split, key) for run in group.runs]
    if not all(curves):
        return Line(group.label, [], [])
    ends = [curve[-1][0] for curve in curves]
    first, last = max(curve[0][0] for curve in curves), min(ends)
    times = [first + (last - first) * i / (POINTS - 1) for i in range(POINTS)]
    found = [interval([_at(curve, time) for curve in curves]) for time in times]
    halves = [math.nan if each.half is None else each.half for each in found]
    banded = not all(map(math.isnan, halves))
    low, high = (
        [each.mean + sign * half for each, half in zip(found, halves, strict=True)]
        for sign in (-1, 1)
    )
    return Line(
        group.label,
        [time / size for time in times],
        [each.mean for each in found],
        low if banded else None,
        high if banded else None,
    )


def _timed(run: Result, split: str, key: str) -> list[tuple[float, float]]:
    ends = run.simulated()
    points: Points = run.curve(split, key)
    return [(ends[r], value) for r, value in points if r in ends and math.isfinite(value)]


def _at(curve: Sequence[tuple[float, float]], time: float) -> float:
    place = bisect.bisect_right(curve, time, key=lambda point: point[0])
    return curve[max(0, place - 1)][1]


def losses(groups: Sequence[Group]) -> list[str]:
    """Return, for every group in a world, how many replies did not come, and why."""
    return [text for group in groups if (text := _lost(group))]


def _lost(group: Group) -> str:
    rows = [row for run in group.runs for row in run.rounds if "simulated_seconds" in row]
    reasons = Counter(
        why.removeprefix(SIMULATED)
        for row in rows
        for _, why in row.get("rejected", ())
        if why.startswith(SIMULATED)
    )
    if not reasons:
        return ""
    asked = sum(len(row["cohort"]) for row in rows)
    empty = sum(not row["replies"] for row in rows)
    named = "; ".join(f"{why} ({n:,})" for why, n in reasons.most_common(NAMED))
    step = f" {empty:,} of {len(rows):,} rounds had no reply and took no step." if empty else ""
    return (
        f"{group.label}: of {asked:,} clients that were asked, some did not reply: {named}.{step}"
    )


def shares(groups: Sequence[Group]) -> Grid | None:
    """Return who was asked and who replied, by quarters of the clients; None without a world."""
    rows = [
        [group.label, f"{by}: {word}", DUE, *cells]
        for group in groups
        for by, words in QUARTERS.items()
        for place, word in enumerate(words, 1)
        if (cells := _cells(group, by, place))
    ]
    if not rows:
        return None
    note = (
        "Each quarter of the clients, by training samples and by speed, is due a quarter of the"
        " replies. Weight: replies by what they count for their age. " + over_seeds_note(groups)
    )
    columns = ("run", "clients", "due (%)", "asked (%)", "replies (%)", "weight (%)")
    return Grid("shares", "Who replied", columns, rows, note.strip())


def _cells(group: Group, by: str, place: int) -> list[str]:
    """Return the shares of a quarter, in percent; nothing of runs without a world."""
    found = []
    for what in ("asked", "replied", "weight"):
        values = [v for run in group.runs if (v := _share(run, f"{what}/{by}", place)) is not None]
        found.append(mean_text(values, "{:.1f}") if values else NONE)
    return [] if found[0] == NONE else found


def _share(run: Result, name: str, place: int) -> float | None:
    worlds = [row["world"] for row in run.rounds if "world" in row]
    counts = [sum(world.get(f"{name}/{q}", 0.0) for world in worlds) for q in range(1, 5)]
    return 100 * counts[place - 1] / sum(counts) if sum(counts) else None
