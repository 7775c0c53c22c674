"""Sections of words, figures, tables, verdicts and settings -> one self-contained HTML file.

Any text in a part may come from a stranger's folder: it is escaped, never markup.
"""

import base64
import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmom.core.files import make_folder, write_atomic
from fedmom.reports import charts
from fedmom.reports.charts import Figure, Grid, Mark

if TYPE_CHECKING:
    from jinja2 import Environment

SECTIONS_WITHOUT_CONTENTS = 3
TEMPLATES = resources.files("fedmom.reports") / "templates"


@dataclass(frozen=True)
class Words:
    """Plain text; a blank line begins a new paragraph."""

    text: str

    def paragraphs(self) -> list[str]:
        """Return the paragraphs."""
        return [text for text in re.split(r"\n\s*\n", self.text.strip()) if text]


class Status(StrEnum):
    """What measuring said about a claim."""

    HOLDS = "holds"
    PART = "holds in part"
    FAILS = "does not hold"
    OPEN = "not settled"
    FEW = "not enough seeds"
    UNKNOWN = "not measured"


@dataclass(frozen=True)
class Verdict:
    """A claim, what became of it, and the measured numbers that say so."""

    claim: str
    status: Status
    numbers: str


@dataclass(frozen=True)
class Settings:
    """Names with values, folded until asked for: a configuration, or versions."""

    title: str
    values: Mapping[str, str]


Part = Words | Figure | Grid | Verdict | Settings


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, in order."""

    title: str
    parts: Sequence[Part]


def write_page(path: Path, title: str, sections: Sequence[Section], about: str = "") -> Path:
    """Write the page; return its path. ``about`` is a line below the title."""
    make_folder(path.parent)
    write_atomic(path, render(title, sections, about))
    return path


def render(
    title: str, sections: Sequence[Section], about: str = "", *, live: bool = False
) -> bytes:
    """Return the page. A live one asks its server for news."""
    shown = content(sections)
    data = {"figures": shown["figures"], "light": charts.LIGHT, "dark": charts.DARK}
    text = (
        _templates()
        .get_template("page.html")
        .render(
            title=title,
            about=about,
            live=live,
            body=shown["body"],
            data=for_script(data),
            css=(TEMPLATES / "page.css").read_text("utf-8"),
            js=(TEMPLATES / "page.js").read_text("utf-8"),
            plotly=_packed_plotly(),
        )
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


def for_script(value: Any) -> str:
    """Return JSON that no text in it can end the script element of."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _figure_data(figure: Figure, colours: Mapping[str, int]) -> dict[str, Any]:
    """Return a figure as JSON's types; ``colours`` are the numbers of its labels."""
    return {
        "name": figure.name,
        "columns": figure.across,
        "legend": [[label, colours[label]] for label in charts.labels(figure)],
        "charts": [
            {
                "x": chart.x,
                "y": chart.y,
                "logX": chart.log_x,
                "logY": chart.log_y,
                "marks": [_mark_data(mark, colours) for mark in chart.marks],
            }
            for chart in figure.charts
        ],
    }


def _mark_data(mark: Mark, colours: Mapping[str, int]) -> dict[str, Any]:
    fields = {name: _safe(value) for name, value in asdict(mark).items()}
    return {"kind": _kind(mark), "colour": colours.get(mark.label), **fields}


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
        loader=PackageLoader("fedmom.reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals["part_id"] = _part_id
    environment.filters["kind"] = _kind
    return environment


def _kind(part: Part | Mark) -> str:
    """Return the name of a part's macro, or of what page.js draws."""
    return type(part).__name__.lower()


def _part_id(section: int, place: int) -> str:
    return f"part-{section}-{place}"


@cache
def _packed_plotly() -> str:
    """Return Plotly's script, packed: a third of its size, which browsers unpack themselves."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    packed = gzip.compress(get_plotlyjs().encode(), mtime=0)  # the same page is the same file
    return base64.b64encode(packed).decode()
