"""Figures -> the data that the page's script draws them from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedmom.reports import palette
from fedmom.reports.charts import Area, Bars, Chart, Figure, Heat, Line, Mark

KINDS: dict[type[Mark], str] = {Line: "line", Area: "area", Bars: "bars", Heat: "heat"}


def figure_data(figure: Figure, colours: Mapping[str, int]) -> dict[str, Any]:
    """Return a figure as JSON's types; ``colours`` are the numbers of its labels."""
    return {
        "name": figure.name,
        "columns": figure.across,
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
