"""Curves of runs: means over seeds with bands, diagnostics, thinning."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmom.experiments.results import Group
from fedmom.report import curves
from tests.report.runs import result, round_row


@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
        min_size=2,
        max_size=4,
    ),
    st.integers(1, 7),
)
def test_a_mean_lies_in_its_band_and_no_value_is_lost(seeds, width):
    runs = [
        result(rounds=[{"round": i + 1, "v": v} for i, v in enumerate(values)]) for values in seeds
    ]
    line = curves.line(Group("x", runs), lambda run: run.logged("v"), width)
    longest = max(len(values) for values in seeds)
    assert len(line.x) == -(-longest // width)
    for low, y, high in zip(line.low, line.y, line.high, strict=True):
        assert low <= y + 1e-6
        assert y <= high + 1e-6
    first = [statistics.fmean(values[:width]) for values in seeds]
    assert line.y[0] == pytest.approx(statistics.fmean(first), abs=1e-6)
    assert line.x[0] == pytest.approx((1 + width) / 2)


def test_one_run_has_no_band():
    line = curves.line(Group("x", [result([0.1, 0.2])]), lambda run: run.curve("test", "accuracy"))
    assert (line.x, line.y, line.low, line.high) == ([0, 10], [0.1, 0.2], None, None)


def test_diagnostics_have_a_chart_each():
    notes = [{"drift": 0.1 * r, "cosine": -0.5} if r % 2 else None for r in range(1, 5)]
    rows = [round_row(r + 1, diagnostics=note) for r, note in enumerate(notes)]
    figure = curves.diagnostics([Group("fedmom", [result(rounds=rows)])])
    assert [chart.title for chart in figure.charts] == ["drift", "cosine"]
    assert figure.charts[0].marks[0].x == [1, 3]
    assert figure.charts[0].marks[0].y == pytest.approx([0.1, 0.3])
    assert curves.diagnostics([Group("fedmom", [result()])]) is None


def test_long_runs_are_thinned_and_say_so():
    rows = [round_row(r) for r in range(1, 3 * curves.POINTS + 1)]
    figure = curves.rounds([Group("fedmom", [result(rounds=rows)])])
    assert "a mean over 3 rounds" in figure.note
    loss = figure.charts[0].marks[0]
    assert len(loss.x) == curves.POINTS
    assert loss.y[0] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
