"""Theorems 1' and 2' for a step size that falls: the proof's new step, laws, simulated runs."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.problems import gradient_squares, random_quadratics, simulate
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmom.core.errors import FedMomError
from fedmom.theory import (
    CORRECTED_FEDAVG,
    CORRECTED_FEDMOM,
    Setting,
    power_schedule,
    power_vanishes,
)
from fedmom.theory.constants import Constants
from tests.theory.test_proof import cases
from tests.theory.test_reality import trainings

SHAPES = {
    "inverse_sqrt": lambda t, _rounds: 1 / np.sqrt(t + 1),
    "slow inverse_sqrt": lambda t, _rounds: 1 / np.sqrt(1 + t / 10),
    "cosine": lambda t, rounds: (1 + np.cos(np.pi * t / rounds)) / 2,
    "stairs": lambda t, rounds: 0.1 ** (2 * t // rounds),
}


def falling(shape, first, rounds):
    return first * SHAPES[shape](np.arange(rounds), rounds)


# The step of the proof that a changing γ touches: how far z is from w, weighted by γ_t.


def shifts(beta, steps):
    """P_0 ... P_{T-1} for the server's steps g_t."""
    shift, found = np.zeros_like(steps[0]), []
    for g in steps:
        found.append(shift)
        shift = beta * shift - beta**2 / (1 - beta) * g
    return np.array(found)


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.95), st.integers(1, 40))
def test_the_weighted_shift_of_any_updates(seed, beta, rounds):
    """Σ γ_t |P_t|² ≤ β⁴/(1-β)⁴ Σ γ_t³ |X_t|² for γ_t that falls, whatever the X_t."""
    rng = np.random.default_rng(seed)
    lrs = np.sort(rng.uniform(0.01, 1, rounds))[::-1]
    updates = rng.normal() + rng.normal(size=rounds)
    moved = shifts(beta, lrs * updates)
    limit = beta**4 / (1 - beta) ** 4 * np.sum(lrs**3 * updates**2)
    assert np.sum(lrs * moved**2) <= limit * (1 + 1e-9)


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.95), st.integers(1, 30))
def test_the_weighted_shift_of_independent_updates(seed, beta, rounds):
    """Σ γ_t E|P_t|² of independent X_t of variance 1, exactly, and its bound."""
    lrs = np.sort(np.random.default_rng(seed).uniform(0.01, 1, rounds))[::-1]
    spread = np.square(shifts(beta, np.diag(lrs))).sum(axis=1)  # a column for each round's X
    limit = beta**4 / ((1 - beta) ** 2 * (1 - beta**2)) * np.sum(lrs**3)
    assert np.sum(lrs * spread) <= limit * (1 + 1e-9)


def test_a_step_size_that_rises_breaks_that_step():
    """So the proof needs the condition: what a small γ left in the buffer meets a large one."""
    beta, lrs, updates = 0.9, np.array([1e-7, 1e-4]), np.array([1.0, 0.0])
    moved = shifts(beta, lrs * updates)
    assert np.sum(lrs * moved**2) > beta**4 / (1 - beta) ** 4 * np.sum(lrs**3 * updates**2)
    constants, setting = Constants(1.0, 1.0, 1.0), Setting(10, 5, 3, momentum=beta)
    assert CORRECTED_FEDMOM.applies(constants, setting, lrs[::-1])
    assert not CORRECTED_FEDMOM.applies(constants, setting, lrs)
    with pytest.raises(FedMomError, match=r"lr rises from 1e-07 in round 0 to 0[.]0001"):
        CORRECTED_FEDMOM.schedule_bounds(constants, setting, lrs)


# Laws of the bounds.


@given(cases(), st.floats(0.01, 1), st.integers(1, 50))
def test_a_constant_step_is_the_theorem_for_one(case, part, rounds):
    constants, setting = case
    counts = np.arange(1, rounds + 1)
    lr = part * CORRECTED_FEDMOM.max_lr(constants, setting)
    expected = CORRECTED_FEDMOM.bound(constants, setting, lr, counts)
    np.testing.assert_allclose(
        CORRECTED_FEDMOM.schedule_bounds(constants, setting, np.full(rounds, lr)),
        expected,
        rtol=1e-9,
    )
    lr = part * CORRECTED_FEDAVG.max_lr(constants, setting)
    expected = CORRECTED_FEDAVG.bound(constants, setting, lr, counts)
    np.testing.assert_allclose(
        CORRECTED_FEDAVG.schedule_bounds(constants, setting, np.full(rounds, lr)),
        expected,
        rtol=1e-9,
    )


@given(cases(), st.integers(0, 2**32 - 1))
def test_a_sequence_is_bounded_by_sums_of_its_powers(case, seed):
    """Written out with the constant theorem's parts: a/Γ + b Σγ²/Γ + c Σγ³/Γ."""
    constants, setting = case
    largest = CORRECTED_FEDMOM.max_lr(constants, setting)
    lrs = largest * np.sort(np.random.default_rng(seed).uniform(0.01, 1, 20))[::-1]

    def bound(**changes):
        return CORRECTED_FEDMOM.bound(replace(constants, **changes), setting, largest, 1)

    start = bound(variance=0.0, dissimilarity=0.0) * largest
    calm, one = replace(constants, gap=0.0), replace(setting, local_steps=1)
    floor = CORRECTED_FEDMOM.bound(calm, setting, largest, 1)
    # H = 1 has no drift; what the draw and the noise add is then of H = 1, so put in HG².
    linear = CORRECTED_FEDMOM.bound(
        replace(calm, dissimilarity=setting.local_steps * calm.dissimilarity), one, largest, 1
    )
    total = start + linear * np.sum(lrs**2) / largest
    total += (floor - linear) * np.sum(lrs**3) / largest**2
    assert CORRECTED_FEDMOM.schedule_bounds(constants, setting, lrs)[-1] == pytest.approx(
        total / lrs.sum()
    )


def test_every_step_must_be_allowed():
    constants, setting = Constants(2.0, 1.0, 1.0, 0.5, 2.0), Setting(10, 5, 3, momentum=0.5)
    largest = CORRECTED_FEDMOM.max_lr(constants, setting)
    assert CORRECTED_FEDMOM.applies(constants, setting, falling("cosine", largest, 50))
    assert not CORRECTED_FEDMOM.applies(constants, setting, falling("cosine", 1.01 * largest, 50))
    rising = falling("cosine", largest, 50)[::-1]
    assert CORRECTED_FEDMOM.applies(constants, replace(setting, momentum=0.0), rising)
    assert not CORRECTED_FEDMOM.applies(constants, setting, rising)
    with pytest.raises(FedMomError, match=r"lr is 0\. It must be greater than 0"):
        CORRECTED_FEDAVG.schedule_bounds(constants, setting, [0.1, 0.0])


@pytest.mark.parametrize(
    ("power", "slope"), [(0.25, -0.25), (0.5, -0.5), (0.75, -0.25), (1.0, 0.0)]
)
def test_the_order_of_the_bound_in_t(power, slope):
    """T^-power below 1/2, ln T/√T there, T^(power-1) above, 1/ln T at 1."""
    constants, setting = Constants(1.0, 5.0, 1e-3, 1.0, 2.0), Setting(10, 5, 3, momentum=0.5)
    first = CORRECTED_FEDMOM.max_lr(constants, setting)
    rounds = np.array([10**5, 10**6])
    lrs = power_schedule(first, power, rounds[-1])
    bounds = CORRECTED_FEDMOM.schedule_bounds(constants, setting, lrs)[rounds - 1]
    logarithm = {0.5: 1.0, 1.0: -1.0}.get(power, 0.0)
    expected = 10**slope * (6 / 5) ** logarithm
    assert bounds[1] / bounds[0] == pytest.approx(expected, rel=0.05)
    assert power_vanishes(power)


def test_a_step_size_that_stays_or_stops_has_no_such_order():
    assert not power_vanishes(0.0)  # the floor stays
    assert not power_vanishes(1.1)  # Γ_T is finite: the start is never forgotten
    constants, setting = Constants(1.0, 0.0, 1.0), Setting(2, 2, 1)
    lrs = 0.1 / np.arange(1, 10**5 + 1) ** 2.0
    assert CORRECTED_FEDAVG.schedule_bounds(constants, setting, lrs)[-1] > 4 / (0.1 * np.pi**2 / 6)


def test_half_a_cosine_costs_the_root_of_three_halves_where_noise_rules():
    """Γ = γ_0(T+1)/2 and Σγ² ≈ ⅜Tγ_0²: at the best γ_0, √(3/2) times the best constant bound."""
    constants, setting = Constants(1.0, 100.0, 1.0), Setting(2, 2, 1, momentum=0.5)
    rounds = 10_000
    lr = CORRECTED_FEDMOM.best_lr(constants, setting, rounds)
    best = CORRECTED_FEDMOM.bound(constants, setting, lr, rounds)
    grid = lr * np.linspace(0.5, 4, 200)
    cosines = [
        CORRECTED_FEDMOM.schedule_bounds(constants, setting, falling("cosine", g, rounds))[-1]
        for g in grid
    ]
    assert min(cosines) / best == pytest.approx(np.sqrt(3 / 2), rel=1e-3)
    lrs = falling("cosine", 1.0, rounds)
    assert lrs.sum() == pytest.approx((rounds + 1) / 2)
    assert np.sum(lrs**2) / rounds == pytest.approx(3 / 8, rel=1e-3)
    assert np.sum(lrs**3) / rounds == pytest.approx(5 / 16, rel=1e-3)


# Simulated runs.


def weighted_means(problem, setting, lrs, start, runs):
    """Σ_{t<T} (γ_t/Γ_T) E|∇f(w_t)|² for T = 1, 2, ..., E as the mean over runs."""
    models = simulate(problem, setting, lrs, len(lrs), start, runs=runs)[:-1]
    squares = gradient_squares(problem, models).mean(axis=1)
    return np.cumsum(lrs * squares) / np.cumsum(lrs)


@settings(max_examples=40)
@given(trainings(), st.sampled_from(sorted(SHAPES)))
def test_bounds_hold_with_a_step_that_falls(training, shape):
    problem, constants, setting, start, first = training
    lrs = falling(shape, first, 60)
    assert CORRECTED_FEDMOM.applies(constants, setting, lrs)
    means = weighted_means(problem, setting, lrs, start, runs=64)
    assert np.all(means <= CORRECTED_FEDMOM.schedule_bounds(constants, setting, lrs) + 1e-12)


@pytest.mark.slow
@settings(max_examples=100)
@given(trainings(), st.sampled_from(sorted(SHAPES)))
def test_bounds_hold_for_long_with_a_step_that_falls(training, shape):
    problem, constants, setting, start, first = training
    lrs = falling(shape, first, 600)
    means = weighted_means(problem, setting, lrs, start, runs=128)
    assert np.all(means <= CORRECTED_FEDMOM.schedule_bounds(constants, setting, lrs) + 1e-12)


def test_the_bound_is_not_far_above_the_truth():
    """So that the tests above could fail: here it is less than five times what is measured."""
    rng = np.random.default_rng(0)
    problem = random_quadratics(rng, 6, 1, same_curvature=True, spread=0.0)
    start = problem.minimizer + 1.0
    setting = Setting(6, 3, 5, 2.0, 0.5, float(problem.weights.max()))
    constants = problem.constants(start)
    lrs = falling("slow inverse_sqrt", CORRECTED_FEDMOM.max_lr(constants, setting), 200)
    means = weighted_means(problem, setting, lrs, start, runs=4)
    assert CORRECTED_FEDMOM.schedule_bounds(constants, setting, lrs)[-1] < 5 * means[-1]


def test_the_simulation_takes_the_steps_of_its_schedule():
    """One client, w²/2, no noise, H = 1: w_T = w_0 Π (1 - γ_t)."""
    problem = random_quadratics(np.random.default_rng(0), 1, 1, spread=0.0)
    curvature = problem.matrices[0, 0, 0]
    lrs = falling("cosine", 0.5, 8)
    models = simulate(problem, Setting(1, 1, 1), lrs, 8, np.ones(1))
    np.testing.assert_allclose(models[1:, 0, 0], np.cumprod(1 - lrs * curvature))
