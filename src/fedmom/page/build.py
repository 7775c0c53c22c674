"""Sections -> one HTML file that needs nothing else."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fedmom import palette
from fedmom.charts import Area, Bars, Chart, Figure, Grid, Heat, Line, Mark
from fedmom.page.sections import Part, Section, Settings, Verdict, Words
from fedmom.runs import write_atomic

SECTIONS_WITHOUT_CONTENTS = 3
NUMBER = re.compile(r"[-+−]?[\d.]|never$|–?$")


def write_page(path: Path, title: str, sections: Sequence[Section], about: str = "") -> Path:
    """Write the page; return its path. ``about`` is a line below the title."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render(title, sections, about))
    return path


def render(
    title: str, sections: Sequence[Section], about: str = "", *, live: bool = False
) -> bytes:
    """Return the page. A live one asks its server for news."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    shown = content(sections)
    page = Template(_file("page.html")).substitute(
        title=escape(title),
        about=escape(about),
        # Nothing from elsewhere is ever loaded, whatever a label holds.
        connect="'self'" if live else "'none'",
        live="live" if live else "",
        css=_file("page.css"),
        body=shown["body"],
        plotly=get_plotlyjs(),
        data=for_script({"figures": shown["figures"], **_colours()}),
        js=_file("page.js"),
    )
    return page.encode("utf-8", "replace")  # a folder's name need not be valid text


def content(sections: Sequence[Section]) -> dict[str, Any]:
    """Return what changes in a live page: the body as HTML, and its figures by their id."""
    colours = palette.assign(p for s in sections for p in s.parts if isinstance(p, Figure))
    figures: dict[str, Any] = {}
    texts = [_contents(sections)] if len(sections) > SECTIONS_WITHOUT_CONTENTS else []
    for i, section in enumerate(sections):
        texts.append(f'<section id="section-{i}"><h2>{escape(section.title)}</h2>')
        for j, part in enumerate(section.parts):
            id_ = f"part-{i}-{j}"
            if isinstance(part, Figure):
                figures[id_] = _figure_data(part, colours)
            texts.append(_part(part, id_))
        texts.append("</section>")
    return {"body": "\n".join(texts), "figures": figures}


def to_json(value: Any) -> bytes:
    """Return JSON for a live page."""
    return json.dumps(value, allow_nan=False).encode()


def for_script(value: Any) -> str:
    """Return JSON that no text in it can end the script element of."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _file(name: str) -> str:
    return resources.files("fedmom.page").joinpath(name).read_text(encoding="utf-8")


def _colours() -> dict[str, Any]:
    return {"light": palette.LIGHT, "dark": palette.DARK}


def _contents(sections: Sequence[Section]) -> str:
    links = (
        f'<li><a href="#section-{i}">{escape(s.title)}</a></li>' for i, s in enumerate(sections)
    )
    return f'<nav id="contents" aria-label="Contents"><ol>{"".join(links)}</ol></nav>'


def _part(part: Part, id_: str) -> str:
    if isinstance(part, Words):
        paragraphs = re.split(r"\n\s*\n", part.text.strip())
        inner = "".join(f"<p>{escape(text)}</p>" for text in paragraphs if text)
        return f'<div class="words" id="{id_}">{inner}</div>'
    if isinstance(part, Verdict):
        return _verdict(part, id_)
    if isinstance(part, Settings):
        rows = (
            f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in part.values.items()
        )
        summary = f"<summary>{escape(part.title)}</summary>"
        return f'<details class="settings" id="{id_}">{summary}<dl>{"".join(rows)}</dl></details>'
    return _grid(part, id_) if isinstance(part, Grid) else _figure(part, id_)


def _verdict(verdict: Verdict, id_: str) -> str:
    kind = verdict.status.replace(" ", "-")
    return (
        f'<article class="verdict {escape(kind)}" id="{id_}">'
        f'<p class="status">{escape(verdict.status)}</p><h3>{escape(verdict.claim)}</h3>'
        f"<p>{escape(verdict.numbers)}</p></article>"
    )


def _grid(grid: Grid, id_: str) -> str:
    """A table in a box of its own, which scrolls where the screen is too narrow."""
    right = [
        place > 0 and all(NUMBER.match(row[place].strip()) for row in grid.rows)
        for place in range(len(grid.columns))
    ]

    def cells(tag: str, texts: Sequence[str]) -> str:
        marked = zip(texts, right, strict=True)
        return "".join(
            f"<{tag}{' class=number' if number else ''}>{_cell(text)}</{tag}>"
            for text, number in marked
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in grid.rows)
    return (
        f'<figure class="grid" id="{id_}">{_caption(grid.title)}'
        f'<div class="scroll" tabindex="0"><table><thead><tr>{cells("th", grid.columns)}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>{_note(grid.note)}</figure>"
    )


def _cell(text: str) -> str:
    """A cell's first line is what counts; further ones are small."""
    first, *more = text.split("\n")
    return escape(first) + "".join(f"<small>{escape(line)}</small>" for line in more)


def _figure(figure: Figure, id_: str) -> str:
    plots = "".join(
        f'<div class="chart"><h4>{escape(c.title)}</h4><div class="plot" role="img"'
        f' aria-label="{escape(f"{c.title}: {c.y} over {c.x}")}"></div></div>'
        for c in figure.charts
    )
    return (
        f'<figure class="figure" id="{id_}" style="--columns:{_columns(figure)}">'
        f"{_caption(figure.title)}"
        f'<div class="legend"></div><div class="charts">{plots}</div>{_note(figure.note)}</figure>'
    )


def _columns(figure: Figure) -> int:
    return max(1, min(figure.columns, len(figure.charts)))


def _caption(title: str) -> str:
    return f"<figcaption>{escape(title)}</figcaption>" if title else ""


def _note(note: str) -> str:
    return f'<p class="note">{escape(note)}</p>' if note else ""


def _figure_data(figure: Figure, colours: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": figure.name,
        "columns": _columns(figure),
        "legend": [[label, colours[label]] for label in palette.labels(figure)],
        "charts": [_chart_data(chart, colours) for chart in figure.charts],
    }


def _chart_data(chart: Chart, colours: Mapping[str, int]) -> dict[str, Any]:
    return {
        "x": chart.x,
        "y": chart.y,
        "logX": chart.log_x,
        "logY": chart.log_y,
        "marks": [_mark_data(mark, colours) for mark in chart.marks],
    }


KINDS: dict[type[Mark], str] = {Line: "line", Area: "area", Bars: "bars", Heat: "heat"}


def _mark_data(mark: Mark, colours: Mapping[str, int]) -> dict[str, Any]:
    fields = {name: _safe(value) for name, value in asdict(mark).items()}
    return {"kind": KINDS[type(mark)], "colour": colours.get(mark.label), **fields}


def _safe(value: Any) -> Any:
    """Return what JSON can hold: numbers to seven digits, and a gap for what is not finite."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Sequence) or hasattr(value, "tolist"):
        return [_safe(v) for v in value]
    return float(f"{float(value):.7g}") if math.isfinite(value) else None
