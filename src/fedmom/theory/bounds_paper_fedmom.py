"""The paper's Theorem 2 on FedMom, as published but for one term.

Assumptions, and what is wrong with the proof, are those of ``bounds_paper``.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from fedmom.theory.constants import (
    Constants,
    Number,
    Setting,
    at_most,
    check_server_lr,
    plain,
    positive,
    root_of_ratio,
)


def theorem2(constants: Constants, setting: Setting, rounds: ArrayLike) -> Number:
    """Theorem 2 (FedMom) at its largest γ, ``theorem2_max_lr``, with the second term mended.

        min_{t<T} E|∇f(w_t)|² ≤ 16KηL(f(w_0) - f_inf)/(TM)
                                + 4ηLβ²(f(w_0) - f_inf) sqrt(8K)/(T(1-β) sqrt(M))
                                + (8K(1-β)/M) sqrt((f(w_0) - f_inf)C/(TH))

    with C of ``theorem2_constant``. The paper prints the second term without its 1/T, which
    is lost when γ = (1-β)²/(ηβ²HL) · sqrt(K/(8M)) is put into ``theorem2_at``. As in
    Corollary 2, the display follows at the largest γ, not at smaller ones.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        rounds: T, a number or an array.

    Returns:
        The bound.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4, momentum=0.9)
        >>> round(theorem2(constants, setting, rounds=1000), 4)
        2.6179
    """
    check_server_lr(setting)
    rounds = positive(rounds, "rounds")
    rest = 1 - setting.momentum
    product = setting.server_lr * constants.smoothness * constants.gap / rounds
    smooth = 16 * product / setting.share
    momentum = 4 * product * setting.momentum**2 * math.sqrt(8 / setting.share) / rest
    spread = constants.gap * theorem2_constant(constants, setting) / (rounds * setting.local_steps)
    return plain(smooth + momentum + 8 * rest / setting.share * np.sqrt(spread))


def theorem2_at(constants: Constants, setting: Setting, lr: ArrayLike, rounds: ArrayLike) -> Number:
    """Theorem 2 before γ is put in: the last line of its proof, for any γ that it allows.

    min_{t<T} E|∇f(w_t)|² ≤ 4K(1-β)(f(w_0) - f_inf)/(THMγ) + 4KC(1-β)γ/M

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        lr: γ, a number or an array.
        rounds: T, a number or an array.

    Returns:
        The bound.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4, momentum=0.9)
        >>> round(theorem2_at(constants, setting, lr=0.001, rounds=1000), 4)
        3.691
    """
    check_server_lr(setting)
    lr, rounds = positive(lr, "lr"), positive(rounds, "rounds")
    factor = 4 * (1 - setting.momentum) / setting.share
    start = constants.gap / (rounds * setting.local_steps * lr)
    return plain(factor * (start + theorem2_constant(constants, setting) * lr))


def theorem2_constant(constants: Constants, setting: Setting) -> float:
    """Return Theorem 2's C.

    C = MLησ²/(4K(1-β)) + MLη²σ²/(2K(1-β)²) + β⁴M²Lη³σ²/(2K²(1-β)⁵)

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.

    Returns:
        C.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4, momentum=0.9)
        >>> round(theorem2_constant(constants, setting), 4)
        4113.75
    """
    rest = 1 - setting.momentum
    step = setting.server_lr / rest  # the three terms in powers of η/(1-β)
    terms = step / 4 + step**2 / 2
    terms += setting.momentum**4 * setting.share * step**3 / (2 * rest**2)
    return setting.share * constants.smoothness * constants.variance * terms


def theorem2_max_lr(constants: Constants, setting: Setting, rounds: ArrayLike) -> Number:
    """Return the largest γ that Theorem 2 allows.

    min{sqrt((f(w_0) - f_inf)/(THC)), (1-β)/(4ηHL), (1-β)²/(ηβ²HL) · sqrt(K/(8M))}

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        rounds: T, a number or an array.

    Returns:
        The step size γ.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4, momentum=0.9)
        >>> round(theorem2_max_lr(constants, setting, rounds=1000), 4)
        0.0003
    """
    check_server_lr(setting)
    rounds = positive(rounds, "rounds")
    rest = 1 - setting.momentum
    product = setting.server_lr * setting.local_steps * constants.smoothness
    noise = rounds * setting.local_steps * theorem2_constant(constants, setting)
    largest = np.minimum(root_of_ratio(constants.gap, noise), rest / (4 * product))
    if setting.momentum**2:  # a tiny β squares to 0
        momentum = rest**2 / (product * setting.momentum**2) * math.sqrt(1 / (8 * setting.share))
        largest = np.minimum(largest, momentum)
    return plain(largest)


def theorem2_applies(
    constants: Constants, setting: Setting, lr: ArrayLike, rounds: ArrayLike
) -> bool:
    """Whether η and γ meet Theorem 2's condition.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        lr: γ, a number or an array.
        rounds: T, a number or an array.

    Returns:
        Whether they do.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4, momentum=0.9)
        >>> theorem2_applies(constants, setting, lr=0.0001, rounds=1000)
        True
    """
    if not setting.server_lr_in_range:
        return False
    return at_most(lr, theorem2_max_lr(constants, setting, rounds))
