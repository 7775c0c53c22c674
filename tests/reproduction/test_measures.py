"""Measures of runs: the best step size, final values, areas, and differences that count."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmom.reproduction import figures, measures
from fedmom.reproduction.measures import Measures
from tests.reproduction.tiny import run_of


@given(
    st.dictionaries(
        st.sampled_from([0.01, 0.03, 0.1, 0.3]),
        st.lists(st.floats(0.1, 9) | st.none(), min_size=2, max_size=2),
        min_size=1,
    )
)
def test_the_best_lr_has_the_lowest_mean_and_of_equals_is_the_smallest(table):
    grid = {
        lr: {s: run_of([v or 1.0] * 6, why="" if v else "so") for s, v in enumerate(losses)}
        for lr, losses in table.items()
    }
    means = {lr: sum(v or math.inf for v in losses) / 2 for lr, losses in table.items()}
    choice = measures.best(grid)
    if all(math.isinf(m) for m in means.values()):
        assert choice is None
        return
    lowest = min(means.values())
    assert means[choice.lr] == pytest.approx(lowest)
    assert not any(lr < choice.lr and m < means[choice.lr] for lr, m in means.items())
    assert choice.at_edge == (len(table) > 1 and choice.lr in (min(table), max(table)))


def test_ties_go_to_the_smaller_lr_and_divergence_loses():
    good, same = run_of([2.0] * 6), run_of([2.0] * 6)
    bad = run_of([0.1] * 6, why="Round 7: not finite.")
    choice = measures.best({0.1: {0: same}, 0.03: {0: good}, 0.3: {0: bad}})
    assert choice == measures.Choice(0.03, second=0.1, at_edge=True)


def test_seeds_without_the_whole_grid_do_not_count():
    """Else a step size that met an easier seed would look better."""
    low, high = run_of([1.0] * 6), run_of([2.0] * 6)
    grid = {0.1: {0: high, 1: low}, 0.3: {0: low}}
    assert measures.best(grid).lr == 0.3
    assert measures.best({0.1: {0: high}, 0.3: {1: low}}) is None
    assert measures.best({}) is None


def test_a_final_value_is_the_mean_of_the_last_five_evaluations():
    run = run_of([9, 9, 1, 2, 3, 4, 5], [0, 0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert measures.final_loss(run) == pytest.approx(3)
    assert measures.final_accuracy(run) == pytest.approx(0.3)
    assert measures.final_loss(replace(run, stop="diverged")) == math.inf
    # The untrained model is no final one, however short the run is.
    assert measures.final_loss(run_of([9, 1, 3])) == pytest.approx(2)


def test_a_run_as_it_stood_earlier():
    run = run_of([4, 3, 2, 1], why="Round 4: not finite.")
    assert measures.final_loss(run) == math.inf
    assert measures.final_loss(run.until(2)) == pytest.approx(2.5)
    assert run.until(9).diverged  # it did not get there


@given(st.floats(0.1, 5), st.floats(-0.05, 0.05), st.integers(2, 30))
def test_the_area_under_a_straight_line(start, slope, rounds):
    losses = [start + slope * t for t in range(rounds + 1)]
    assert measures.area(run_of(losses)) == pytest.approx(start + slope * rounds / 2)


def test_rounds_to_a_target_and_their_median():
    runs = [
        run_of([1, 1, 1, 1], [0, 0.2, 0.5, 0.6], seed=0),
        run_of([1, 1, 1, 1], [0, 0.5, 0.6, 0.6], seed=1),
        run_of([1, 1, 1, 1], [0, 0.1, 0.2, 0.3], seed=2),
    ]
    assert [measures.MEASURES["rounds"](r, 0.5) for r in runs] == [2, 1, math.inf]
    assert Measures(tuple(runs), 0.5).median_rounds == 2
    assert Measures(tuple(runs[2:]), 0.5).text("rounds") == "never"


def test_values_are_by_seed_with_their_interval():
    runs = [run_of([loss] * 6, [0.5] * 6, seed=7 + s) for s, loss in enumerate([1.0, 2.0, 3.0])]
    found = Measures(tuple(runs), 0.5)
    assert found.by_seed("loss") == {7: 1.0, 8: 2.0, 9: 3.0}
    assert found.text("loss", 2) == "2.00 (-0.48 to 4.48)"  # 2 ± 4.303 · 1 / √3
    assert Measures((runs[0],), 0.5).text("loss", 2) == "1.00"


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=50), st.integers(1, 9))
def test_windows_keep_the_sum(products, length):
    ends, means = measures.windows(products, length)
    sizes = np.diff([0, *ends])
    assert ends[-1] == len(products)
    assert float(np.dot(sizes, means)) == pytest.approx(sum(products), abs=1e-9)


def test_bands_end_where_accuracies_and_losses_do():
    """One seed of three that fails makes an interval from below 0 to above 1."""
    runs = [run_of([1.0] * 6, [a] * 6, seed=s) for s, a in enumerate((0.9, 0.95, 0.05))]
    line = figures.curve("FedAvg", runs, "test", "accuracy")
    assert set(line.low) == {0.0}
    assert set(line.high) == {1.0}
    losses = figures.curve("FedAvg", [run_of([v] * 6) for v in (3.0, 3.1, 0.1)], "train", "loss")
    assert set(losses.low) == {0.0}
    assert min(losses.high) > 3
