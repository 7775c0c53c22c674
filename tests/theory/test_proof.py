"""The steps of the proofs in docs/theory.md, each held against a case where it can be computed."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmom.theory import CORRECTED_FEDAVG, CORRECTED_FEDMOM, Constants, Setting


@st.composite
def cases(draw):
    constants = Constants(
        smoothness=draw(st.floats(0.01, 100)),
        variance=draw(st.sampled_from([0.0, 0.1, 10.0])),
        gap=draw(st.floats(0.01, 100)),
        dissimilarity=draw(st.sampled_from([0.0, 0.1, 10.0])),
        similarity=draw(st.floats(1, 50)),
    )
    clients = draw(st.integers(1, 1000))
    setting = Setting(
        clients,
        per_round=draw(st.integers(1, clients)),
        local_steps=draw(st.integers(1, 50)),
        server_lr=draw(st.floats(0.1, 1000)),
        momentum=draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99])),
        largest_weight=max(1 / clients, draw(st.floats(0, 1))),
    )
    return constants, setting


# The arithmetic that the conditions on γ are made for.


@given(cases())
def test_the_largest_step_absorbs_what_the_proof_absorbs(case):
    constants, setting = case
    lr = CORRECTED_FEDMOM.max_lr(constants, setting)
    beta, share = setting.momentum, setting.share
    kappa = 1 + beta**2 / (1 + beta)
    reach = constants.smoothness * lr * setting.local_steps
    server = reach * setting.server_lr / (1 - beta)
    drawn = setting.sampling_weight * server
    growth = math.exp(2 * reach)
    # |∇f|²: drift and sampling together take at most half of it.
    assert growth * constants.similarity * (reach**2 / 3 + kappa * drawn) <= 0.5
    # |ḡ|²: half of it is free, the other half paid for the step from w to z.
    pushed = 4 * (beta**2 * server * share / (1 - beta)) ** 2
    assert server * share + pushed <= 0.5 + 1e-9
    # κ: what momentum adds to the noise.
    assert 1 + 4 * beta**4 * server * share / (1 - beta**2) <= kappa + 1e-9


@given(cases())
def test_the_largest_step_is_the_largest(case):
    """A little above it, one of the theorem's three conditions breaks."""
    constants, setting = case
    lr = 1.001 * CORRECTED_FEDMOM.max_lr(constants, setting)
    beta, root = setting.momentum, math.sqrt(constants.similarity)
    reach = constants.smoothness * lr * setting.local_steps
    server = reach * setting.server_lr / (1 - beta)
    kappa = 1 + beta**2 / (1 + beta)
    steady = min(1, (1 - beta) / beta**2) if beta else 1
    broken = (
        reach > min(1 / 4, 1 / (2 * root)),
        server * setting.share > steady / 4,
        kappa * setting.sampling_weight * server > 1 / (5 * constants.similarity),
    )
    assert any(broken)
    assert not CORRECTED_FEDMOM.applies(constants, setting, lr)
    assert CORRECTED_FEDMOM.applies(constants, setting, lr / 1.001)


# Step 1: how far a client drifts.


@given(
    st.integers(0, 2**32 - 1),
    st.floats(0.01, 0.25),
    st.integers(1, 12),
    st.sampled_from([-1.0, 0.3, 1.0]),
)
def test_drift_and_variance_of_a_client(seed, reach, steps, curvature):
    """Exact on f_k(w) = aw²/2 + bw, where both follow from (1 - γa)^h."""
    rng = np.random.default_rng(seed)
    w, slope, variance = rng.normal(), rng.normal(), rng.uniform(0, 3)
    lr = reach / steps  # L = 1
    gradient = curvature * w + slope
    for h in range(1, steps + 1):
        powers = (1 - lr * curvature) ** np.arange(h)
        spread = lr**2 * variance * np.sum(powers**2)
        drift = (lr * gradient * np.sum(powers)) ** 2 + spread
        growth = math.exp(2 * lr * h)
        assert drift <= growth * lr**2 * (h * variance + (h * gradient) ** 2) * (1 + 1e-12)
        assert spread <= growth * lr**2 * h * variance * (1 + 1e-12)


def test_the_growth_factor_is_needed():
    """On -w²/2 a client runs away: without e^{2γLH} its drift would break the bound."""
    lr, steps = 0.25 / 100, 100
    run = (1 + lr) ** steps - 1
    assert (lr * steps) ** 2 < run**2 <= math.exp(2 * lr * steps) * (lr * steps) ** 2


@given(st.floats(0.01, 0.25))
def test_noise_and_later_gradients_are_correlated(lr):
    """The paper's bound of Q₂ is false: two steps from w = 0 on -w²/2, with noise of variance 1.

    The sum of the two stochastic gradients is n_0 + (γn_0 + n_1).
    """
    exact = (1 + lr) ** 2 + 1
    papers = 2 + 2 * (0 + lr**2)  # Hσ² + H Σ E|∇f_k(w_h)|²
    assert exact > papers
    assert exact <= math.exp(4 * lr) * 2  # e^{2γLH}(Hσ² + H²|∇f_k(w)|²)


@given(st.integers(1, 60))
def test_sums_of_the_drift(steps):
    h = np.arange(steps)
    assert h.sum() == steps * (steps - 1) / 2
    assert (h**2).sum() <= steps**2 * (steps - 1) / 3


# Step 2: the draw of M of K.


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.data())
def test_moments_of_a_cohort_by_counting_all_cohorts(seed, clients, data):
    rng = np.random.default_rng(seed)
    size = data.draw(st.integers(1, clients))
    weights = rng.dirichlet(np.ones(clients))
    means = rng.normal(size=(clients, 3))
    spreads = rng.uniform(0, 1, clients)  # Var d_k
    share, pairs = size / clients, (size - 1) / (clients - 1)
    cohorts = [list(c) for c in itertools.combinations(range(clients), size)]
    sums = np.array([weights[c] @ means[c] for c in cohorts])
    inner = np.mean([weights[c] ** 2 @ spreads[c] for c in cohorts])
    whole = weights @ means
    np.testing.assert_allclose(sums.mean(0), share * whole)
    variance = np.sum(sums.var(0)) + inner
    squares = np.sum(means**2, axis=1)
    exact = share * (weights**2 @ (spreads + (1 - pairs) * squares))
    exact -= share * (share - pairs) * whole @ whole
    assert variance == pytest.approx(exact)
    second = spreads + squares  # E|d_k|²
    bound = share * (weights**2 @ (pairs * spreads + (1 - pairs) * second))
    assert variance <= bound + 1e-12
    # The form that the paper and its readers use, which is looser.
    assert variance + np.sum((share * whole) ** 2) <= share * weights @ second + 1e-12


# Step 3: momentum.


@given(st.integers(0, 2**32 - 1), st.floats(0, 0.99), st.integers(1, 40))
def test_the_shifted_model_takes_plain_steps(seed, beta, rounds):
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=rounds)
    w = v = rng.normal()
    shift, shifts = 0.0, []
    for g in steps:
        shifts.append(shift)
        z = w + shift
        ahead = w - g
        w, v = ahead + beta * (ahead - v), ahead
        shift = beta * shift - beta**2 / (1 - beta) * g
        assert shift == pytest.approx(beta / (1 - beta) * (w - v), rel=1e-6, abs=1e-6)
        assert w + shift == pytest.approx(z - g / (1 - beta), rel=1e-6, abs=1e-6)
    limit = beta**4 / (1 - beta) ** 4 * np.sum(steps**2)
    assert np.sum(np.square(shifts)) <= limit * (1 + 1e-9) + 1e-12


@given(st.floats(0.05, 0.95), st.integers(1, 30))
def test_independent_steps_shift_the_model_less(beta, rounds):
    """E Σ|p_t|² of independent steps of variance 1, exactly, and its bound."""
    total = 0.0
    for t in range(rounds):
        total += (beta**2 / (1 - beta)) ** 2 * np.sum(beta ** (2 * np.arange(t)))
    assert total <= rounds * beta**4 / ((1 - beta) ** 2 * (1 - beta**2)) * (1 + 1e-12)


# Laws of the bounds.


@given(cases(), st.floats(0.01, 1), st.integers(1, 10**6))
def test_without_momentum_theorem_2_is_theorem_1(case, part, rounds):
    """Written out: 4K gap/(MηγHT) + √e L²γ²(H-1)(σ² + ⅔HG²) + 2√e Lηγ(pσ² + cHG²)."""
    constants, setting = case
    plain = replace(setting, momentum=0.0)
    lr = part * CORRECTED_FEDAVG.max_lr(constants, setting)
    eta, steps, smooth = setting.server_lr, setting.local_steps, constants.smoothness
    noise, unlike = constants.variance, steps * constants.dissimilarity
    expected = 4 * setting.clients * constants.gap
    expected /= setting.per_round * eta * lr * steps * rounds
    expected += math.exp(0.5) * (smooth * lr) ** 2 * (steps - 1) * (noise + 2 / 3 * unlike)
    drawn = setting.largest_weight * noise + setting.sampling_weight * unlike
    expected += 2 * math.exp(0.5) * smooth * eta * lr * drawn
    assert CORRECTED_FEDMOM.bound(constants, plain, lr, rounds) == pytest.approx(expected)
    assert CORRECTED_FEDAVG.bound(constants, setting, lr, rounds) == pytest.approx(expected)
    assert CORRECTED_FEDMOM.max_lr(constants, plain) == CORRECTED_FEDAVG.max_lr(constants, setting)


@given(cases(), st.floats(0.01, 1))
def test_momentum_is_a_longer_server_step(case, part):
    constants, setting = case
    beta = setting.momentum
    lr = part * CORRECTED_FEDMOM.max_lr(constants, setting)
    longer = replace(setting, server_lr=setting.server_lr / (1 - beta), momentum=0.0)
    plain = CORRECTED_FEDAVG.bound(constants, longer, lr, 100)
    assert plain * (1 - 1e-9) <= CORRECTED_FEDMOM.bound(constants, setting, lr, 100) <= 1.5 * plain


@given(cases(), st.floats(0.01, 1))
def test_the_floor_is_a_sum_of_noise_and_dissimilarity(case, part):
    """Halving σ² halves its part of the floor and leaves the other; so does halving G²."""
    constants, setting = case
    lr = part * CORRECTED_FEDMOM.max_lr(constants, setting)

    def floor(**changes):
        return CORRECTED_FEDMOM.floor(replace(constants, **changes), setting, lr)

    noise, unlike = floor(dissimilarity=0.0), floor(variance=0.0)
    assert floor() == pytest.approx(noise + unlike)
    assert floor(variance=constants.variance / 2) == pytest.approx(noise / 2 + unlike)
    assert floor(dissimilarity=constants.dissimilarity / 2) == pytest.approx(noise + unlike / 2)
    assert CORRECTED_FEDMOM.bound(constants, setting, lr, 1e30) == pytest.approx(floor(), abs=1e-20)


@given(cases(), st.floats(0.01, 1), st.integers(1, 10**6))
def test_bounds_grow_with_what_makes_a_problem_hard(case, part, rounds):
    constants, setting = case
    lr = part * CORRECTED_FEDMOM.max_lr(constants, setting)
    bound = CORRECTED_FEDMOM.bound(constants, setting, lr, rounds)
    for name in ("smoothness", "variance", "gap", "dissimilarity"):
        harder = replace(constants, **{name: 2 * getattr(constants, name)})
        assert CORRECTED_FEDMOM.bound(harder, setting, lr, rounds) >= bound
    assert CORRECTED_FEDMOM.bound(constants, setting, lr, 2 * rounds) <= bound
    for name in ("smoothness", "similarity"):
        harder = replace(constants, **{name: 2 * getattr(constants, name)})
        largest = CORRECTED_FEDMOM.max_lr(constants, setting)
        assert CORRECTED_FEDMOM.max_lr(harder, setting) <= largest


def test_equal_clients_with_the_server_step_k_over_m_share_the_noise():
    """K drops out and M clients divide σ² by M: 2√e Lγσ²/M, and nothing else for H = 1."""
    constants = Constants(1.0, 4.0, 1.0)
    for clients in (10, 1000):
        setting = Setting(clients, 5, 1, server_lr=clients / 5, largest_weight=1 / clients)
        floor = CORRECTED_FEDMOM.floor(constants, setting, 0.01)
        assert floor == pytest.approx(2 * math.exp(0.5) * 0.01 * 4 / 5)


@given(cases(), st.integers(1, 10**8))
def test_the_best_step_is_the_best_on_a_grid(case, rounds):
    constants, setting = case
    largest = CORRECTED_FEDMOM.max_lr(constants, setting)
    best = CORRECTED_FEDMOM.best_lr(constants, setting, rounds)
    assert 0 < best <= largest
    grid = np.geomspace(largest * 1e-9, largest, 2000)
    least = np.min(CORRECTED_FEDMOM.bound(constants, setting, grid, rounds))
    assert CORRECTED_FEDMOM.bound(constants, setting, best, rounds) <= least * (1 + 1e-9)


def test_the_order_of_the_best_bound():
    rounds = np.array([1e8, 1e12])

    def slope(variance, per_round, dissimilarity):
        constants = Constants(1.0, variance, 1.0, dissimilarity, 2.0)
        setting = Setting(10, per_round, 5, largest_weight=0.1)
        lr = CORRECTED_FEDMOM.best_lr(constants, setting, rounds)
        bound = CORRECTED_FEDAVG.bound(constants, setting, lr, rounds)
        return np.diff(np.log(bound))[0] / np.diff(np.log(rounds))[0]

    assert slope(1.0, 5, 0.0) == pytest.approx(-1 / 2, abs=0.01)
    assert slope(0.0, 5, 1.0) == pytest.approx(-1 / 2, abs=0.01)
    assert slope(0.0, 10, 1.0) == pytest.approx(-2 / 3, abs=0.01)  # all clients, no noise
    assert slope(0.0, 5, 0.0) == pytest.approx(-1)


def test_a_start_at_the_minimum_wants_no_step():
    assert CORRECTED_FEDMOM.best_lr(Constants(1.0, 1.0, 0.0), Setting(10, 5, 3), 100) == 0
