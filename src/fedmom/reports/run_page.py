"""Results -> the page of a report: numbers, curves, settings, versions."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedmom.experiments.results import (
    Group,
    Result,
    common_settings,
    find,
    group_by_seed,
    target,
)
from fedmom.reports import curves, differences, drawing, result_tables, simulated
from fedmom.reports.charts import Figure, Grid, colours_of
from fedmom.reports.html import Part, Section, Settings, Words, write_page
from fedmom.reports.live import View

SECONDS_TO_WORRY = 30.0
EARLY = ("diverged", "stopped", "unfinished")  # the statuses of runs that are not whole


@dataclass(frozen=True)
class Overview:
    """A page about runs, and its first figure, which a comparison shows alone."""

    title: str
    about: str
    sections: Sequence[Section]
    evaluations: Figure

    def figures(self) -> list[Figure]:
        """Return the page's figures."""
        return [part for s in self.sections for part in s.parts if isinstance(part, Figure)]


def overview(results: Sequence[Result], goal: float | None = None) -> Overview:
    """Return the page about runs.

    Args:
        results: The runs.
        goal: The value of the test metric to count rounds to; by default the runner-up's best.
    """
    groups = group_by_seed(results)
    evaluations = curves.evaluations(groups)
    figures = {
        "Evaluations": evaluations,
        "Simulated time": simulated.over_time(groups),
        "Rounds": curves.rounds(groups),
        "Metrics of the method": curves.noted("metrics", groups),
        "Diagnostics": curves.noted("diagnostics", groups),
    }
    tables_of_devices = _devices(results)
    sections = [
        Section("Results", _numbers(groups, target(groups) if goal is None else goal)),
        *(Section(title, [figure]) for title, figure in figures.items() if figure),
        *_world(groups),
        *_theory(groups),
        *([Section("Devices", tables_of_devices)] if tables_of_devices else []),
        Section("Settings", _settings(groups)),
    ]
    return Overview(*_headline(groups), sections, evaluations)


def write(view: Overview, path: Path) -> Path:
    """Write the page; return its path."""
    return write_page(path, view.title, view.sections, view.about)


def print_figures(view: Overview, page: Path) -> Iterator[list[Path]]:
    """Write the page's figures next to it as PNG, SVG and PDF, one after another."""
    figures = view.figures()
    colours = colours_of(figures)
    for figure in figures:
        named = replace(figure, name=f"{page.stem}-{figure.name}")
        yield drawing.save(named, page.parent, colours=colours)


def write_comparison(folder: Path, results: Sequence[Result], title: str) -> tuple[Path, Path]:
    """Write the figure and the page of a comparison into its folder; return their paths."""
    view = overview(results)
    lines = [title, view.evaluations.note] if view.evaluations.note else [title]
    figure = replace(view.evaluations, name="compare", title="\n".join(lines))
    (image,) = drawing.save(figure, folder, ("png",))
    return image, write(view, folder / "compare.html")


def live_view(folder: Path) -> View:
    """Return the page about the runs in a folder as they are now."""
    results = find([folder])
    view = overview(results)
    return View(view.title, view.about, view.sections, *progress(results, folder))


def progress(results: Sequence[Result], folder: Path) -> tuple[str, str]:
    """Return the status of runs: a word, and a sentence."""
    rounds = sum(run.done for run in results)
    statuses = Counter(run.status for run in results)
    early = [f"{statuses[name]} {name}" for name in ("diverged", "stopped") if statuses[name]]
    if not statuses["unfinished"]:
        ended = ", ".join([_count(len(results), "run"), _count(rounds, "round"), *early])
        return "finished", f"Finished: {ended}."
    # A run that diverged has no more rounds to come.
    total = sum(run.done if run.stop else run.config.rounds for run in results)
    place = f"{rounds} of {_count(total, 'round')}"
    if len(results) > 1:
        finished = f"{statuses['finished']} of {len(results)} runs finished"
        place = ", ".join([place, finished, *early])
    silent = time.time() - max(run.changed for run in results)
    longest = max((row["seconds"] for run in results for row in run.rounds), default=0.0)
    if silent > max(SECONDS_TO_WORRY, 5 * longest):
        command = f"fedmom resume {folder}"
        if any(run.config.data == "devices" for run in results):  # they need their server
            command = f"fedmom deploy run DEPLOYMENT --out {folder}, with the deployment's folder"
        return "waiting", (
            f"Not moving: nothing new for {_duration(silent)}, at {place}. If it was stopped,"
            f" resume it: {command}"
        )
    return "running", f"Running: {place}." if rounds else "Started: no round has ended yet."


def _headline(groups: Sequence[Group]) -> tuple[str, str]:
    """Return the title, and the line below it."""
    common, _ = common_settings([group.runs[0].settings() for group in groups])
    data = Path(common["data"]).name if "data" in common else "several datasets"
    title = f"{common.get('model', 'several models')} on {data}"
    runs = sum(len(group.runs) for group in groups)
    if len(groups) == 1:
        return f"{groups[0].label}: {title}", _count(runs, "run")
    if runs > len(groups):
        return title, f"{runs} runs with {len(groups)} different settings"
    return title, f"{runs} runs, one seed each"


def _theory(groups: Sequence[Group]) -> list[Section]:
    """Return what `fedmom theory check` has found about the runs, if it was called."""
    said = [f"{name}: {text}" for name, run in _named(groups) if (text := run.theory())]
    return [Section("Theory", [Words("\n\n".join(said))])] if said else []


def _world(groups: Sequence[Group]) -> list[Section]:
    """Return who replied in a simulated world, and who did not."""
    shares = simulated.shares(groups)
    if shares is None:
        return []
    return [Section("Simulated world", [Words("\n\n".join(simulated.losses(groups))), shares])]


def _numbers(groups: Sequence[Group], goal: float | None) -> list[Part]:
    families = differences.families(groups)
    sentences = [
        result_tables.verdict(groups, goal) if len(groups) > 1 else "",
        differences.ONE_SEED if len(groups) > 1 and not any(g.runs[1:] for g in groups) else "",
        *map(differences.sentence, families),
        *stopped_early(groups),
        *(
            f"{name}: the training loss ended above that of the first model, {text}."
            for name, run in _named(groups)
            if run.finished and (text := run.risen())
        ),
        *(f"{name}: {text}" for name, run in _named(groups) if (text := run.rejected())),
    ]
    # Words come even if there are none: a live page stays as it is while its parts are the same.
    words = Words("\n\n".join(sentence for sentence in sentences if sentence))
    return [words, result_tables.grid(groups, goal), *map(differences.grid, families)]


def stopped_early(groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each way in which runs ended before their last round."""
    found = []
    for status in EARLY:
        runs = [
            f"{name}: {run.done} of {run.config.rounds} rounds{_why(run)}"
            for name, run in _named(groups)
            if run.status == status
        ]
        found += [f"{status.capitalize()}: {'; '.join(runs)}."] if runs else []
    return found


def _named(groups: Sequence[Group]) -> Iterator[tuple[str, Result]]:
    """Yield the runs with their group's label, and the seed where a group has several."""
    for group in groups:
        for run in group.runs:
            seed = f", seed {run.config.seed}" if len(group.runs) > 1 else ""
            yield f"{group.label}{seed}", run


def _why(run: Result) -> str:
    """Return the reason in parentheses; the advice in the sentences after it is left out."""
    reason = run.why.partition(". ")[0].removesuffix(".")
    return f" ({reason})" if reason else ""


def _devices(results: Sequence[Result]) -> list[Part]:
    """Return a table of the devices of every run that was deployed."""
    found: list[Part] = []
    for run in results:
        why = {c: reason for row in run.rounds for c, reason in row.get("rejected", ())}
        shown = result_tables.device_grid(run.path, why)
        if shown is not None:
            title = shown.title if len(results) == 1 else f"{shown.title} of {run.path.name}"
            found.append(replace(shown, title=title))
    return found


def _settings(groups: Sequence[Group]) -> list[Part]:
    runs = [(group.label, run) for group in groups for run in group.runs]
    places = []
    for label, run in runs:
        rounds = "" if run.finished else f" of {run.config.rounds}, {run.status}"
        places.append([label, str(run.config.seed), f"{run.done}{rounds}", str(run.path)])
    return [
        *_compared("settings", "Settings", [(g.label, g.runs[0].settings()) for g in groups]),
        *_compared("versions", "Versions", [(label, run.versions or {}) for label, run in runs]),
        Grid("runs", "Runs", ("run", "seed", "rounds", "folder"), places),
    ]


def _compared(name: str, title: str, values: Sequence[tuple[str, Mapping[str, str]]]) -> list[Part]:
    """Return the values that differ as a table, and those in common folded."""
    common, different = common_settings([each for _, each in values])
    parts: list[Part] = []
    if different:
        rows = [[label, *(each.get(n, "–") for n in different)] for label, each in values]
        parts.append(Grid(name, f"{title} that differ", ("run", *different), rows))
    if common:
        parts.append(Settings(f"{title} in common" if len(values) > 1 else title, common))
    return parts


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
