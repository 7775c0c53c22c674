"""The paper's statements: their algebra, their conditions, and where they are used wrongly."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmom import FedMomError, theory
from fedmom.theory import (
    COROLLARY_2,
    CORRECTED_FEDMOM,
    THEOREM_1,
    THEOREM_2,
    Constants,
    Setting,
    corollary1_applies,
    corollary2_display,
    lemma1,
    power_schedule,
    theorem2_constant,
    theorem2_display,
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
    lr = THEOREM_1.max_lr(constants, setting)
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
    assert THEOREM_1.schedule_bounds(constants, setting, lrs)[-1] == pytest.approx(expected)


@given(cases(), st.floats(0.01, 1))
def test_a_constant_schedule_is_the_constant_step(case, part):
    constants, setting, _ = case
    lr = part * THEOREM_1.max_lr(constants, setting)
    constant = THEOREM_1.bound(constants, setting, lr, np.arange(1, 9))
    np.testing.assert_allclose(
        constant, THEOREM_1.schedule_bounds(constants, setting, np.full(8, lr))
    )


def test_corollary_1_goes_to_0_where_it_applies_and_only_there():
    constants, setting = Constants(1.0, 5.0, 1.0), Setting(10, 5, 2)
    first = THEOREM_1.max_lr(constants, setting)
    rounds = 10 ** np.arange(1, 7)

    def bounds(power):
        lrs = power_schedule(first, power, rounds[-1])
        return THEOREM_1.schedule_bounds(constants, setting, lrs)[rounds - 1]

    falling = bounds(0.75)
    assert corollary1_applies(0.75)
    assert np.all(np.diff(falling) < 0)
    assert falling[-1] < falling[0] / 10
    constant = bounds(0.0)
    assert not corollary1_applies(0.0)
    assert constant[-1] > constants.smoothness * constants.variance * 3 / 2 * first
    summable = bounds(2.0)
    assert not corollary1_applies(2.0)
    assert summable[-1] > 2 / (0.5 * 2 * first * math.pi**2 / 6)  # Σ 1/(t+1)² is π²/6


@given(cases(momentum=False))
def test_corollary_2_bounds_theorem_1_at_its_step(case):
    """It adds what each of the two limits of γ gives, so it is at most twice the larger."""
    constants, setting, rounds = case
    setting = unit(setting)
    lr = COROLLARY_2.max_lr(constants, setting, rounds)
    assert COROLLARY_2.applies(constants, setting, lr, rounds)
    assert not COROLLARY_2.applies(constants, setting, 1.01 * lr, rounds)
    exact = THEOREM_1.bound(constants, setting, lr, rounds)
    display = corollary2_display(constants, setting, rounds)
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
    assert THEOREM_2.bound(silent, setting, slow, rounds) == pytest.approx(lost / rounds)
    short = rest / (4 * product)
    first = 16 * setting.clients * eta * constants.smoothness * constants.gap
    first /= setting.per_round * rounds
    assert THEOREM_2.bound(silent, setting, short, rounds) == pytest.approx(first)
    assert theorem2_display(silent, setting, rounds) == pytest.approx(first + lost / rounds)
    level = theorem2_constant(constants, setting)
    balanced = math.sqrt(constants.gap / (rounds * setting.local_steps * level))
    third = theorem2_display(constants, setting, rounds) - theorem2_display(silent, setting, rounds)
    assert THEOREM_2.bound(constants, setting, balanced, rounds) == pytest.approx(third, rel=1e-6)


@given(cases())
def test_theorem_2_display_bounds_its_last_line(case):
    constants, setting, rounds = case
    lr = THEOREM_2.max_lr(constants, setting, rounds)
    assert THEOREM_2.applies(constants, setting, lr, rounds)
    assert not THEOREM_2.applies(constants, setting, 1.01 * lr, rounds)
    last_line = THEOREM_2.bound(constants, setting, lr, rounds)
    assert last_line <= theorem2_display(constants, setting, rounds) * (1 + 1e-9)


@given(cases())
def test_theorem_2_conditions_are_those_of_its_proof(case):
    constants, setting, rounds = case
    lr = THEOREM_2.max_lr(constants, setting, rounds)
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
    assert not THEOREM_2.applies(constants, setting, 1e-6, 10)
    for call in (
        lambda: THEOREM_1.bound(constants, setting, 0.1, 10),
        lambda: THEOREM_1.max_lr(constants, setting),
        lambda: theorem2_display(constants, setting, 10),
        lambda: THEOREM_2.max_lr(constants, setting, 10),
    ):
        with pytest.raises(FedMomError, match=r"not in \[1, 2\]"):
            call()


def test_theorem_1_applies_to_steps_within_its_limit_only():
    constants, setting = Constants(2.0, 1.0, 1.0), Setting(10, 5, 2, server_lr=2.0)
    largest = 1 / (4 * 2 * 2 * 2)
    assert THEOREM_1.applies(constants, setting, [largest, largest / 2])
    assert not THEOREM_1.applies(constants, setting, [largest / 2, largest * 1.01])
    assert not THEOREM_1.applies(constants, Setting(10, 5, 2, server_lr=9.0), 1e-9)


def test_corollary_2_is_for_server_step_1():
    setting = Setting(10, 5, 2, server_lr=2.0)
    assert not COROLLARY_2.applies(Constants(1.0, 1.0, 1.0), setting, 1e-6, 10)
    for call in (corollary2_display, COROLLARY_2.max_lr):
        with pytest.raises(FedMomError, match="Corollary 2"):
            call(Constants(1.0, 1.0, 1.0), setting, 10)


def test_a_theorem_says_why_it_does_not_apply():
    constants, setting = Constants(1.0, 1.0, 1.0), Setting(10, 5, 2, momentum=0.5)
    outside = replace(setting, server_lr=9.0)
    for theorem, where, lr, says in (
        (THEOREM_1, outside, 0.01, "server-lr 9 is not in [1, 2]"),
        (COROLLARY_2, outside, 0.01, "server-lr 1 only"),
        (THEOREM_1, setting, 0.5, "lr 0.5 is above 0.125, the largest that Theorem 1 allows"),
        (THEOREM_2, setting, [0.001, 0.0005], "Theorem 2 is about a constant lr only"),
        (CORRECTED_FEDMOM, setting, [0.001, 0.002], "lr rises from 0.001 in round 0 to 0.002"),
        (THEOREM_1, setting, [0.001, 0.002], ""),
    ):
        text = theorem.objection(constants, where, lr, rounds=100)
        assert says in text
        assert theorem.applies(constants, where, lr, rounds=100) == (not text)
    assert text == ""
    with pytest.raises(FedMomError, match="constant lr only"):
        THEOREM_2.schedule_bounds(constants, setting, [0.001, 0.0005])
    with pytest.raises(FedMomError, match="Give rounds"):
        THEOREM_2.max_lr(constants, setting)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Constants(0.0, 1.0, 1.0), r"\(L\) is 0.0"),
        (lambda: Constants(1.0, -1.0, 1.0), r"\(σ²\) is -1.0"),
        (lambda: Constants(1.0, 1.0, math.inf), r"f_inf\) is inf"),
        (lambda: Constants(1.0, 1.0, 1.0, math.nan), r"\(G²\) is nan"),
        (lambda: Constants(1.0, 1.0, 1.0, 0.0, 0.5), r"\(B²\) is 0.5"),
        (lambda: Setting(0, 1, 1), r"\(K\) is 0"),
        (lambda: Setting(10, 11, 1), r"\(M\) is 11"),
        (lambda: Setting(10, 5, 0), r"\(H\) is 0"),
        (lambda: Setting(10, 5, 1, server_lr=0.0), r"server_lr \(η\) is 0.0"),
        (lambda: Setting(10, 5, 1, momentum=1.0), r"\(β\) is 1.0"),
        (lambda: Setting(10, 5, 1, largest_weight=0.05), "largest_weight is 0.05"),
        (lambda: THEOREM_1.bound(Constants(1.0, 1.0, 1.0), Setting(2, 1, 1), 0.0, 1), "lr is 0"),
        (
            lambda: THEOREM_1.bound(Constants(1.0, 1.0, 1.0), Setting(2, 1, 1), 0.1, 0),
            "rounds is 0",
        ),
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
    assert theory.THEOREM_2.max_lr(constants, setting, 100) == theory.THEOREM_2.max_lr(
        constants, none, 100
    )
    assert theory.CORRECTED_FEDMOM.max_lr(constants, setting) == theory.CORRECTED_FEDMOM.max_lr(
        constants, none
    )
