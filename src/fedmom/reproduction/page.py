"""Findings -> one page, printed figures, and tables as Markdown."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedmom import data as datasets
from fedmom.core.files import write_atomic
from fedmom.core.progress import track
from fedmom.data.federated import FederatedData
from fedmom.reports import drawing
from fedmom.reports.charts import Figure, Grid, colours_of
from fedmom.reports.html import Part, Section, Settings, Status, Verdict, Words
from fedmom.reports.html.render import write_page
from fedmom.reproduction import figures, paper_tables, plan, verdicts
from fedmom.reproduction.findings import Findings
from fedmom.reproduction.plan import Scale

TITLE = "Huo et al. 2020, reproduced"
RULE = (
    "The paper does not print its step sizes γ. They are chosen on tuning seeds that are not"
    " reported, by the lowest final training loss (the mean of the last five evaluations). The"
    " search begins with a few γ for each method and goes on, by factors of about three, while the"
    " best is the first or last of those tried. Equal γ: FedAvg's. Own best γ: each method's."
)
MISSING = "No run that this needs has ended yet."


@dataclass(frozen=True)
class Context:
    """What the page is about, besides the findings."""

    scale: Scale
    data: Mapping[str, FederatedData]  # by task
    progress: str  # how much is still missing


@dataclass(frozen=True)
class Page:
    """The page before it is written: its sections, and the verdicts once more as a table."""

    about: str
    sections: Sequence[Section]
    verdicts: Sequence[Verdict]
    judged: Grid

    def figures(self) -> list[Figure]:
        """Return the page's figures."""
        return [part for s in self.sections for part in s.parts if isinstance(part, Figure)]

    def tables(self) -> list[Grid]:
        """Return the page's tables."""
        return [part for s in self.sections for part in s.parts if isinstance(part, Grid)]


def build(context: Context, findings: Findings, parts: Sequence[str]) -> Page:
    """Return the page of the parts that are asked for."""
    rows = verdicts.judge(findings)
    claims = verdicts.verdicts(rows)
    if len(parts) < len(WRITERS):  # what was not asked for is not missing
        claims = [claim for claim in claims if claim.status is not Status.UNKNOWN]
    rules = {claim.text: claim.rule for claim in verdicts.CLAIMS.values()}
    how = Settings("How this is judged", {**rules, "What is clear": verdicts.NOISE})
    sections = [
        *([Section("Verdicts", [*claims, how])] if claims else []),
        Section("What was run", list(_setting(context))),
        *(Section(TITLES[p], list(_or_note(WRITERS[p](context, findings)))) for p in parts),
        Section("Settings and versions", list(_settings(findings))),
    ]
    about = f"Made by fedmom paper --scale {context.scale.name}. {context.progress}".strip()
    return Page(about, sections, claims, verdicts.table(rows))


def write(folder: Path, page: Page) -> Path:
    """Write the tables, then the page; return the page's path."""
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    for grid in [page.judged, *page.tables()]:
        write_atomic(folder / "tables" / f"{grid.name}.md", paper_tables.markdown(grid).encode())
    return write_page(folder / "paper.html", TITLE, page.sections, page.about)


def draw(folder: Path, page: Page, console: Console) -> None:
    """Write the figures for print, in the colours of the page."""
    drawn = page.figures()
    colours = colours_of(drawn)
    for figure in track(drawn, "drawing", total=len(drawn), console=console):
        drawing.save(figure, folder / "figures", colours=colours)


def _or_note(parts: Iterator[Part]) -> Iterator[Part]:
    """Say so where there is nothing to draw."""
    for part in parts:
        if (isinstance(part, Figure) and not any(chart.marks for chart in part.charts)) or (
            isinstance(part, Grid) and not part.rows
        ):
            yield Words(f"{part.title}: {MISSING}")
        else:
            yield part


def _setting(context: Context) -> Iterator[Part]:
    scale = context.scale
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
            f"{task.name}: {context.data[task.name].name}, {task.settings['model']}, {local}; seeds"
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
    yield Words("\n\n".join(lines))


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{n:g}" for n in numbers)


def _table1(_context: Context, _findings: Findings) -> Iterator[Part]:
    yield paper_tables.settings()


def _table2(context: Context, _findings: Findings) -> Iterator[Part]:
    yield paper_tables.data_statistics(context.data)


def _fig2(context: Context, _findings: Findings) -> Iterator[Part]:
    yield figures.heterogeneity(context.data)


def _fig3(_context: Context, findings: Findings) -> Iterator[Part]:
    yield figures.direction(findings)


def _fig4(_context: Context, findings: Findings) -> Iterator[Part]:
    yield figures.against_fedsgd(findings)


def _fig5(_context: Context, findings: Findings) -> Iterator[Part]:
    yield figures.comparison(findings.equal, "fig5", "Figure 5. The methods at equal γ")
    yield figures.comparison(
        findings.own, "fig5b", "Figure 5, once more: each method at its own best γ"
    )
    yield paper_tables.results([*findings.equal.values(), *findings.own.values()])


def _fig6(_context: Context, findings: Findings) -> Iterator[Part]:
    yield figures.sensitivity(findings)
    yield paper_tables.same_lr(findings)


def _beyond(_context: Context, findings: Findings) -> Iterator[Part]:
    yield figures.beyond(findings)
    yield paper_tables.differences(findings)
    yield paper_tables.beyond(findings)
    yield Words("\n\n".join(paper_tables.advice(findings)) or MISSING)


def _author(_context: Context, findings: Findings) -> Iterator[Part]:
    yield Words(
        "The first author's public code of 2019 differs from the paper's equations: v starts at 0"
        " instead of w₀, so that the first step adds β w₀ to the model, and clients weigh alike."
        " With equal weights η is 1."
    )
    yield figures.author(findings)
    yield paper_tables.author(findings)


def _settings(findings: Findings) -> Iterator[Part]:
    """The settings of the runs at equal γ, and the versions they were made with."""
    for contest in findings.equal.values():
        for method, entry in contest.entries.items():
            run = entry.measures.runs[0]
            values = run.config.model_dump(by_alias=True, exclude_none=True)
            shown = {key: str(value) for key, value in values.items() if key != "data"}
            yield Settings(f"{contest.where}: {plan.NAMES[method]}", shown)
    runs = [e.measures.runs[0] for c in findings.equal.values() for e in c.entries.values()]
    if runs:
        yield Settings("versions", runs[0].versions or {})


TITLES = {
    "table1": "Table 1: settings",
    "table2": "Table 2: data",
    "fig2": "Figure 2: clients",
    "fig3": "Figure 3: direction",
    "fig4": "Figure 4: FedAvg and FedSGD",
    "fig5": "Figure 5: convergence",
    "fig6": "Figure 6: γ and H",
    "beyond": "Beyond the paper",
    "author": "The first author's code",
}
WRITERS: dict[str, Callable[[Context, Findings], Iterator[Part]]] = {
    "table1": _table1,
    "table2": _table2,
    "fig2": _fig2,
    "fig3": _fig3,
    "fig4": _fig4,
    "fig5": _fig5,
    "fig6": _fig6,
    "beyond": _beyond,
    "author": _author,
}
