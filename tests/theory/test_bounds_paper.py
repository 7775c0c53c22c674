"""The paper's statements: their algebra, their conditions, and where they are used wrongly."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmom import FedMomError, theory
from fedmom.theory import (
    Constants,
    Setting,
    corollary1,
    corollary1_applies,
    corollary2,
    corollary2_applies,
    corollary2_max_lr,
    lemma1,
    theorem1,
    theorem1_applies,
    theorem1_max_lr,
    theorem1_schedule,
    theorem2,
    theorem2_applies,
    theorem2_at,
    theorem2_constant,
    theorem2_max_lr,
)


@st.composite
def cases(draw, momentum=True):
    """Constants and a setting that the paper's theorems speak of."""
    number = st.floats(0.01, 100)
    constants = Constants(draw(number), draw(number), draw(number))
    clients = draw(st.integers(1, 1000))
    per_round = draw(st.integers(1, clients))
    ratio = clients / per_round
    setting = Setting(
        clients,
        per_round,
        draw(st.integers(1, 50)),
        server_lr=1 + (ratio - 1) * draw(st.floats(0, 1)),
        momentum=draw(st.floats(0.05, 0.95)) if momentum else 0.0,
    )
    return constants, setting, draw(st.integers(1, 10**6))


def unit(setting):
    return Setting(setting.clients, setting.per_round, setting.local_steps)


@given(cases())
def test_theorem_1_follows_from_lemma_1(case):
    """With γ at its limit, the terms that Theorem 1's proof drops have the sign it needs."""
    constants, setting, _ = case
    lr = theorem1_max_lr(constants, setting)
    reach = setting.share * setting.server_lr * lr * setting.local_steps
    noise = reach * lr * constants.smoothness * constants.variance * (2 * setting.server_lr + 1) / 4
    for local in (0.0, 7.0):
        after = lemma1(constants, setting, lr, 5.0, 2.0, local)
        assert after <= 5.0 - reach / 2 * 2.0 + noise + 1e-9 * (1 + noise)


def test_lemma_1_is_its_display():
    constants, setting = Constants(2.0, 3.0, 1.0), Setting(10, 4, 5, server_lr=1.5)
    lr, eta, steps, share = 0.01, 1.5, 5, 0.4
    smooth = share * 2 * steps * eta**2 * lr**2 / 2
    drift = share * 2**2 * eta * steps**2 * lr**3 / 2
    expected = 5 - share * steps * eta * lr / 2 * 0.7 + (smooth + drift) * 3
    expected -= (share * eta * lr / 2 - drift - smooth) * 11
    assert lemma1(constants, setting, lr, 5, 0.7, 11) == pytest.approx(expected)


def test_theorem_1_is_its_display():
    constants, setting = Constants(2.0, 3.0, 7.0), Setting(10, 4, 5, server_lr=1.5)
    lrs = np.array([0.02, 0.01, 0.005])
    expected = 2 * 10 * 7 / (1.5 * 4 * 5 * lrs.sum()) + 2 * 3 * 4 / 2 * (lrs**2).sum() / lrs.sum()
    assert theorem1_schedule(constants, setting, lrs)[-1] == pytest.approx(expected)


@given(cases(), st.floats(0.01, 1))
def test_a_constant_schedule_is_the_constant_step(case, part):
    constants, setting, _ = case
    lr = part * theorem1_max_lr(constants, setting)
    constant = theorem1(constants, setting, lr, np.arange(1, 9))
    np.testing.assert_allclose(constant, theorem1_schedule(constants, setting, np.full(8, lr)))


def test_corollary_1_goes_to_0_where_it_applies_and_only_there():
    constants, setting = Constants(1.0, 5.0, 1.0), Setting(10, 5, 2)
    first = theorem1_max_lr(constants, setting)
    rounds = 10 ** np.arange(1, 7)
    falling = corollary1(constants, setting, first, 0.75, rounds)
    assert corollary1_applies(0.75)
    assert np.all(np.diff(falling) < 0)
    assert falling[-1] < falling[0] / 10
    constant = corollary1(constants, setting, first, 0.0, rounds)
    assert not corollary1_applies(0.0)
    assert constant[-1] > constants.smoothness * constants.variance * 3 / 2 * first
    summable = corollary1(constants, setting, first, 2.0, rounds)
    assert not corollary1_applies(2.0)
    assert summable[-1] > 2 / (0.5 * 2 * first * math.pi**2 / 6)  # Σ 1/(t+1)² is π²/6


@given(cases(momentum=False))
def test_corollary_2_bounds_theorem_1_at_its_step(case):
    """It adds what each of the two limits of γ gives, so it is at most twice the larger."""
    constants, setting, rounds = case
    setting = unit(setting)
    lr = corollary2_max_lr(constants, setting, rounds)
    assert corollary2_applies(constants, setting, lr, rounds)
    assert not corollary2_applies(constants, setting, 1.01 * lr, rounds)
    exact = theorem1(constants, setting, lr, rounds)
    display = corollary2(constants, setting, rounds)
    assert exact <= display * (1 + 1e-9)
    assert display <= 2 * exact * (1 + 1e-9)


@given(cases())
def test_theorem_2_with_its_step_put_in_has_1_over_t_in_every_term(case):
    """The paper's second term has lost its 1/T; here it is put in again, one γ at a time."""
    constants, setting, rounds = case
    rest, beta, eta = 1 - setting.momentum, setting.momentum, setting.server_lr
    product = eta * setting.local_steps * constants.smoothness
    silent = Constants(constants.smoothness, 0.0, constants.gap)  # C = 0: the first term alone
    slow = rest**2 / (product * beta**2) * math.sqrt(1 / (8 * setting.share))
    lost = 4 * eta * constants.smoothness * beta**2 * constants.gap
    lost *= math.sqrt(8 * setting.clients) / (rest * math.sqrt(setting.per_round))
    assert theorem2_at(silent, setting, slow, rounds) == pytest.approx(lost / rounds)
    short = rest / (4 * product)
    first = 16 * setting.clients * eta * constants.smoothness * constants.gap
    first /= setting.per_round * rounds
    assert theorem2_at(silent, setting, short, rounds) == pytest.approx(first)
    assert theorem2(silent, setting, rounds) == pytest.approx(first + lost / rounds)
    level = theorem2_constant(constants, setting)
    balanced = math.sqrt(constants.gap / (rounds * setting.local_steps * level))
    third = theorem2(constants, setting, rounds) - theorem2(silent, setting, rounds)
    assert theorem2_at(constants, setting, balanced, rounds) == pytest.approx(third, rel=1e-6)


@given(cases())
def test_theorem_2_display_bounds_its_last_line(case):
    constants, setting, rounds = case
    lr = theorem2_max_lr(constants, setting, rounds)
    assert theorem2_applies(constants, setting, lr, rounds)
    assert not theorem2_applies(constants, setting, 1.01 * lr, rounds)
    last_line = theorem2_at(constants, setting, lr, rounds)
    assert last_line <= theorem2(constants, setting, rounds) * (1 + 1e-9)


@given(cases())
def test_theorem_2_conditions_are_those_of_its_proof(case):
    constants, setting, rounds = case
    lr = theorem2_max_lr(constants, setting, rounds)
    reach = constants.smoothness * setting.local_steps * lr
    rest, beta, eta = 1 - setting.momentum, setting.momentum, setting.server_lr
    assert reach**2 <= 1 / 4
    assert eta * reach / rest <= 1 / 4 + 1e-9
    assert (beta * eta * reach * beta) ** 2 * setting.share / rest**4 <= 1 / 8 + 1e-9


def test_theorem_2_constant_is_its_display():
    setting = Setting(10, 4, 5, server_lr=1.5, momentum=0.8)
    share, rest, eta, product = 0.4, 0.2, 1.5, 2 * 3
    expected = share * product * eta / (4 * rest) + share * product * eta**2 / (2 * rest**2)
    expected += 0.8**4 * share**2 * product * eta**3 / (2 * rest**5)
    assert theorem2_constant(Constants(2.0, 3.0, 1.0), setting) == pytest.approx(expected)


@pytest.mark.parametrize("eta", [0.5, 3.0])
def test_server_steps_outside_the_papers_range(eta):
    constants, setting = Constants(1.0, 1.0, 1.0), Setting(10, 5, 2, server_lr=eta)
    assert not setting.server_lr_in_range
    assert not theorem2_applies(constants, setting, 1e-6, 10)
    for call in (
        lambda: theorem1(constants, setting, 0.1, 10),
        lambda: theorem1_max_lr(constants, setting),
        lambda: theorem2(constants, setting, 10),
        lambda: theorem2_max_lr(constants, setting, 10),
    ):
        with pytest.raises(FedMomError, match=r"not in \[1, 2\]"):
            call()


def test_theorem_1_applies_to_steps_within_its_limit_only():
    constants, setting = Constants(2.0, 1.0, 1.0), Setting(10, 5, 2, server_lr=2.0)
    largest = 1 / (4 * 2 * 2 * 2)
    assert theorem1_applies(constants, setting, [largest, largest / 2])
    assert not theorem1_applies(constants, setting, [largest / 2, largest * 1.01])
    assert not theorem1_applies(constants, Setting(10, 5, 2, server_lr=9.0), 1e-9)


def test_corollary_2_is_for_server_step_1():
    setting = Setting(10, 5, 2, server_lr=2.0)
    assert not corollary2_applies(Constants(1.0, 1.0, 1.0), setting, 1e-6, 10)
    with pytest.raises(FedMomError, match="Corollary 2"):
        corollary2(Constants(1.0, 1.0, 1.0), setting, 10)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Constants(0.0, 1.0, 1.0), "L 0.0"),
        (lambda: Constants(1.0, -1.0, 1.0), "σ² -1.0"),
        (lambda: Constants(1.0, 1.0, math.inf), "f_inf inf"),
        (lambda: Constants(1.0, 1.0, 1.0, math.nan), "G² nan"),
        (lambda: Constants(1.0, 1.0, 1.0, 0.0, 0.5), "B² 0.5"),
        (lambda: Setting(0, 1, 1), "K = 0"),
        (lambda: Setting(10, 11, 1), "M = 11"),
        (lambda: Setting(10, 5, 0), "H = 0"),
        (lambda: Setting(10, 5, 1, server_lr=0.0), "server-lr 0.0"),
        (lambda: Setting(10, 5, 1, momentum=1.0), "momentum 1.0"),
        (lambda: Setting(10, 5, 1, largest_weight=0.05), "largest weight 0.05"),
        (lambda: theorem1(Constants(1.0, 1.0, 1.0), Setting(2, 1, 1), 0.0, 1), "lr 0.0"),
        (lambda: theorem1(Constants(1.0, 1.0, 1.0), Setting(2, 1, 1), 0.1, 0), "rounds 0"),
    ],
)
def test_mistakes_are_sentences(make, sentence):
    with pytest.raises(FedMomError, match=sentence):
        make()


@pytest.mark.parametrize("momentum", [1e-320, 1e-200, 0.0])
def test_a_momentum_whose_square_is_zero_is_none(momentum):
    constants = Constants(smoothness=1.0, variance=1.0, gap=2.0, dissimilarity=0.5)
    setting = Setting(clients=100, per_round=10, local_steps=10, server_lr=10.0, momentum=momentum)
    none = replace(setting, momentum=0.0)
    assert theory.theorem2_max_lr(constants, setting, 100) == theory.theorem2_max_lr(
        constants, none, 100
    )
    assert theory.corrected_fedmom_max_lr(constants, setting) == theory.corrected_fedmom_max_lr(
        constants, none
    )
