"""Sections -> one HTML file that needs nothing else."""

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmom.core.files import write_atomic
from fedmom.reports import charts
from fedmom.reports.charts import Chart, Figure, Mark
from fedmom.reports.html import Section

if TYPE_CHECKING:
    from jinja2 import Environment

SECTIONS_WITHOUT_CONTENTS = 3
KINDS: dict[type[Mark], str] = {
    charts.Line: "line",
    charts.Area: "area",
    charts.Bars: "bars",
    charts.Heat: "heat",
}


def write_page(path: Path, title: str, sections: Sequence[Section], about: str = "") -> Path:
    """Write the page; return its path. ``about`` is a line below the title."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render(title, sections, about))
    return path


def render(
    title: str, sections: Sequence[Section], about: str = "", *, live: bool = False
) -> bytes:
    """Return the page. A live one asks its server for news."""
    shown = content(sections)
    data = {"figures": shown["figures"], "light": charts.LIGHT, "dark": charts.DARK}
    page = _templates().get_template("page.html")
    text = page.render(
        title=title,
        about=about,
        live=live,
        body=shown["body"],
        data=for_script(data),
        css=_file("page.css"),
        js=_file("page.js"),
        plotly=_packed_plotly(),
    )
    return text.encode("utf-8", "replace")  # a folder's name need not be valid text


def content(sections: Sequence[Section]) -> dict[str, Any]:
    """Return what changes in a live page: the body as HTML, and its figures by their id."""
    colours = charts.colours_of(p for s in sections for p in s.parts if isinstance(p, Figure))
    figures = {
        _part_id(i, j): _figure_data(part, colours)
        for i, section in enumerate(sections)
        for j, part in enumerate(section.parts)
        if isinstance(part, Figure)
    }
    contents = len(sections) > SECTIONS_WITHOUT_CONTENTS
    body = _templates().get_template("body.html").render(sections=sections, contents=contents)
    return {"body": body, "figures": figures}


def to_json(value: Any) -> bytes:
    """Return JSON for a live page."""
    return json.dumps(value, allow_nan=False).encode()


def for_script(value: Any) -> str:
    """Return JSON that no text in it can end the script element of."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _figure_data(figure: Figure, colours: Mapping[str, int]) -> dict[str, Any]:
    """Return a figure as JSON's types; ``colours`` are the numbers of its labels."""
    return {
        "name": figure.name,
        "columns": figure.across,
        "legend": [[label, colours[label]] for label in charts.labels(figure)],
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


@cache
def _templates() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fedmom.reports", "html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals["part_id"] = _part_id
    environment.filters["kind"] = lambda part: type(part).__name__.lower()
    return environment


def _part_id(section: int, place: int) -> str:
    return f"part-{section}-{place}"


def _file(name: str) -> str:
    return resources.files("fedmom.reports.html").joinpath(name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    """Return Plotly's script, packed: a third of its size, which browsers unpack themselves."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    packed = gzip.compress(get_plotlyjs().encode(), mtime=0)  # the same page is the same file
    return base64.b64encode(packed).decode()
