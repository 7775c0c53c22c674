"""Curves of runs: means over seeds with bands, diagnostics, thinning."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedmom.experiments import results
from fedmom.experiments.results import Group
from fedmom.experiments.seed_statistics import FEWEST
from fedmom.reports import curves
from tests.reports.runs import make_run, result, round_row


@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 7),
)
def test_a_mean_has_a_band_where_seeds_are_enough_and_no_value_is_lost(seeds, width):
    runs = [
        result(rounds=[{"round": i + 1, "v": v} for i, v in enumerate(values)]) for values in seeds
    ]
    line = curves.line(Group("x", runs), lambda run: run.logged("v"), width)
    longest = max(len(values) for values in seeds)
    assert len(line.x) == -(-longest // width)
    there = [sum(len(v) > width * i for v in seeds) for i in range(len(line.x))]
    assert (line.low is None) == (line.high is None) == (max(there) < FEWEST)
    for count, low, y, high in zip(there, line.low or (), line.y, line.high or (), strict=False):
        assert math.isnan(low) == math.isnan(high) == (count < FEWEST)
        assert count < FEWEST or low <= y <= high
    first = [statistics.fmean(values[:width]) for values in seeds]
    assert line.y[0] == pytest.approx(statistics.fmean(first), abs=1e-6)
    assert line.x[0] == pytest.approx((1 + width) / 2)


def test_a_band_is_the_interval_of_the_mean():
    values = [0.31, 0.35, 0.36, 0.4]
    group = Group("x", [result([0.1, value]) for value in values])
    line = curves.line(group, lambda run: run.curve("test", "accuracy"))
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (line.low[1], line.high[1]) == pytest.approx((expected.low, expected.high))
    assert line.low[0] == line.high[0] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("seeds", "says"),
    [(1, ""), (2, "not enough seeds for bands"), (3, "95 % intervals of the mean")],
)
def test_the_caption_says_what_bands_are(seeds, says):
    figure = curves.evaluations([Group("x", [result([0.1, 0.2])] * seeds)])
    assert says in figure.note
    assert bool(figure.note) == bool(says)


def test_identical_clients_are_drawn_beside_the_percentile(tmp_path):
    run = results.read(make_run(tmp_path / "r").path)
    chart = curves.evaluations([Group("fedmom", [run])]).charts[-1]
    assert chart.title == "Test accuracy, p10 of clients (dashed: identical clients)"
    identical, clients = chart.marks
    assert (identical.dashed, clients.dashed) == (True, False)
    assert identical.y == pytest.approx([value / 2 for value in clients.y])
    old = curves.evaluations([Group("fedmom", [result([0.1, 0.2])])]).charts[-1]
    assert (old.title, len(old.marks)) == ("Test accuracy, p10 of clients", 1)


def test_one_run_has_no_band():
    line = curves.line(Group("x", [result([0.1, 0.2])]), lambda run: run.curve("test", "accuracy"))
    assert (line.x, line.y, line.low, line.high) == ([0, 10], [0.1, 0.2], None, None)


def test_diagnostics_have_a_chart_each():
    notes = [{"drift": 0.1 * r, "cosine": -0.5} if r % 2 else None for r in range(1, 5)]
    rows = [round_row(r + 1, diagnostics=note) for r, note in enumerate(notes)]
    figure = curves.noted("diagnostics", [Group("fedmom", [result(rounds=rows)])])
    assert [chart.title for chart in figure.charts] == ["drift", "cosine"]
    assert figure.charts[0].marks[0].x == [1, 3]
    assert figure.charts[0].marks[0].y == pytest.approx([0.1, 0.3])
    assert curves.noted("diagnostics", [Group("fedmom", [result()])]) is None


def test_metrics_of_the_method_have_a_chart_each_with_a_curve_per_group():
    def run(seed, scale):
        rows = [round_row(r, metrics={"noise/std": scale * r + seed}) for r in (1, 2, 3)]
        return result(rounds=rows, seed=seed)

    first = Group("first", [run(seed, 1.0) for seed in (0, 1, 2)])
    second = Group("second", [run(0, 10.0)])
    (chart,) = curves.noted("metrics", [first, second]).charts
    assert chart.title == "noise/std"
    over_seeds, single = chart.marks
    assert [over_seeds.label, single.label] == ["first", "second"]
    assert over_seeds.y == pytest.approx([2, 3, 4])  # r + the mean of seeds 0, 1, 2
    expected = stats.ttest_1samp([1, 2, 3], 0).confidence_interval(0.95)
    assert (over_seeds.low[0], over_seeds.high[0]) == pytest.approx((expected.low, expected.high))
    assert (single.y, single.low) == ([10, 20, 30], None)


def test_minimum_and_maximum_are_a_band_around_their_metric():
    def row(round_, **more):
        metrics = {"client/drift": 1.0 * round_, "client/drift/min": 0.0, **more}
        return round_row(round_, metrics={"alone/max": 7.0, **metrics})

    rows = [row(1, **{"client/drift/max": 5.0}), row(2)]  # the second round has no maximum
    figure = curves.noted("metrics", [Group("x", [result(rounds=rows)])])
    assert [chart.title for chart in figure.charts] == [
        "alone/max",
        "client/drift (band: min to max)",
    ]
    (line,) = figure.charts[1].marks
    assert (line.x, line.y, line.low) == ([1, 2], [1, 2], [0, 0])
    assert line.high[0] == 5
    assert math.isnan(line.high[1])


def test_metrics_that_are_not_finite_leave_a_gap():
    values = [1.0, math.nan, math.inf, 4.0]
    rows = [round_row(r, metrics={"m": value}) for r, value in enumerate(values, 1)]
    (chart,) = curves.noted("metrics", [Group("x", [result(rounds=rows)])]).charts
    assert (chart.marks[0].x, chart.marks[0].y) == ([1, 4], [1, 4])
    assert curves.noted("metrics", [Group("x", [result(rounds=[round_row(1)])])]) is None


def test_long_runs_are_thinned_and_say_so():
    rows = [round_row(r) for r in range(1, 3 * curves.POINTS + 1)]
    figure = curves.rounds([Group("fedmom", [result(rounds=rows)])])
    assert "a mean over 3 rounds" in figure.note
    loss = figure.charts[0].marks[0]
    assert len(loss.x) == curves.POINTS
    assert loss.y[0] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
