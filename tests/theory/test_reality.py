"""The corrected bounds against simulated runs; the paper's, where it must fail."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.problems import (
    Quadratics,
    gradient_squares,
    random_quadratics,
    random_waves,
    simulate,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmom.theory import CORRECTED_FEDMOM, THEOREM_1, THEOREM_2, Setting

seeds = st.integers(0, 2**32 - 1)


@st.composite
def trainings(draw):
    """A problem, how it is trained, a start (the minimum itself among them) and a step."""
    rng = np.random.default_rng(draw(seeds))
    clients, dimension = draw(st.integers(2, 8)), draw(st.integers(1, 4))
    variance = draw(st.sampled_from([0.0, 0.1, 10.0]))
    kind = draw(st.sampled_from(["waves", "same curvature", "any curvature"]))
    if kind == "waves":
        problem, centre = random_waves(rng, clients, dimension, variance=variance), 0.0
    else:
        problem = random_quadratics(
            rng,
            clients,
            dimension,
            variance=variance,
            spread=draw(st.sampled_from([0.0, 1.0, 5.0])),
            same_curvature=kind == "same curvature",
        )
        centre = problem.minimizer
    per_round = draw(st.integers(1, clients))
    setting = Setting(
        clients,
        per_round,
        local_steps=draw(st.integers(1, 8)),
        server_lr=1 + (clients / per_round - 1) * draw(st.sampled_from([0.0, 0.5, 1.0])),
        momentum=draw(st.sampled_from([0.0, 0.5, 0.9])),
        largest_weight=float(problem.weights.max()),
    )
    start = centre + draw(st.sampled_from([0.0, 0.5, 5.0])) * rng.normal(size=dimension)
    constants = problem.constants(start)
    lr = CORRECTED_FEDMOM.max_lr(constants, setting) * draw(st.sampled_from([1.0, 0.3, 0.05]))
    return problem, constants, setting, start, lr


def means_over_rounds(problem, setting, lr, rounds, start, runs, seed=0):
    """(1/T) Σ_{t<T} E|∇f(w_t)|² for T = 1 ... rounds, E as the mean over runs."""
    models = simulate(problem, setting, lr, rounds, start, runs=runs, seed=seed)[:-1]
    squares = gradient_squares(problem, models).mean(axis=1)
    return np.cumsum(squares) / np.arange(1, rounds + 1)


def check_bound(training, rounds, runs):
    problem, constants, setting, start, lr = training
    means = means_over_rounds(problem, setting, lr, rounds, start, runs)
    bounds = CORRECTED_FEDMOM.bound(constants, setting, lr, np.arange(1, rounds + 1))
    assert np.all(means <= bounds + 1e-12)


@settings(max_examples=80)
@given(trainings())
def test_corrected_bounds_hold(training):
    check_bound(training, rounds=60, runs=64)


@pytest.mark.slow
@settings(max_examples=100)
@given(trainings())
def test_corrected_bounds_hold_for_long(training):
    check_bound(training, rounds=600, runs=128)


def test_the_bound_is_not_far_above_the_truth():
    """So that the tests above could fail: here it is less than five times what is measured."""
    rng = np.random.default_rng(0)
    problem = random_quadratics(rng, 6, 1, same_curvature=True, spread=0.0)
    start = problem.minimizer + 1.0
    setting = Setting(6, 3, 5, 2.0, 0.5, float(problem.weights.max()))
    constants = problem.constants(start)
    lr = CORRECTED_FEDMOM.max_lr(constants, setting)
    means = means_over_rounds(problem, setting, lr, 200, start, runs=64)
    assert CORRECTED_FEDMOM.bound(constants, setting, lr, 200) < 5 * means[-1]


# What is left as T grows.


def stationary(problem, setting, lr, seed=0):
    """E|∇f|² over late rounds of runs that start at the minimum."""
    models = simulate(problem, setting, lr, 300, problem.minimizer, runs=100, seed=seed)
    return float(gradient_squares(problem, models[100:]).mean())


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_halving_dissimilarity_or_noise_halves_the_floor(momentum):
    """Runs with the same draws are copies of each other, scaled: the ratio is exact."""
    setting = Setting(6, 2, 4, server_lr=3.0, momentum=momentum)

    def drawn(spread, variance):
        rng = np.random.default_rng(5)
        return random_quadratics(rng, 6, 3, spread=spread, variance=variance, same_curvature=True)

    for whole, half, name in (
        (drawn(1.0, 0.0), drawn(np.sqrt(0.5), 0.0), "dissimilarity"),
        (drawn(0.0, 1.0), drawn(0.0, 0.5), "variance"),
    ):
        constants = whole.constants(whole.minimizer)
        halved = half.constants(half.minimizer)
        assert getattr(halved, name) == pytest.approx(getattr(constants, name) / 2)
        ratio = CORRECTED_FEDMOM.floor(halved, setting, 0.01) / CORRECTED_FEDMOM.floor(
            constants, setting, 0.01
        )
        assert ratio == pytest.approx(0.5)
        measured = stationary(half, setting, 0.01) / stationary(whole, setting, 0.01)
        assert measured == pytest.approx(0.5, rel=1e-6)


def test_the_floor_of_a_draw_is_linear_in_the_step():
    problem = random_quadratics(np.random.default_rng(1), 6, 2, same_curvature=True)
    setting = Setting(6, 2, 4, server_lr=3.0)
    ratio = stationary(problem, setting, 0.02) / stationary(problem, setting, 0.01)
    assert ratio == pytest.approx(2, rel=0.15)


def fixed_point(problem, setting, lr):
    """Where FedAvg with all clients and no noise ends: w = w - η Σ p_k (w - w_H^k), solved."""
    eye = np.eye(problem.matrices.shape[-1])
    turns, shifts = np.zeros_like(eye), np.zeros(len(eye))
    for p, matrix, slope in zip(problem.weights, problem.matrices, problem.slopes, strict=True):
        step = eye - lr * matrix
        turns += p * (eye - np.linalg.matrix_power(step, setting.local_steps))
        powers = [np.linalg.matrix_power(step, h) for h in range(setting.local_steps)]
        shifts += p * lr * np.sum(powers, axis=0) @ slope
    return np.linalg.solve(turns, shifts)


def bias(problem, setting, lr):
    return float(gradient_squares(problem, fixed_point(problem, setting, lr)))


def test_the_bias_of_all_clients_is_quadratic_in_the_step_and_gone_for_one_local_step():
    problem = random_quadratics(np.random.default_rng(2), 5, 3)
    setting = Setting(5, 5, 10, largest_weight=float(problem.weights.max()))
    lrs = np.array([1e-3, 5e-4])
    wide, narrow = (bias(problem, setting, lr) for lr in lrs)
    assert wide / narrow == pytest.approx(4, rel=0.05)
    constants = problem.constants(problem.minimizer)
    assert np.divide(*CORRECTED_FEDMOM.floor(constants, setting, lrs)) == pytest.approx(4)
    one = replace(setting, local_steps=1)
    assert bias(problem, one, 1e-3) == pytest.approx(0, abs=1e-20)
    assert CORRECTED_FEDMOM.floor(constants, one, 1e-3) == 0


# The order in T.


def fitted_slope(problem, setting, start, lrs, rounds, runs):
    """The slope of log (1/T) Σ E|∇f|² over log T, each T run with its own step."""
    ends = [
        means_over_rounds(problem, setting, lr, int(t), start, runs)[-1]
        for lr, t in zip(lrs, rounds, strict=True)
    ]
    return np.polyfit(np.log(rounds), np.log(ends), 1)[0]


def test_noise_decays_as_one_over_the_root_of_t():
    problem = random_quadratics(np.random.default_rng(4), 6, 2, variance=30.0, same_curvature=True)
    start = problem.minimizer + 3.0
    setting = Setting(6, 3, 3, 2.0, 0.5, float(problem.weights.max()))
    rounds = np.array([250, 500, 1000, 2000])
    lrs = CORRECTED_FEDMOM.best_lr(problem.constants(start), setting, rounds)
    assert np.all(np.diff(lrs) < 0)
    slope = fitted_slope(problem, setting, start, lrs, rounds, runs=24)
    assert slope == pytest.approx(-1 / 2, abs=0.1)


def test_bias_decays_as_t_to_the_two_thirds():
    problem = random_quadratics(np.random.default_rng(2), 5, 2, spread=5.0)
    setting = Setting(5, 5, 5, largest_weight=float(problem.weights.max()))
    start = problem.minimizer + 0.5
    rounds = np.array([500, 1000, 2000, 4000])
    lrs = CORRECTED_FEDMOM.best_lr(problem.constants(start), setting, rounds)
    slope = fitted_slope(problem, setting, start, lrs, rounds, runs=1)
    assert slope == pytest.approx(-2 / 3, abs=0.1)


def test_equal_clients_without_noise_decay_as_one_over_t():
    problem = random_quadratics(np.random.default_rng(2), 5, 2, spread=0.0, same_curvature=True)
    setting = Setting(5, 2, 5, 2.5, largest_weight=float(problem.weights.max()))
    start = problem.minimizer + 1.0
    constants = problem.constants(start)
    rounds = np.array([200, 400, 800])
    lrs = CORRECTED_FEDMOM.best_lr(constants, setting, rounds)
    np.testing.assert_allclose(lrs, CORRECTED_FEDMOM.max_lr(constants, setting))
    assert fitted_slope(problem, setting, start, lrs, rounds, runs=4) == pytest.approx(-1, abs=0.1)


# The paper's bounds on clients that differ.


@given(seeds, st.integers(2, 6), st.integers(1, 4), st.integers(2, 20))
def test_theorem_1_fails_wherever_clients_pull_to_another_point(seed, clients, dimension, steps):
    """FedAvg that starts at its own fixed point stays, and ∇f is not 0 there; the bound goes to 0.

    Both hold with every assumption of the theorem met: σ = 0, all clients, the largest γ.
    """
    problem = random_quadratics(np.random.default_rng(seed), clients, dimension)
    setting = Setting(clients, clients, steps, largest_weight=float(problem.weights.max()))
    lr = THEOREM_1.max_lr(problem.constants(problem.minimizer), setting)
    start = fixed_point(problem, setting, lr)
    constants = problem.constants(start)
    square = float(gradient_squares(problem, start))
    models = simulate(problem, setting, lr, 20, start)
    np.testing.assert_allclose(gradient_squares(problem, models), square, rtol=1e-6)
    assert THEOREM_1.applies(constants, setting, lr)
    rounds = 4 * constants.gap / (steps * lr * square)  # at half as many, the two are equal
    assert THEOREM_1.bound(constants, setting, lr, rounds) == pytest.approx(square / 2)
    # Theorem 1' with a step that it allows, from the fixed point of that step.
    own = min(lr, CORRECTED_FEDMOM.max_lr(constants, setting))
    assert bias(problem, setting, own) <= CORRECTED_FEDMOM.floor(constants, setting, own)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_papers_bounds_fail_where_only_the_draw_is_random(momentum):
    """σ = 0 and equal curvatures: the draw of M of K keeps E|∇f|² up, and the paper's has no G."""
    rng = np.random.default_rng(8)
    problem = random_quadratics(rng, 8, 2, spread=3.0, same_curvature=True)
    setting = Setting(8, 2, 3, 1.0, momentum, float(problem.weights.max()))
    start = problem.minimizer + 0.1
    constants = problem.constants(start)
    lr = 0.02
    rounds = 4000
    models = simulate(problem, setting, lr, rounds, start, runs=32)[:-1]
    least = gradient_squares(problem, models).mean(axis=1).min()
    if momentum:
        assert THEOREM_2.applies(constants, setting, lr, rounds)
        claimed = THEOREM_2.bound(constants, setting, lr, rounds)
    else:
        assert THEOREM_1.applies(constants, setting, lr)
        claimed = THEOREM_1.bound(constants, setting, lr, rounds)
    assert claimed < least
    assert least <= CORRECTED_FEDMOM.bound(constants, setting, lr, rounds)


def test_equal_clients_keep_the_papers_bound():
    """Where clients agree, the step that fails is an equality, and the bound holds here."""
    drawn = random_quadratics(np.random.default_rng(0), 1, 3)
    problem = Quadratics(
        np.full(5, 0.2), np.tile(drawn.matrices, (5, 1, 1)), np.tile(drawn.slopes, (5, 1)), 1.0
    )
    setting = Setting(5, 2, 6, server_lr=2.5)
    start = problem.minimizer + 1.0
    constants = problem.constants(start)
    lr = THEOREM_1.max_lr(constants, setting)
    means = means_over_rounds(problem, setting, lr, 200, start, runs=64)
    assert np.all(means <= THEOREM_1.bound(constants, setting, lr, np.arange(1, 201)))
