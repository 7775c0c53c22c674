"""What is shown, apart from how: charts and tables that pages and printed figures both draw."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

Numbers = Sequence[float]
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
    markers: bool = False  # mark the points: few of them, each a result of its own
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
