"""Charts and tables as data: what pages and printed figures both draw, and in which colours."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Numbers = Sequence[float]
# Okabe and Ito's colours, told apart by colour-blind readers too; yellow is too pale for lines.
LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
# The same hues, lighter, for a dark ground.
DARK = ("#4A9FE8", "#FF8040", "#2CC79C", "#E59AC6", "#F5BB45", "#93D6FF", "#D5D8DE")
# How a cell begins that holds a number, or none.
NUMBER = re.compile(r"[-+−<]?[\d.]|never$|diverged$|–?$")


@dataclass(frozen=True)
class Line:
    """A curve, with an optional band around it (an interval over seeds)."""

    label: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    markers: bool = False  # mark the points: few of them, each a separate result
    dashed: bool = False


@dataclass(frozen=True)
class Area:
    """The region between two curves."""

    label: str
    x: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True)
class Bars:
    """Bars at the given places."""

    label: str
    x: Sequence[float] | Sequence[str]
    height: Numbers


@dataclass(frozen=True)
class Heat:
    """A table of numbers as shades: ``shades[i][j]`` is row i, column j.

    With ``texts`` every cell is written on, and shades go from -1 to 1 between two colours, with
    white at 0. ``framed`` are cells, as (row, column), that stand out.
    """

    label: str
    rows: Sequence[str]
    columns: Sequence[str]
    shades: Sequence[Numbers]
    texts: Sequence[Sequence[str]] | None = None
    framed: Sequence[tuple[int, int]] = ()


Mark = Line | Area | Bars | Heat


@dataclass(frozen=True)
class Chart:
    """One pair of axes. Equal labels have equal colours in all charts of a figure or page."""

    title: str
    x: str
    y: str
    marks: Sequence[Mark]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Figure:
    """Charts that belong together, ``columns`` of them in a row; ``name`` is that of its files."""

    name: str
    title: str
    charts: Sequence[Chart]
    columns: int = 3
    note: str = ""

    @property
    def across(self) -> int:
        """How many charts stand in a row."""
        return max(1, min(self.columns, len(self.charts)))


@dataclass(frozen=True)
class Grid:
    """A table of texts. The first column is set left, the others right if they hold numbers."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def right(self) -> list[bool]:
        """Return, for every column, whether it is set right."""
        return [
            place > 0 and all(NUMBER.match(row[place].strip()) for row in self.rows)
            for place in range(len(self.columns))
        ]


def colours_of(figures: Iterable[Figure]) -> dict[str, int]:
    """Return the colour of every label, as a number, in the order they appear.

    The number modulo the count of colours is the colour; how often it wraps is the dash, so
    that more labels than colours stay apart.
    """
    found = dict.fromkeys(label for figure in figures for label in labels(figure))
    return {label: number for number, label in enumerate(found)}


def labels(figure: Figure) -> list[str]:
    """Return the figure's labels, each once. A heat map has shades and no colour of its own."""
    marks = (mark for chart in figure.charts for mark in chart.marks)
    return list(dict.fromkeys(m.label for m in marks if not isinstance(m, Heat)))
