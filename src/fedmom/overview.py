"""Runs -> the page of a report: results, curves, settings, versions."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedmom import collection, drawing, palette, report
from fedmom.charts import Chart, Figure, Grid
from fedmom.collection import Found, Kind
from fedmom.page import Part, Section, Settings, Words, write_page
from fedmom.page.live import View
from fedmom.report import Curves, Points

ROUND = "communication round"
POINTS = 300  # that a curve needs to look whole; longer ones are averaged over some rounds
SECONDS_TO_WORRY = 30.0
Pick = Callable[[Curves], Points]

EVALUATED: tuple[tuple[str, str, str, str], ...] = (
    ("train", "loss", "Training loss", "loss"),
    ("test", "accuracy", "Test accuracy", "accuracy"),
    ("test", "accuracy_p10", "Test accuracy, 10th percentile of clients", "accuracy"),
)
LOGGED: tuple[tuple[str, str, str], ...] = (
    ("train_loss", "Local training loss of the cohort", "loss"),
    ("update_norm", "Norm of the update g", "norm"),
)


@dataclass(frozen=True)
class Overview:
    """Runs, ready to be shown."""

    title: str
    about: str
    sections: Sequence[Section]
    found: Sequence[Found]

    def figures(self) -> list[Figure]:
        """Return the page's figures."""
        return [p for s in self.sections for p in s.parts if isinstance(p, Figure)]


def overview(folders: Iterable[Path], goal: float | None = None) -> Overview:
    """Read the runs in the folders; ``goal`` is the test accuracy to count rounds to."""
    found = collection.find(folders)
    kinds = collection.sort_out(found)
    sections = [
        Section("Results", _results(kinds, goal)),
        Section("Evaluations", [evaluations(kinds)]),
        Section("Rounds", [_rounds(kinds)]),
        *(Section("Diagnostics", [figure]) for figure in _diagnostics(kinds)),
        Section("Settings", _settings(kinds)),
    ]
    title, about = _headline(kinds)
    return Overview(title, about, sections, found)


def write(view: Overview, path: Path) -> Path:
    """Write the page."""
    return write_page(path, view.title, view.sections, view.about)


def print_figures(view: Overview, page: Path) -> Iterable[list[Path]]:
    """Write the page's figures beside it as PNG, SVG and PDF, one after another."""
    colours = palette.assign(view.figures())
    for figure in view.figures():
        named = replace(figure, name=f"{page.stem}-{figure.name}")
        yield drawing.save(named, page.parent, colours=colours)


def write_comparison(folder: Path, title: str) -> tuple[Path, Path]:
    """Write a comparison's figure and page into its folder."""
    view = overview([folder])
    figure = evaluations(collection.sort_out(view.found), "compare", title)
    (picture,) = drawing.save(figure, folder, ("png",))
    return picture, write(view, folder / "compare.html")


def evaluations(kinds: Sequence[Kind], name: str = "evaluations", title: str = "") -> Figure:
    """Return loss and accuracy over rounds, in the manner of the paper's Figure 5."""
    panels = [(text, y, _evaluated(split, key)) for split, key, text, y in EVALUATED]
    return _figure(name, title, kinds, panels)


def moment(folder: Path) -> View:
    """Return the page of runs as they are now."""
    seen = overview([folder])
    return View(seen.title, seen.about, seen.sections, *state(seen.found, folder))


def state(found: Sequence[Found], folder: Path) -> tuple[str, str]:
    """Return a word for how runs are getting on, and a sentence."""
    done, total = sum(f.done for f in found), sum(f.config.rounds for f in found)
    finished = sum(f.finished for f in found)
    if finished == len(found):
        return "finished", f"Finished: {_count(len(found), 'run')}, {_count(done, 'round')}."
    place = f"{done} of {_count(total, 'round')}"
    if len(found) > 1:
        place += f", {finished} of {len(found)} runs finished"
    silent = time.time() - max(f.changed for f in found)
    longest = max((r["seconds"] for f in found for r in f.curves.rounds), default=0.0)
    if silent > max(SECONDS_TO_WORRY, 5 * longest):
        return "waiting", (
            f"Not moving: nothing new for {_duration(silent)}, at {place}. If it was stopped, go on"
            f" with: fedmom resume {folder}"
        )
    return "running", f"Running: {place}." if done else "Started: no round is done yet."


def _headline(kinds: Sequence[Kind]) -> tuple[str, str]:
    common, _ = collection.split([kind.runs[0].settings() for kind in kinds])
    data = Path(common["data"]).name if "data" in common else "several datasets"
    title = f"{common.get('model', 'several models')} on {data}"
    runs = sum(len(kind.runs) for kind in kinds)
    if len(kinds) == 1:
        return f"{kinds[0].label}: {title}", _count(runs, "run")
    return title, f"{_count(runs, 'run')} of {len(kinds)} kinds" if runs > len(kinds) else (
        f"{runs} runs, one seed each"
    )


def _results(kinds: Sequence[Kind], goal: float | None) -> list[Part]:
    groups = [kind.group() for kind in kinds]
    goal = report.target(groups) if goal is None else goal
    early = [
        f"{kind.label}{_seed(run, kind)}: {run.done} of {run.config.rounds} rounds"
        for kind in kinds
        for run in kind.runs
        if not run.finished
    ]
    words = [
        report.verdict(groups, goal) if len(groups) > 1 else "",
        f"Unfinished: {'; '.join(early)}." if early else "",
    ]
    # Words come even if there are none: a live page stays as it is while its parts are the same.
    return [Words("\n\n".join(text for text in words if text)), report.grid(groups, goal)]


def _seed(run: Found, kind: Kind) -> str:
    return f", seed {run.config.seed}" if len(kind.runs) > 1 else ""


def _rounds(kinds: Sequence[Kind]) -> Figure:
    panels = [(text, y, _logged(key)) for key, text, y in LOGGED]
    return _figure("rounds", "", kinds, panels)


def _diagnostics(kinds: Sequence[Kind]) -> list[Figure]:
    rows = (r for kind in kinds for run in kind.runs for r in run.curves.rounds)
    names = dict.fromkeys(name for r in rows for name in r.get("diagnostics") or ())
    panels = [(name, "", _diagnosed(name)) for name in names]
    return [_figure("diagnostics", "", kinds, panels)] if panels else []


def _evaluated(split: str, key: str) -> Pick:
    return lambda curves: curves.evaluated(split, key)


def _logged(key: str) -> Pick:
    return lambda curves: curves.logged(key)


def _diagnosed(name: str) -> Pick:
    return lambda curves: curves.diagnosed(name)


def _figure(
    name: str, title: str, kinds: Sequence[Kind], panels: Sequence[tuple[str, str, Pick]]
) -> Figure:
    groups = [kind.group() for kind in kinds]
    logs = [pick(run) for _, _, pick in panels for group in groups for run in group.runs]
    longest = max(logs, key=len, default=[])
    width = -(-longest[-1][0] // POINTS) if len(longest) > POINTS else 1
    charts = [
        Chart(text, ROUND, y, [group.line(pick, width) for group in groups])
        for text, y, pick in panels
    ]
    notes = []
    if any(len(group.runs) > 1 for group in groups):
        notes.append("Lines are means over seeds; bands reach from the least to the greatest.")
    if width > 1:
        notes.append(f"Every point is a mean over {width} rounds.")
    return Figure(name, title, charts, note=" ".join(notes))


def _settings(kinds: Sequence[Kind]) -> list[Part]:
    runs = [(kind, run) for kind in kinds for run in kind.runs]
    places = [[kind.label, str(r.config.seed), _progress(r), str(r.path)] for kind, r in runs]
    return [
        *_compared("settings", "Settings", [(k.label, k.runs[0].settings()) for k in kinds]),
        *_compared("versions", "Versions", [(k.label, r.versions) for k, r in runs]),
        Grid("runs", "Runs", ("run", "seed", "rounds", "folder"), places),
    ]


def _progress(run: Found) -> str:
    return str(run.done) if run.finished else f"{run.done} of {run.config.rounds}, unfinished"


def _compared(name: str, title: str, values: Sequence[tuple[str, dict[str, str]]]) -> list[Part]:
    """Return what differs as a table, and what is common folded."""
    common, different = collection.split([each for _, each in values])
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
