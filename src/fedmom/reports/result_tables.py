"""Results and devices of runs as tables for terminal and page, and who was fastest, in words."""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedmom.core.errors import FedMomError
from fedmom.core.files import parse_json, read_file
from fedmom.experiments.results import Group, RankedBy, Result, ranked_by
from fedmom.experiments.seed_statistics import FEWEST, PERCENT, interval
from fedmom.reports.charts import Grid
from fedmom.runtimes.devices.journal import DEVICES, events

PERCENTILES = ("p10", "p50", "p90")
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86_400.0}
NONE = "–"  # stands where there is no number
OTHERS_NAMED = 5
DEVICE_COLUMNS = (
    *("device", "training samples", "asked", "answered", "median s", "not answered"),
    *("is", "last", "why not, the last time"),
)
EVENT_WORDS = {
    "asked": "asked to train",
    "answered": "trained",
    "evaluated": "evaluated",
    "failed": "failed",
    "too late": "was too late",
}


def verdict(groups: Sequence[Group], goal: float | None) -> str:
    """Return a sentence on which run was fastest to a test metric; nothing if none reached it."""
    if goal is None:
        return ""
    rounds = ((group.rounds_to(goal), group.label) for group in groups)
    there = [(r, label) for r, label in rounds if r is not None]
    if not there:
        return ""
    fewest = min(r for r, _ in there)
    fastest = [label for r, label in there if r == fewest]
    rest = sorted((pair for pair in there if pair[0] > fewest), key=lambda pair: pair[0])
    by = ranked_by(groups)
    said = f"Test {by.metric} {by.text(goal)}: "
    if len(fastest) == len(groups) > 1:
        return f"{said}all took {_short(fewest)} rounds." if fewest else ""  # the first model's
    *most, last = _few(fastest)
    names = f"{', '.join(most)} and {last}" if most else last
    others = ", ".join(_few([f"{label} {_short(r)}" for r, label in rest]))
    return f"{said}{names} took {_short(fewest)} rounds ({others or 'no other did'})."


def _few(names: Sequence[str]) -> list[str]:
    """Return the first names, and how many more there are."""
    more = len(names) - OTHERS_NAMED
    return [*names[:OTHERS_NAMED], *([f"{more} more"] if more > 0 else [])]


def grid(groups: Sequence[Group], goal: float | None) -> Grid:
    """Return a comparison as a table, with the rounds to a value of the test metric if given."""
    ends = {run.last_if_any("test", "round") for group in groups for run in group.runs}
    one_end = len(ends) == 1 and None not in ends
    by, shown = ranked_by(groups), _metrics(groups)
    columns = [
        *("run", *(() if one_end else ("round",)), "train loss"),
        *(f"test {metric}" for metric in shown),
        *(() if by.metric == "loss" else PERCENTILES),
        *(() if goal is None else (f"rounds to {by.text(goal)}",)),
        *_time_columns(groups, None if goal is None else by.text(goal)),
    ]
    times = _time_cells(groups, goal)
    rows = [
        _row(group, by, shown, goal, more, with_round=not one_end)
        for group, more in zip(groups, times, strict=True)
    ]
    title = "Last evaluation" + (f", round {ends.pop():.0f}" if one_end else "")
    return Grid("results", title, columns, rows, _note(groups))


def show(console: Console, *grids: Grid) -> None:
    """Print tables on the terminal, each with its note below."""
    for place, shown in enumerate(grids):
        if place:
            console.print()
        console.print(rich_table(shown.columns, shown.rows, shown.title))
        if shown.note:
            say(console, shown.note, style="dim")


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print sentences on the terminal, in lines that are broken between words."""
    console.print(text, style=style, soft_wrap=False, highlight=False, markup=False)


def rich_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None
) -> Table:
    """Return rows as a table for the terminal: where it is narrow, names fold and numbers stay."""
    view = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=title, title_justify="left")
    view.add_column(columns[0], overflow="fold")
    for column in columns[1:]:
        view.add_column(column.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for row in rows:
        view.add_row(*map(Text, row))  # a name may hold brackets, which are no markup here
    return view


def mean_text(values: Sequence[float], form: str = "{:.3f}") -> str:
    """Return a mean over seeds, and below it half the width of its interval if it has any."""
    if not values:
        return NONE
    over_seeds = interval(values)
    mean, half = form.format(over_seeds.mean), over_seeds.half
    return f"{mean}\n±{form.format(half)}" if half else mean


def over_seeds_note(groups: Sequence[Group]) -> str:
    """Say what stands below the means; nothing if no group has several seeds."""
    most, fewest = (end(len(group.runs) for group in groups) for end in (max, min))
    if most == 1:
        return ""
    if most < FEWEST:
        return f"Means over seeds. Not enough seeds for intervals: {FEWEST} are the fewest."
    enough = f"Means over seeds, ± half their {PERCENT} intervals (Student's t)."
    return enough if fewest >= FEWEST else f"{enough} Fewer than {FEWEST} seeds are not enough."


def _note(groups: Sequence[Group]) -> str:
    mixed = any(len(group.steady) < len(group.runs) for group in groups)
    texts = (
        over_seeds_note(groups),
        "Runs that diverged are left out of means." if mixed else "",
        _percentiles_note(ranked_by(groups).metric, [r for g in groups for r in g.runs]),
        unranked_note(groups),
    )
    return " ".join(filter(None, texts))


def _metrics(groups: Sequence[Group]) -> list[str]:
    """Return the metrics that runs have, in their order; the loss where they have none."""
    runs = (run for group in groups for run in group.runs if run.evals)
    return list(dict.fromkeys(name for run in runs for name in run.metrics)) or [
        ranked_by(groups).metric
    ]


def _percentiles_note(metric: str, runs: Sequence[Result]) -> str:
    """Say what percentiles are of, and how many samples stand behind them."""
    if metric == "loss":
        return ""
    clients, samples = (_range(_lasts(runs, "test", key)) for key in ("clients", "samples"))
    if not clients:  # an earlier version's runs
        return f"p10 to p90: test {metric} over clients."
    said = f"p10 to p90: test {metric} over {clients} clients with {samples} test samples in all"
    if _lasts(runs, "test", f"{metric}_p10_identical"):
        return f"{said}; in brackets, expected if all clients had the same {metric}."
    return f"{said}."


def unranked_note(groups: Sequence[Group]) -> str:
    """Say which metrics have no verdict, and how they get one; nothing if all have."""
    runs = (run for group in groups for run in group.runs if run.evals)
    metrics = {name for run in runs for name in run.metrics if not run.better(name)}
    if not metrics:
        return ""
    return (
        f"No verdict on {', '.join(sorted(metrics))}: whether higher is better is unknown. Say it:"
        " fedmom.Metric(..., higher_is_better=...)."
    )


def _range(numbers: Sequence[float]) -> str:
    ends = {f"{end:,.0f}": None for end in (min(numbers), max(numbers))} if numbers else {}
    return " to ".join(ends)


def _row(
    group: Group,
    by: RankedBy,
    metrics: Sequence[str],
    goal: float | None,
    times: Sequence[str],
    *,
    with_round: bool,
) -> list[str]:
    runs = group.steady
    ends = _lasts(runs, "test", "round")
    return [
        group.label,
        *([_range(ends) or NONE] if with_round else []),
        mean_text(_lasts(runs, "train", "loss")),
        *(mean_text(_lasts(runs, "test", m), RankedBy(m, runs[0].better(m)).form) for m in metrics),
        *(_percentile(runs, by, name) for name in PERCENTILES if by.metric != "loss"),
        *([] if goal is None else [reached([run.rounds_to(goal) for run in group.runs])]),
        *times,
    ]


def unit_of(groups: Sequence[Group]) -> tuple[str, float]:
    """Return the unit that fits the simulated times of runs, and its seconds; ("", 1) of none."""
    ends = [end for g in groups for run in g.runs for end in run.simulated().values()]
    if not ends:
        return "", 1.0
    units = [(name, size) for name, size in SECONDS.items() if 2 * size <= max(ends)]
    return units[-1] if units else ("s", 1.0)


def _time_columns(groups: Sequence[Group], goal: str | None) -> list[str]:
    unit, _ = unit_of(groups)
    if not unit:
        return ["MB sent", "time (s)"]
    to_goal = [] if goal is None else [f"simulated {unit} to {goal}"]
    return [*to_goal, "MB sent", f"simulated {unit}"]


def _time_cells(groups: Sequence[Group], goal: float | None) -> Iterator[list[str]]:
    """Yield what every group took: simulated time where there is a world, else real time."""
    unit, size = unit_of(groups)
    for group in groups:
        sent = f"{statistics.fmean(run.megabytes for run in group.steady):.1f}"
        if not unit:
            yield [sent, f"{statistics.fmean(run.seconds for run in group.steady):.1f}"]
            continue
        ends = [max(found.values()) / size for run in group.steady if (found := run.simulated())]
        times = [] if goal is None else group.seconds_to(goal)
        to_goal = reached([None if t is None else t / size for t in times], "{:.1f}")
        yield [*([] if goal is None else [to_goal]), sent, mean_text(ends, "{:.1f}")]


def _percentile(runs: Sequence[Result], by: RankedBy, name: str) -> str:
    """Return a percentile, and below it the one that identical clients would show."""
    values = _lasts(runs, "test", f"{by.metric}_{name}")
    identical = _lasts(runs, "test", f"{by.metric}_{name}_identical")
    below = f"\n({by.text(statistics.fmean(identical))})" if identical else ""
    return f"{by.text(statistics.fmean(values))}{below}" if values else NONE


def reached(rounds: Sequence[float | None], form: str = "{:.0f}") -> str:
    """Return the mean of those that got there, and how many did not."""
    there = [float(r) for r in rounds if r is not None]
    if not there:
        return "never"
    missing = len(rounds) - len(there)
    if missing:
        return f"{form.format(statistics.fmean(there))}\n{missing} of {len(rounds)} never"
    return mean_text(there, form)


def _lasts(runs: Iterable[Result], split: str, key: str) -> list[float]:
    """Return a number of the last evaluations, of the runs that have it."""
    values = (run.last_if_any(split, key) for run in runs)
    return [value for value in values if value is not None]


def _short(rounds: float) -> str:
    return f"{rounds:.1f}".removesuffix(".0")


def device_grid(folder: Path, rejected: Mapping[int, str]) -> Grid | None:
    """Return the table of a run's devices; None for a run that was not deployed.

    Args:
        folder: The run's folder.
        rejected: Per client, why its last reply that does not count was rejected.
    """
    known = _known_devices(folder)
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
    rows = []
    for k, device in enumerate(known):
        presence = NONE if there is None else "online" if k in there else "offline"
        rows.append([*device, *_device_row(seen[k], presence, rejected.get(k, ""))])
    note = f"Rounds that were repeated, since too few had answered: {repeated}." if repeated else ""
    return Grid("devices", "Devices", DEVICE_COLUMNS, rows, note)


def _known_devices(folder: Path) -> list[tuple[str, str]] | None:
    """Return the names of a run's devices, and how many samples they train on."""
    try:
        devices = parse_json(read_file(folder / DEVICES))["devices"]
        return [(str(device["name"]), f"{int(device['train']):,}") for device in devices]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        raise FedMomError(
            f"{folder / DEVICES} is damaged: it must hold the names and samples of the"
            " devices. Restore it from a copy."
        ) from None


def _device_row(seen: list[Mapping[str, Any]], presence: str, rejected: str) -> list[str]:
    of = {name: [e for e in seen if e.get("event") == name] for name in EVENT_WORDS}
    seconds = [e["seconds"] for e in of["answered"] if _is_number(e.get("seconds"))]
    missed = of["failed"] + of["too late"]
    why = str(missed[-1].get("reason", "")) if missed else ""
    last = NONE
    if seen:
        kind, place = str(seen[-1].get("event")), seen[-1].get("round")
        where = "" if "round" not in seen[-1] else f", round {place}"
        last = f"{_clock(seen[-1].get('at'))} {EVENT_WORDS.get(kind, kind)}{where}".strip()
    return [
        *(str(len(of["asked"])), str(len(of["answered"]))),
        f"{statistics.median(seconds):.1f}" if seconds else NONE,
        *(str(len(missed)), presence, last, rejected or why),
    ]


def _clock(at: Any) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(at)) if _is_number(at) else ""
    except (OverflowError, ValueError, OSError):  # no time that a clock has shown
        return ""


def _is_number(value: Any) -> bool:
    """Return whether an event, which may be damaged, has a finite number here."""
    return isinstance(value, int | float) and math.isfinite(value)
