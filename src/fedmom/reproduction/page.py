"""The whole reproduction: run what is missing, then write page, printed figures and tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedmom import data as datasets
from fedmom.core.files import make_folder, write_atomic
from fedmom.core.progress import track
from fedmom.data.federated import FederatedData
from fedmom.reports import drawing
from fedmom.reports.charts import Figure, Grid, colours_of
from fedmom.reports.html import Part, Section, Settings, Status, Verdict, Words, write_page
from fedmom.reproduction import figures, findings, paper_tables, plan, runner, verdicts
from fedmom.reproduction.findings import Findings
from fedmom.reproduction.plan import Scale

TITLE = "Huo et al. 2020, reproduced"
RULE = (
    "The paper does not print its learning rates γ. They are chosen on tuning seeds that are not"
    " reported, by the lowest final training loss (the mean of the last five evaluations). The"
    " search begins with a few γ for each method and continues, by factors of about three, while"
    " the best is the first or last of those tried. Equal γ: FedAvg's. Own best γ: each method's."
)
AUTHOR = (
    "The first author's public code of 2019 differs from the paper's equations: v starts at 0"
    " instead of w₀, so that the first step adds β w₀ to the model, and clients weigh alike."
    " With equal weights η is 1."
)
OWN = "Figure 5, once more: each method at its own best γ"
MISSING = "No run that this needs has ended yet."


Data = Mapping[str, FederatedData]  # by task
DIRECTIONS = "probes"  # the folder's name in earlier versions, too


@dataclass(frozen=True)
class Made:
    """The page's path, the verdicts on the paper's claims, and how much is still missing."""

    page: Path
    verdicts: Sequence[Verdict]
    progress: str


def make(
    folder: Path,
    scale: Scale,
    parts: Sequence[str],
    console: Console,
    *,
    train: bool = True,
    runtime: str = "local",
) -> Made:
    """Run what is missing, then write page, figures and tables.

    Args:
        folder: Where runs, page, figures and tables are.
        scale: The plan's numbers.
        parts: Names of ``plan.PARTS``.
        console: Where progress is shown.
        train: Whether to run what is missing; otherwise only runs that have ended are shown.
        runtime: Where they are run.
    """
    cache = runner.Cache(folder / "runs", scale)
    if train:
        runner.complete(cache, parts, console, runtime)
    found = findings.gather(cache, parts, folder / DIRECTIONS, console, replay=train)
    data = {task.name: cache.load(task.data) for task in scale.tasks}
    missing = runner.missing_text(cache, parts)
    rows = verdicts.judge(found)
    claims = verdicts.verdicts(rows)
    if len(parts) < len(SECTIONS):  # what was not asked for is not missing
        claims = [claim for claim in claims if claim.status is not Status.UNKNOWN]
    rules = {claim.text: claim.rule for claim in verdicts.CLAIMS.values()}
    how = Settings("How this is judged", {**rules, "What is clear": verdicts.NOISE})
    sections = [
        *([Section("Verdicts", [*claims, how])] if claims else []),
        Section("What was run", [_setting(scale, data)]),
        *(Section(plan.PARTS[p], [*map(_or_note, SECTIONS[p](found, data))]) for p in parts),
        Section("Settings and versions", list(_settings(found))),
    ]
    shown = [part for section in sections for part in section.parts]
    printed = [part for part in shown if isinstance(part, Figure)]
    colours = colours_of(printed)  # as on the page
    for figure in track(printed, "drawing", total=len(printed), console=console):
        drawing.save(figure, folder / "figures", colours=colours)
    make_folder(folder / "tables")
    for grid in [verdicts.table(rows), *(part for part in shown if isinstance(part, Grid))]:
        write_atomic(folder / "tables" / f"{grid.name}.md", paper_tables.markdown(grid).encode())
    about = f"Made by fedmom paper --scale {scale.name}. {missing}".strip()
    return Made(write_page(folder / "paper.html", TITLE, sections, about), claims, missing)


def _or_note(part: Part) -> Part:
    """Return a part, or a sentence if there is nothing to show."""
    if (isinstance(part, Figure) and not any(chart.marks for chart in part.charts)) or (
        isinstance(part, Grid) and not part.rows
    ):
        return Words(f"{part.title}: {MISSING}")
    return part


def _setting(scale: Scale, data: Data) -> Words:
    lines = [
        f"{scale.rounds:,} rounds, M=2 clients a round, batches of B=10, η=K/M, β=0.9, weights"
        " n_k/n.",
        RULE,
    ]
    for task in scale.tasks:
        steps = task.settings.get("local-steps")
        local = f"{steps} local steps" if steps else "one local epoch"
        budget = task.settings.get("eval-samples")
        evaluated = f"; evaluated on at most {budget:,} samples of each split" if budget else ""
        lines.append(
            f"{task.name}: {data[task.name].name}, {task.settings['model']}, {local}; seeds"
            f" {_listed(task.seeds)}, tuning seeds {_listed(task.tuning)}{evaluated}."
        )
        if datasets.path_of(task.data) is None:
            lines.append(
                f"Note: these are not the paper's data. {task.data} stands in for {task.name},"
                f" offline; give --{task.name.lower()} the real ones."
            )
        if "fedsgd" not in task.first_lrs:
            lines.append(
                f"FedSGD on {task.name} runs at the equal γ only, and for"
                f" {round(scale.rounds * task.fedsgd_share):,} rounds: the gradient of a client's"
                " whole data costs many times the ten steps of the others. An epoch of a role of"
                " the paper's size is 373 steps on average, so local work is ten steps here."
            )
    return Words("\n\n".join(lines))


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{n:g}" for n in numbers)


def _settings(findings: Findings) -> Iterator[Part]:
    """The settings of the runs at equal γ, and the versions they were made with."""
    for contest in findings.equal.values():
        for method, measured in contest.measures.items():
            values = measured.runs[0].config.model_dump(by_alias=True, exclude_none=True)
            shown = {key: str(value) for key, value in values.items() if key != "data"}
            yield Settings(f"{contest.where}: {plan.NAMES[method]}", shown)
    for contest in [*findings.equal.values()][:1]:
        measured = next(iter(contest.measures.values()))
        yield Settings("versions", measured.runs[0].versions or {})


# What each part shows.
SECTIONS: dict[str, Callable[[Findings, Data], Sequence[Part]]] = {
    "table1": lambda _found, _data: [paper_tables.settings()],
    "table2": lambda _found, data: [paper_tables.data_statistics(data)],
    "fig2": lambda _found, data: [figures.heterogeneity(data)],
    "fig3": lambda found, _data: [figures.direction(found)],
    "fig4": lambda found, _data: [figures.against_fedsgd(found)],
    "fig5": lambda found, _data: [
        figures.comparison(found.equal, "fig5", "Figure 5. The methods at equal γ"),
        figures.comparison(found.own, "fig5b", OWN),
        paper_tables.results([*found.equal.values(), *found.own.values()]),
    ],
    "fig6": lambda found, _data: [figures.sensitivity(found), paper_tables.same_lr(found)],
    "beyond": lambda found, _data: [
        figures.beyond(found),
        paper_tables.differences(found),
        paper_tables.beyond(found),
        Words("\n\n".join(paper_tables.advice(found)) or MISSING),
    ],
    "author": lambda f, _data: [Words(AUTHOR), figures.author(f), paper_tables.author(f)],
}
