"""Findings -> one page, printed figures, and tables as Markdown."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from fedmom import data as datasets
from fedmom import drawing, palette, runs
from fedmom.charts import Figure, Grid
from fedmom.data import FederatedData
from fedmom.page import Part, Section, Settings, Words, write_page
from fedmom.paper import figures, plan, tables, verdicts
from fedmom.paper.findings import Findings
from fedmom.paper.plan import Scale

TITLE = "Huo et al. 2020, reproduced"
RULE = (
    "The paper does not print its step sizes γ. Equal γ: that of FedAvg's grid with the lowest"
    " final training loss (the mean of the last five evaluations, in the mean over the seeds of"
    " the grid). Own best γ: the same rule for each method, on the same grid."
)
MISSING = "No run that this needs has ended yet."


@dataclass(frozen=True)
class Context:
    """What the page is about, besides what was found."""

    scale: Scale
    data: Mapping[str, FederatedData]  # by task
    progress: str  # what is still missing


def write(folder: Path, context: Context, findings: Findings, parts: Sequence[str]) -> Path:
    """Write the tables, then the page; return the page's path."""
    sections = list(_sections(context, findings, parts))
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    grids = [part for s in sections for part in s.parts if isinstance(part, Grid)]
    for grid in [verdicts.table(verdicts.judge(findings)), *grids]:
        text = tables.markdown(grid).encode()
        runs.write_atomic(folder / "tables" / f"{grid.name}.md", text)
    return write_page(folder / "paper.html", TITLE, sections, _about(context))


def draw(
    folder: Path, context: Context, findings: Findings, parts: Sequence[str], console: Console
) -> None:
    """Write the figures for print, in the colours of the page."""
    found = [
        part
        for section in _sections(context, findings, parts)
        for part in section.parts
        if isinstance(part, Figure)
    ]
    colours = palette.assign(found)
    shown = track(found, "drawing", console=console, disable=not console.is_terminal)
    for figure in shown:
        drawing.save(figure, folder / "figures", colours=colours)


def _about(context: Context) -> str:
    return f"Made by fedmom paper --scale {context.scale.name}. {context.progress}".strip()


def _sections(context: Context, findings: Findings, parts: Sequence[str]) -> Iterator[Section]:
    rules = {claim.text: claim.rule for claim in verdicts.CLAIMS.values()}
    yield Section(
        "Verdicts",
        [
            *verdicts.verdicts(verdicts.judge(findings)),
            Settings("How this is judged", {**rules, "What is clear": verdicts.NOISE}),
        ],
    )
    yield Section("What was run", list(_setting(context)))
    for part in parts:
        yield Section(TITLES[part], list(_or_note(PARTS[part](context, findings))))
    yield Section("Settings and versions", list(_settings(findings)))


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
        f" n_k/n; seeds {', '.join(map(str, scale.seeds))}.",
        RULE,
    ]
    for task in scale.tasks:
        steps = task.settings.get("local-steps")
        local = f"{steps} local steps" if steps else "one local epoch"
        lines.append(
            f"{task.name}: {context.data[task.name].name}, {task.settings['model']}, {local};"
            f" γ of FedAvg and FedMom in {_listed(task.lrs)}."
        )
        if not isinstance(datasets.locate(task.data), Path):
            lines.append(
                f"Note: these are not the paper's data. {task.data} stands in for {task.name},"
                f" offline; give --{task.name.lower()} the real ones."
            )
        if not task.fedsgd_lrs:
            lines.append(
                f"FedSGD on {task.name} runs at the equal γ only, with one seed, and for"
                f" {round(scale.rounds * task.fedsgd_share):,} rounds: the gradient of a client's"
                " whole data costs many times the ten steps of the others. An epoch of a role of"
                " the paper's size is some 330 steps, so local work is ten steps here."
            )
    yield Words("\n\n".join(lines))


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{n:g}" for n in numbers)


def _table1(_context: Context, _findings: Findings) -> Iterator[Part]:
    yield tables.settings()


def _table2(context: Context, _findings: Findings) -> Iterator[Part]:
    yield tables.data_statistics(context.data)


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
    yield tables.results([*findings.equal.values(), *findings.own.values()])


def _fig6(_context: Context, findings: Findings) -> Iterator[Part]:
    yield figures.sensitivity(findings)
    yield figures.sensitivity_elsewhere(findings)
    yield tables.same_lr(findings)


def _beyond(_context: Context, findings: Findings) -> Iterator[Part]:
    yield figures.beyond(findings)
    yield tables.beyond(findings)
    yield Words("\n\n".join(tables.advice(findings)) or MISSING)


def _author(_context: Context, findings: Findings) -> Iterator[Part]:
    yield Words(
        "The first author's public code of 2019 differs from the paper's equations: v starts at 0"
        " instead of w₀, so that the first step adds β w₀ to the model, and clients weigh alike."
        " With equal weights η is 1."
    )
    yield figures.author(findings)
    yield tables.author(findings)


def _settings(findings: Findings) -> Iterator[Part]:
    """The settings of the runs at equal γ, and the versions they were made with."""
    for contest in findings.equal.values():
        for method, entry in contest.entries.items():
            run = entry.measures.runs[0]
            values = run.config.model_dump(by_alias=True, exclude_none=True)
            shown = {key: str(value) for key, value in values.items() if key != "data"}
            yield Settings(f"{contest.where}: {plan.NAMES[method]}", shown)
    for contest in findings.equal.values():
        for entry in contest.entries.values():
            file = entry.measures.runs[0].path / "versions.json"
            versions = json.loads(file.read_bytes())
            yield Settings("versions", {key: str(value) for key, value in versions.items()})
            return


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
PARTS: dict[str, Callable[[Context, Findings], Iterator[Part]]] = {
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
