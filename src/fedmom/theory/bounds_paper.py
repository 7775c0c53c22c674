"""The paper's statements on FedAvg (Huo et al. 2020), named and numbered as they are there.

They are given as published, for comparison. Their proofs replace <∇f(w_t), Σ p_k ∇f_k(w_h^k)> by
Σ p_k <∇f_k(w_t), ∇f_k(w_h^k)>, which is not the same where clients differ, and the bounds are
then false: ``counterexample.py`` has a case, ``bounds_corrected.py`` has bounds that hold, and
docs/theory.md tells the whole story. Theorem 2 is in ``bounds_paper_fedmom.py``.

Assumptions of all of them: every ∇f_k and ∇f is L-Lipschitz; a client's stochastic gradient has
mean ∇f_k and variance at most σ²; f ≥ f_inf; M of K clients are drawn uniformly each round and
weighted p_k = n_k/n; η is in [1, K/M]. G² and B² of the constants are not looked at.
γ (``lr``) and T (``rounds``) may be arrays; bounds then come in their broadcast shape.
"""

import numpy as np
from numpy.typing import ArrayLike

from fedmom.core.errors import FedMomError
from fedmom.theory.constants import (
    Array,
    Constants,
    Number,
    Setting,
    at_most,
    check_server_lr,
    plain,
    positive,
    root_of_ratio,
)


def lemma1(
    constants: Constants,
    setting: Setting,
    lr: ArrayLike,
    loss: ArrayLike,
    gradient_square: ArrayLike,
    local_squares: ArrayLike,
) -> Number:
    """Lemma 1: one round of FedAvg from w_t. Returns the claimed bound on E f(w_{t+1}).

    With ``loss`` = f(w_t), ``gradient_square`` = |∇f(w_t)|² and ``local_squares`` =
    Σ_h Σ_k p_k E|∇f_k(w_h^k)|² over the H local steps:

        E f(w_{t+1}) ≤ f(w_t) - (MHηγ/2K) |∇f(w_t)|²
                       + (MLHη²γ²/2K + ML²ηH²γ³/2K) σ²
                       - (Mηγ/2K - ML²ηH²γ³/2K - MLHη²γ²/2K) Σ_h Σ_k p_k E|∇f_k(w_h^k)|²

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        lr: γ, a number or an array.
        loss: f(w_t).
        gradient_square: |∇f(w_t)|².
        local_squares: Σ_h Σ_k p_k E|∇f_k(w_h^k)|².

    Returns:
        The bound on E f(w_{t+1}).

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> lemma1(constants, setting, 0.05, loss=2.0, gradient_square=1.0, local_squares=4.0)
        1.9135
    """
    check_server_lr(setting)
    lr = positive(lr, "lr")
    half = setting.share * setting.server_lr * lr / 2
    rate = constants.smoothness * setting.local_steps * lr
    spread = rate * setting.server_lr + rate**2
    noise = half * spread * constants.variance
    descent = half * setting.local_steps * np.asarray(gradient_square, float)
    local = half * (1 - spread) * np.asarray(local_squares, float)
    return plain(np.asarray(loss, float) - descent + noise - local)


def theorem1(constants: Constants, setting: Setting, lr: ArrayLike, rounds: ArrayLike) -> Number:
    """Theorem 1 (FedAvg) with γ_t = γ. Its condition is ``theorem1_max_lr``.

        min_{t<T} E|∇f(w_t)|² ≤ 2K(f(w_0) - f_inf)/(ηMHΓ_T) + (Lσ²(2η + 1)/2) Σ γ_t²/Γ_T

    with Γ_T = Σ_{t<T} γ_t, if γ_t ≤ min{1/(2LH), 1/(4ηLH)} for all t.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        lr: γ, a number or an array.
        rounds: T, a number or an array.

    Returns:
        The bound.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> round(theorem1(constants, setting, lr=0.05, rounds=1000), 4)
        0.0775
    """
    lr, rounds = positive(lr, "lr"), positive(rounds, "rounds")
    return plain(_theorem1(constants, setting, lr * rounds, lr**2 * rounds))


def theorem1_schedule(constants: Constants, setting: Setting, lrs: ArrayLike) -> Array:
    """Theorem 1 for a sequence γ_0, γ_1, ...: the bound after T = 1, 2, ... rounds.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        lrs: γ_0, γ_1, ...

    Returns:
        The bounds, an array.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> theorem1_schedule(constants, setting, [0.05, 0.04, 0.03]).round(2).tolist()
        [40.04, 22.26, 16.7]
    """
    steps = np.atleast_1d(positive(lrs, "lr"))
    return _theorem1(constants, setting, np.cumsum(steps), np.cumsum(steps**2))


def theorem1_max_lr(constants: Constants, setting: Setting) -> float:
    """Return the largest γ_t that Theorem 1 allows: min{1/(2LH), 1/(4ηLH)}.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.

    Returns:
        The step size γ.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> theorem1_max_lr(constants, setting)  # 1/(4ηLH)
        0.0625
    """
    check_server_lr(setting)
    product = constants.smoothness * setting.local_steps
    return min(1 / (2 * product), 1 / (4 * setting.server_lr * product))


def theorem1_applies(constants: Constants, setting: Setting, lr: ArrayLike) -> bool:
    """Whether η and every γ meet Theorem 1's condition.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        lr: γ, a number or an array.

    Returns:
        Whether it does.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> theorem1_applies(constants, setting, 0.05), theorem1_applies(constants, setting, 0.1)
        (True, False)
    """
    return setting.server_lr_in_range and at_most(lr, theorem1_max_lr(constants, setting))


def corollary1(
    constants: Constants, setting: Setting, first: float, power: float, rounds: ArrayLike
) -> Number:
    """Corollary 1, for γ_t = first/(t+1)^power: Theorem 1's bound, which goes to 0 as T grows.

    The corollary: if Σ γ_t = ∞ and Σ γ_t² < ∞ (``corollary1_applies``), then
    lim_{T→∞} min_{t<T} |∇f(w_t)|² = 0. Theorem 1 asks besides that γ_0 is at most
    ``theorem1_max_lr``, so the paper's example γ_t = 1/(t+1) needs a factor in front.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        first: γ_0.
        power: How fast γ_t falls.
        rounds: T, a number or an array.

    Returns:
        The bound.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> corollary1(constants, setting, 0.05, power=0.75, rounds=[10, 1000]).round(2).tolist()
        [10.66, 2.1]
    """
    counts = np.asarray(positive(rounds, "rounds"), int)
    steps = positive(first, "lr") / np.arange(1, counts.max() + 1) ** power
    return plain(theorem1_schedule(constants, setting, steps)[counts - 1])


def corollary1_applies(power: float) -> bool:
    """Whether γ_t ∝ 1/(t+1)^power has an infinite sum and a finite sum of squares.

    Args:
        power: How fast γ_t falls.

    Returns:
        Whether it does.

    Examples:
        >>> corollary1_applies(0.5), corollary1_applies(0.75), corollary1_applies(1)
        (False, True, True)
    """
    return 0.5 < power <= 1


def corollary2(constants: Constants, setting: Setting, rounds: ArrayLike) -> Number:
    """Corollary 2 (FedAvg, η = 1) at its largest γ, ``corollary2_max_lr``.

        min_{t<T} |∇f(w_t)|² ≤ 8LK(f(w_0) - f_inf)/(MT) + sqrt(12KLσ²(f(w_0) - f_inf)/(MTH))

    The paper says "if γ ≤ ...". The display follows at the largest γ only: for smaller ones
    the first term of Theorem 1 grows as 1/γ.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        rounds: T, a number or an array.

    Returns:
        The bound.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> round(corollary2(constants, setting, rounds=1000), 4)
        0.1095
    """
    _check_unit_server_lr(setting)
    rounds = positive(rounds, "rounds")
    gap = constants.gap / (setting.share * rounds)
    noise = 12 * constants.smoothness * constants.variance * gap / setting.local_steps
    return plain(8 * constants.smoothness * gap + np.sqrt(noise))


def corollary2_max_lr(constants: Constants, setting: Setting, rounds: ArrayLike) -> Number:
    """Return Corollary 2's γ: min{sqrt(4K(f(w_0) - f_inf)/(3MTHLσ²)), 1/(4LH)}.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        rounds: T, a number or an array.

    Returns:
        The step size γ.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> round(corollary2_max_lr(constants, setting, rounds=1000), 4)
        0.0516
    """
    _check_unit_server_lr(setting)
    rounds = positive(rounds, "rounds")
    product = constants.smoothness * setting.local_steps
    noise = 3 * setting.share * rounds * product * constants.variance
    return plain(np.minimum(root_of_ratio(4 * constants.gap, noise), 1 / (4 * product)))


def corollary2_applies(
    constants: Constants, setting: Setting, lr: ArrayLike, rounds: ArrayLike
) -> bool:
    """Whether η is 1 and γ meets Corollary 2's condition.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        lr: γ, a number or an array.
        rounds: T, a number or an array.

    Returns:
        Whether it does.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> corollary2_applies(constants, setting, lr=0.01, rounds=1000)
        True
    """
    if setting.server_lr != 1:
        return False
    return at_most(lr, corollary2_max_lr(constants, setting, rounds))


def _theorem1(constants: Constants, setting: Setting, total: Array, squares: Array) -> Array:
    check_server_lr(setting)
    eta = setting.server_lr
    start = 2 * constants.gap / (eta * setting.share * setting.local_steps * total)
    noise = constants.smoothness * constants.variance * (2 * eta + 1) / 2
    return start + noise * squares / total


def _check_unit_server_lr(setting: Setting) -> None:
    if setting.server_lr != 1:
        raise FedMomError(
            f"Corollary 2 holds for server-lr 1 only, not {setting.server_lr:g}."
            " Take Theorem 1 for other server step sizes."
        )
