"""Which colour a label has: the same in all charts of a figure, a page and its printed files."""

from collections.abc import Iterable

from fedmom.reports.charts import Figure, Heat

# Okabe and Ito's colours, told apart by colour-blind readers too; yellow is too pale for lines.
LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
# The same hues, lighter, for a dark ground.
DARK = ("#4A9FE8", "#FF8040", "#2CC79C", "#E59AC6", "#F5BB45", "#93D6FF", "#D5D8DE")


def assign(figures: Iterable[Figure]) -> dict[str, int]:
    """Return a number for every label, in the order they appear.

    The number modulo the count of colours is the colour; how often it wraps is the dash, so
    that more labels than colours stay apart.
    """
    numbers: dict[str, int] = {}
    for figure in figures:
        for label in labels(figure):
            numbers.setdefault(label, len(numbers))
    return numbers


def labels(figure: Figure) -> list[str]:
    """Return the figure's labels, each once. A heat map has shades and no colour of its own."""
    marks = (mark for chart in figure.charts for mark in chart.marks)
    return list(dict.fromkeys(m.label for m in marks if not isinstance(m, Heat)))
