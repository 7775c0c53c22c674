"""How near one-dimensional quadratics come to the corrected bounds, with exact expectations."""

import itertools
import runpy

import numpy as np
import pytest
from benchmarks import bad_cases
from benchmarks.bad_cases import DECAYS, Case, gradient_squares, ratio, search
from benchmarks.problems import Quadratics, random_quadratics
from hypothesis import given
from hypothesis import strategies as st

from fedmom.theory import CORRECTED_FEDMOM, Setting
from tests.conftest import ROOT

CONSTANT, FALLING = DECAYS[:1], DECAYS[1:]
# What a search must reach, so that it cannot pass by being weak: a little less than it does.
QUICK, LONG = {CONSTANT: 0.33, FALLING: 0.33}, {CONSTANT: 0.38, FALLING: 0.375}


def as_problem(case):
    """The same clients, in the form that is tested elsewhere."""
    curvatures, slopes = case.curvatures[:, None, None], case.slopes[:, None]
    return Quadratics(case.weights, curvatures, slopes, case.variance)


def drawn(seed, decays=DECAYS):
    return bad_cases._random(np.random.default_rng(seed), decays)


@given(st.integers(0, 2**32 - 1))
def test_constants_are_those_of_quadratics(seed):
    case = drawn(seed)
    start = np.array([case.start])
    expected = as_problem(case).constants(start, case.constants.similarity)
    np.testing.assert_allclose(
        [getattr(case.constants, name) for name in case.constants.__dataclass_fields__],
        [getattr(expected, name) for name in case.constants.__dataclass_fields__],
        rtol=1e-7,
        atol=1e-12,
    )


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("decay", ["constant", "inverse_sqrt"])
def test_expectations_are_those_of_all_cohorts_and_noises(momentum, decay):
    """Noise of plus or minus σ, and every cohort: after two rounds, all runs there can be."""
    case = Case(
        weights=np.array([0.5, 0.3, 0.2]),
        curvatures=np.array([1.0, -0.5, 0.8]),
        slopes=np.array([0.4, 0.4, -1.6]),
        variance=0.09,
        start=0.7,
        per_round=2,
        local_steps=2,
        server_lr=1.3,
        momentum=momentum,
        decay=decay,
        horizon=1.0,
    )
    steps = 0.4 * np.array([1.0, 0.8, 0.5]) if decay != "constant" else np.full(3, 0.4)
    runs = [[(case.start, 0.0)]]
    for lr in steps[:-1]:
        runs.append([after for run in runs[-1] for after in rounds_of(case, lr, *run)])
    expected = [case.mean_curvature**2 * np.mean([w**2 for w, _ in each]) for each in runs]
    np.testing.assert_allclose(gradient_squares(case, steps), expected, rtol=1e-12)


def rounds_of(case, lr, w, buffer):
    """All that one round of FedMom can come to, each equally likely."""
    for cohort in itertools.combinations(range(len(case.weights)), case.per_round):
        for signs in itertools.product((-1, 1), repeat=case.per_round * case.local_steps):
            noise = iter(np.sqrt(case.variance) * np.array(signs))
            step = 0.0
            for k in cohort:
                local = w
                for _ in range(case.local_steps):
                    local -= lr * (case.curvatures[k] * local - case.slopes[k] + next(noise))
                step += case.server_lr * case.weights[k] * (w - local)
            ahead = case.momentum * buffer - step
            yield w + case.momentum * ahead - step, ahead


@given(st.integers(0, 2**32 - 1))
def test_what_is_searched_meets_the_conditions(seed):
    """A step above what the theorem allows, or that rises, would make the search worthless."""
    rng = np.random.default_rng(seed)
    case = bad_cases._changed(drawn(seed), rng, 1.0)
    assert CORRECTED_FEDMOM.applies(case.constants, case.setting, case.steps(60))
    assert case.weights.sum() == pytest.approx(1)
    assert np.abs(case.curvatures).max() == pytest.approx(1)
    assert case.mean_curvature > 0.04
    assert case.weights @ case.slopes == pytest.approx(0, abs=1e-9)


def test_one_client_reaches_what_a_sum_says():
    """Gradient descent on w²/2 at the largest γ, 1/4: Σ (1 - γ)^{2t} γ/2 = 1/(2(2 - γ))."""
    case = Case(np.ones(1), np.ones(1), np.zeros(1), 0.0, 3.0, 1, 1, 1.0, 0.0)
    # B² = 2 is not the least, but γLH ≤ 1/(2B) still allows 1/4.
    assert case.steps(1)[0] == pytest.approx(1 / 4)
    assert ratio(case, 200) == pytest.approx(1 / (2 * (2 - 1 / 4)), rel=1e-3)


@pytest.mark.parametrize("decays", [CONSTANT, FALLING])
def test_bad_cases_stay_below_the_bound(decays):
    reached, _ = search(0, restarts=3, climbs=200, rounds=100, decays=decays)
    assert QUICK[decays] < reached <= 1


@pytest.mark.slow
@pytest.mark.parametrize("decays", [CONSTANT, FALLING])
def test_the_worst_case_of_a_long_search_stays_below_the_bound(decays):
    reached, _ = search(1, restarts=8, climbs=2500, rounds=100, decays=decays)
    assert LONG[decays] < reached <= 1


def test_the_script_behind_the_page_counts_problems_below_the_bound(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = runpy.run_path(str(ROOT / "benchmarks" / "bounds_search.py"))
    rng = np.random.default_rng(0)
    trainings = [script["draw"](rng) for _ in range(15)]
    for shapes in script["SHAPES"].values():
        parts = [script["part_of_bound"](t, shapes[0], seed=0) for t in trainings]
        assert 0.1 < max(part for part in parts if part is not None) <= 1
    # A start at the minimum, no noise and equal clients: nothing to compare.
    assert script["part_of_bound"](calm(), np.ones(script["ROUNDS"]), seed=0) is None


def calm():
    problem = random_quadratics(np.random.default_rng(0), 2, 1, spread=0.0, same_curvature=True)
    start, setting = problem.minimizer, Setting(2, 2, 1)
    return problem, problem.constants(start), setting, start, 0.01
