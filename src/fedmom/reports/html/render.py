"""Sections -> one HTML file that needs nothing else."""

import base64
import gzip
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmom.core.files import write_atomic
from fedmom.reports import palette
from fedmom.reports.charts import Figure
from fedmom.reports.html.figure_data import figure_data
from fedmom.reports.html.sections import Section

if TYPE_CHECKING:
    from jinja2 import Environment

SECTIONS_WITHOUT_CONTENTS = 3


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
    data = {"figures": shown["figures"], "light": palette.LIGHT, "dark": palette.DARK}
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
    colours = palette.assign(p for s in sections for p in s.parts if isinstance(p, Figure))
    figures = {
        _part_id(i, j): figure_data(part, colours)
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
