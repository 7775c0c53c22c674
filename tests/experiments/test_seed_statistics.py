"""Comparisons over seeds: against scipy, by their laws, and by what they say of made-up runs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedmom.experiments import seed_statistics
from fedmom.experiments.seed_statistics import FEWEST, LEVEL, Finding, difference, holm, interval

INF = math.inf
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def by_seed(values):
    return dict(enumerate(values))


def found(ours, theirs, margin=seed_statistics.MARGIN):
    """What one comparison alone shows."""
    apart = difference(by_seed(ours), by_seed(theirs))
    return apart.finding(apart.p, margin)


def share(trials, seeds, gap=0.0, seed=0):
    """The share of trials in which the p-value is below 5 %: a gap between two normal methods.

    The spread of a difference is 1: each method has half of its variance.
    """
    rng = np.random.default_rng(seed)
    ours = rng.normal(gap, 0.5**0.5, (trials, seeds))
    theirs = rng.normal(0, 0.5**0.5, (trials, seeds))
    p = [difference(by_seed(a), by_seed(b)).p for a, b in zip(ours, theirs, strict=True)]
    return np.mean(np.array(p) < 1 - LEVEL)


# ---- intervals


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_an_interval_is_that_of_student(seeds):
    values = np.random.default_rng(seeds).normal(3, 2, seeds)
    ours = interval(values.tolist())
    theirs = stats.ttest_1samp(values, 0).confidence_interval(LEVEL)
    assert ours.mean == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert ours.seeds == seeds


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_an_interval_holds_the_truth_in_19_of_20_cases(seeds):
    rng = np.random.default_rng(1)
    intervals = [interval(values.tolist()) for values in rng.normal(5, 2, (4000, seeds))]
    covered = np.mean([i.low <= 5 <= i.high for i in intervals])
    assert covered == pytest.approx(LEVEL, abs=0.012)  # 3.5 standard errors


def test_an_interval_as_text():
    assert interval([0.2, 0.3, 0.4]).text() == "0.300 (0.052 to 0.548)"
    assert interval([0.2, 0.3, 0.4]).text(1, sign=True) == "+0.3 (+0.1 to +0.5)"
    assert interval([-0.25]).text(2, sign=True) == "-0.25"
    assert interval([0.2, INF]).text() == "diverged"
    assert interval([]).text() == "–"


@pytest.mark.parametrize("values", [[1.0], [1.0, INF, 2.0], [-INF, 0.5], [INF, -INF]])
def test_where_there_is_no_interval(values):
    ours = interval(values)
    assert (ours.low, ours.high, ours.seeds) == (None, None, len(values))
    assert ours.mean == pytest.approx(sum(values), nan_ok=True)


def test_half_a_width_needs_seeds():
    three = interval([0.2, 0.3, 0.4])
    assert three.half == pytest.approx((three.high - three.low) / 2)
    assert interval([0.2, 0.3]).half is None
    assert interval([0.2, 0.3, INF]).half is None


# ---- paired differences


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_a_difference_is_the_paired_t_test(seeds):
    rng = np.random.default_rng(seeds)
    ours, theirs = rng.normal(0.8, 0.1, seeds), rng.normal(0.7, 0.1, seeds)
    apart, expected = difference(by_seed(ours), by_seed(theirs)), stats.ttest_rel(ours, theirs)
    assert apart.p == pytest.approx(expected.pvalue)
    bounds = expected.confidence_interval(LEVEL)
    assert (apart.interval.low, apart.interval.high) == pytest.approx((bounds.low, bounds.high))


def test_seeds_are_paired_by_number_and_those_of_one_alone_are_left_out():
    ours, theirs = {4: 0.9, 2: 0.7, 7: 0.1, 3: 0.8}, {2: 0.6, 3: 0.6, 4: 0.6, 9: 0.9}
    assert difference(ours, theirs) == difference(
        {2: 0.7, 3: 0.8, 4: 0.9}, {2: 0.6, 3: 0.6, 4: 0.6}
    )
    assert difference(ours, theirs).interval.seeds == 3
    assert difference({0: 1.0}, {1: 1.0}).p is None
    assert difference({0: 1.0}, {1: 1.0}).interval.text() == "–"


def test_what_varies_by_seed_alike_does_not_blur_a_difference():
    hard = np.array([0.0, 0.3, -0.2, 0.1])  # how much harder a seed is, for both
    ours, theirs = 0.55 + hard + [0.001, -0.001, 0.002, 0], 0.5 + hard
    assert found(ours, theirs) is Finding.HIGHER
    assert stats.ttest_ind(ours, theirs).pvalue > 0.5  # not paired


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_one_in_twenty_is_a_false_alarm(seeds):
    assert share(4000, seeds) == pytest.approx(0.05, abs=0.012)


def test_more_seeds_find_a_gap_of_two_standard_deviations_more_often():
    power = [share(1000, seeds, gap=2.0) for seeds in (3, 4, 5, 7, 10)]
    assert all(more > fewer for fewer, more in itertools.pairwise(power))
    # Of the noncentral t distribution: 0.46 for three seeds, 1.00 for ten.
    assert power[0] == pytest.approx(theoretical_power(3, 2.0), abs=0.05)
    assert power[-1] > 0.99


def theoretical_power(seeds, gap):
    edge = stats.t.ppf((1 + LEVEL) / 2, seeds - 1)
    apart = stats.nct(seeds - 1, gap * seeds**0.5)
    return apart.sf(edge) + apart.cdf(-edge)


@pytest.mark.parametrize(("seeds", "p"), [(3, 0.25), (5, 0.0625), (6, 0.03125)])
def test_a_difference_without_spread_is_judged_by_signs(seeds, p):
    """A test set has so many samples, so equal differences are no proof; they do occur."""
    theirs = [0.1 * seed for seed in range(seeds)]
    ours = [value + 0.05 for value in theirs]  # the differences are equal up to rounding
    apart = difference(by_seed(ours), by_seed(theirs))
    assert apart.p == pytest.approx(p)
    assert apart.p == pytest.approx(stats.binomtest(seeds, seeds).pvalue)
    assert apart.interval.mean == pytest.approx(0.05)


def test_runs_that_diverged_are_judged_by_signs():
    ours, theirs = [1.0, 1.1, 1.2, 1.0, 1.1, 1.2], [INF, 2.0, 1.0, INF, INF, 1.5]
    apart = difference(by_seed(ours), by_seed(theirs))
    assert apart.p == pytest.approx(stats.binomtest(1, 6).pvalue)
    assert apart.interval.text() == "diverged"
    assert found([1.0] * 6, [INF] * 6) is Finding.LOWER
    assert found([INF] * 6, [1.0] * 6) is Finding.HIGHER
    assert found([1.0] * 5, [INF] * 5) is Finding.OPEN  # 2 of 32 cases
    assert found([INF] * 6, [INF] * 6) is Finding.OPEN
    assert found([INF, 1.0, 3.0], [1.0, INF, 3.0]) is Finding.OPEN
    assert difference(by_seed([INF, 1.0]), by_seed([1.0, INF])).interval.text() == "–"
    assert difference({0: INF}, {0: 1.0}).p is None


# ---- what may be said


def test_findings():
    base = np.array([0.5, 0.6, 0.7, 0.55])
    small, large = np.array([1, -1, 2, 0]) / 1000, np.array([1, -1, 2, 0]) / 10
    assert found(base + 0.05 + small, base) is Finding.HIGHER
    assert found(base - 0.05 + small, base) is Finding.LOWER
    assert found(base + small, base) is Finding.EQUAL
    assert found(base, base) is Finding.EQUAL
    assert found(base + large, base) is Finding.OPEN
    assert found(base + small, base, margin=None) is Finding.OPEN
    assert found(base + small, base, margin=0.002) is Finding.OPEN
    # An interval that leaves the margin on one side only: (-0.032 to +0.004), and its mirror.
    aside = np.array([0.0, -0.03, -0.01, -0.015])
    assert found(base + aside, base) is Finding.OPEN
    assert found(base - aside, base) is Finding.OPEN
    # Shown, and small: the interval (+0.0024 to +0.0066) is reported as what it is.
    assert found(base + 0.004 + [1e-3, -1e-3, 2e-3, 0], base) is Finding.HIGHER


@pytest.mark.parametrize("seeds", range(FEWEST))
def test_too_few_seeds_settle_nothing(seeds):
    ours = [0.9 + seed / 1000 for seed in range(seeds)]
    assert found(ours, [0.1] * seeds) is Finding.TOO_FEW
    assert found([0.5] * seeds, [0.5] * seeds) is Finding.TOO_FEW
    apart = difference(by_seed(ours), by_seed([0.1] * seeds))
    assert apart.finding(1e-9) is Finding.TOO_FEW


def test_a_finding_goes_by_the_corrected_p_value():
    apart = difference(by_seed([0.6, 0.7, 0.65]), by_seed([0.5, 0.5, 0.5]))
    assert apart.p == pytest.approx(0.0351, abs=1e-4)
    assert apart.finding(apart.p) is Finding.HIGHER
    assert apart.finding(2 * apart.p) is Finding.OPEN
    assert apart.finding(None) is Finding.TOO_FEW


# ---- Holm's correction


def by_hand(p_values):
    """Holm's definition: the k-th smallest times (m - k + 1), and no less than those before."""
    order = np.argsort(p_values, kind="stable")
    count, adjusted = len(p_values), [0.0] * len(p_values)
    for rank in range(count):
        before = [p_values[order[j]] * (count - j) for j in range(rank + 1)]
        adjusted[order[rank]] = min(1.0, max(before))
    return adjusted


@given(P_VALUES)
def test_holms_correction_is_its_definition(p_values):
    assert holm(p_values) == pytest.approx(by_hand(p_values))


@given(P_VALUES)
def test_laws_of_holms_correction(p_values):
    adjusted, count = holm(p_values), len(p_values)
    for p, corrected in zip(p_values, adjusted, strict=True):
        assert p <= corrected <= min(1.0, p * count)  # Bonferroni
    order = np.argsort(p_values, kind="stable")
    assert sorted(adjusted) == [adjusted[place] for place in order]
    assert min(adjusted) == min(1.0, min(p_values) * count)
    assert holm(p_values[::-1]) == adjusted[::-1]


@given(P_VALUES, st.integers(0, 12))
def test_what_was_not_tested_does_not_count(p_values, place):
    place = min(place, len(p_values))
    adjusted = holm(p_values)
    with_none = holm([*p_values[:place], None, *p_values[place:]])
    assert with_none == [*adjusted[:place], None, *adjusted[place:]]


def test_a_family_has_a_false_alarm_in_one_of_twenty_cases():
    """All pairs of four methods that are the same: without the correction it is one in five."""
    rng = np.random.default_rng(3)
    raw, corrected = [], []
    for _ in range(600):
        runs = [by_seed(rng.normal(size=5)) for _ in range(4)]
        p = [difference(runs[i], runs[j]).p for i in range(4) for j in range(i)]
        raw.append(min(p) < 1 - LEVEL)
        corrected.append(min(holm(p)) < 1 - LEVEL)
    assert np.mean(raw) > 0.15
    assert np.mean(corrected) < 0.08
