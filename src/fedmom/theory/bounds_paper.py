"""The paper's statements (Huo et al. 2020), named and numbered as they are there.

They are given as published, for comparison. Their proofs replace <∇f(w_t), Σ p_k ∇f_k(w_h^k)> by
Σ p_k <∇f_k(w_t), ∇f_k(w_h^k)>, which is not the same where clients differ, and the bounds are
then false: ``counterexample.py`` has a case, ``bounds_corrected.py`` has bounds that hold, and
docs/theory.md tells the whole story.

Assumptions of all of them: every ∇f_k and ∇f is L-Lipschitz; a client's stochastic gradient has
mean ∇f_k and variance at most σ²; f ≥ f_inf; M of K clients are drawn uniformly each round and
weighted p_k = n_k/n; η is in [1, K/M]. G² and B² of the constants are not looked at.
γ (``lr``) and T (``rounds``) may be arrays; bounds then come in their broadcast shape.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from fedmom.core.errors import FedMomError
from fedmom.theory.constants import Array, Constants, Number, Setting, plain, positive


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
    """
    _check_server_lr(setting)
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
    """
    lr, rounds = positive(lr, "lr"), positive(rounds, "rounds")
    return plain(_theorem1(constants, setting, lr * rounds, lr**2 * rounds))


def theorem1_schedule(constants: Constants, setting: Setting, lrs: ArrayLike) -> Array:
    """Theorem 1 for a sequence γ_0, γ_1, ...: the bound after T = 1, 2, ... rounds."""
    steps = np.atleast_1d(positive(lrs, "lr"))
    return _theorem1(constants, setting, np.cumsum(steps), np.cumsum(steps**2))


def theorem1_max_lr(constants: Constants, setting: Setting) -> float:
    """Return the largest γ_t that Theorem 1 allows: min{1/(2LH), 1/(4ηLH)}."""
    _check_server_lr(setting)
    product = constants.smoothness * setting.local_steps
    return min(1 / (2 * product), 1 / (4 * setting.server_lr * product))


def theorem1_applies(constants: Constants, setting: Setting, lr: ArrayLike) -> bool:
    """Whether η and every γ meet Theorem 1's condition."""
    return setting.server_lr_in_range and _at_most(lr, theorem1_max_lr(constants, setting))


def corollary1(
    constants: Constants, setting: Setting, first: float, power: float, rounds: ArrayLike
) -> Number:
    """Corollary 1, for γ_t = first/(t+1)^power: Theorem 1's bound, which goes to 0 as T grows.

    The corollary: if Σ γ_t = ∞ and Σ γ_t² < ∞ (``corollary1_applies``), then
    lim_{T→∞} min_{t<T} |∇f(w_t)|² = 0. Theorem 1 asks besides that γ_0 is at most
    ``theorem1_max_lr``, so the paper's example γ_t = 1/(t+1) needs a factor in front.
    """
    counts = np.asarray(positive(rounds, "rounds"), int)
    steps = positive(first, "lr") / np.arange(1, counts.max() + 1) ** power
    return plain(theorem1_schedule(constants, setting, steps)[counts - 1])


def corollary1_applies(power: float) -> bool:
    """Whether γ_t ∝ 1/(t+1)^power has an infinite sum and a finite sum of squares."""
    return 0.5 < power <= 1


def corollary2(constants: Constants, setting: Setting, rounds: ArrayLike) -> Number:
    """Corollary 2 (FedAvg, η = 1) at its largest γ, ``corollary2_max_lr``.

        min_{t<T} |∇f(w_t)|² ≤ 8LK(f(w_0) - f_inf)/(MT) + sqrt(12KLσ²(f(w_0) - f_inf)/(MTH))

    The paper says "if γ ≤ ...". The display follows at the largest γ only: for smaller ones
    the first term of Theorem 1 grows as 1/γ.
    """
    _check_unit_server_lr(setting)
    rounds = positive(rounds, "rounds")
    gap = constants.gap / (setting.share * rounds)
    noise = 12 * constants.smoothness * constants.variance * gap / setting.local_steps
    return plain(8 * constants.smoothness * gap + np.sqrt(noise))


def corollary2_max_lr(constants: Constants, setting: Setting, rounds: ArrayLike) -> Number:
    """Return Corollary 2's γ: min{sqrt(4K(f(w_0) - f_inf)/(3MTHLσ²)), 1/(4LH)}."""
    _check_unit_server_lr(setting)
    rounds = positive(rounds, "rounds")
    product = constants.smoothness * setting.local_steps
    noise = 3 * setting.share * rounds * product * constants.variance
    return plain(np.minimum(_root_of_ratio(4 * constants.gap, noise), 1 / (4 * product)))


def corollary2_applies(
    constants: Constants, setting: Setting, lr: ArrayLike, rounds: ArrayLike
) -> bool:
    """Whether η is 1 and γ meets Corollary 2's condition."""
    if setting.server_lr != 1:
        return False
    return _at_most(lr, corollary2_max_lr(constants, setting, rounds))


def theorem2(constants: Constants, setting: Setting, rounds: ArrayLike) -> Number:
    """Theorem 2 (FedMom) at its largest γ, ``theorem2_max_lr``, with the second term mended.

        min_{t<T} E|∇f(w_t)|² ≤ 16KηL(f(w_0) - f_inf)/(TM)
                                + 4ηLβ²(f(w_0) - f_inf) sqrt(8K)/(T(1-β) sqrt(M))
                                + (8K(1-β)/M) sqrt((f(w_0) - f_inf)C/(TH))

    with C of ``theorem2_constant``. The paper prints the second term without its 1/T, which
    is lost when γ = (1-β)²/(ηβ²HL) · sqrt(K/(8M)) is put into ``theorem2_at``. As in
    Corollary 2, the display follows at the largest γ, not at smaller ones.
    """
    _check_server_lr(setting)
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
    """
    _check_server_lr(setting)
    lr, rounds = positive(lr, "lr"), positive(rounds, "rounds")
    factor = 4 * (1 - setting.momentum) / setting.share
    start = constants.gap / (rounds * setting.local_steps * lr)
    return plain(factor * (start + theorem2_constant(constants, setting) * lr))


def theorem2_constant(constants: Constants, setting: Setting) -> float:
    """Return Theorem 2's C.

    C = MLησ²/(4K(1-β)) + MLη²σ²/(2K(1-β)²) + β⁴M²Lη³σ²/(2K²(1-β)⁵)
    """
    rest = 1 - setting.momentum
    step = setting.server_lr / rest  # the three terms in powers of η/(1-β)
    terms = step / 4 + step**2 / 2
    terms += setting.momentum**4 * setting.share * step**3 / (2 * rest**2)
    return setting.share * constants.smoothness * constants.variance * terms


def theorem2_max_lr(constants: Constants, setting: Setting, rounds: ArrayLike) -> Number:
    """Return the largest γ that Theorem 2 allows.

    min{sqrt((f(w_0) - f_inf)/(THC)), (1-β)/(4ηHL), (1-β)²/(ηβ²HL) · sqrt(K/(8M))}
    """
    _check_server_lr(setting)
    rounds = positive(rounds, "rounds")
    rest = 1 - setting.momentum
    product = setting.server_lr * setting.local_steps * constants.smoothness
    noise = rounds * setting.local_steps * theorem2_constant(constants, setting)
    largest = np.minimum(_root_of_ratio(constants.gap, noise), rest / (4 * product))
    if setting.momentum**2:  # a tiny β squares to 0
        momentum = rest**2 / (product * setting.momentum**2) * math.sqrt(1 / (8 * setting.share))
        largest = np.minimum(largest, momentum)
    return plain(largest)


def theorem2_applies(
    constants: Constants, setting: Setting, lr: ArrayLike, rounds: ArrayLike
) -> bool:
    """Whether η and γ meet Theorem 2's condition."""
    if not setting.server_lr_in_range:
        return False
    return _at_most(lr, theorem2_max_lr(constants, setting, rounds))


def _theorem1(constants: Constants, setting: Setting, total: Array, squares: Array) -> Array:
    _check_server_lr(setting)
    eta = setting.server_lr
    start = 2 * constants.gap / (eta * setting.share * setting.local_steps * total)
    noise = constants.smoothness * constants.variance * (2 * eta + 1) / 2
    return start + noise * squares / total


def _root_of_ratio(above: float, below: Array) -> Array:
    """Return sqrt(above/below); without noise below is 0, and there is no such limit."""
    ratio = np.full_like(below, np.inf)
    np.divide(above, below, out=ratio, where=below > 0)
    return np.sqrt(ratio)


def _at_most(lr: ArrayLike, largest: ArrayLike) -> bool:
    """Whether every γ is within its limit, up to rounding."""
    return bool(np.all(positive(lr, "lr") <= np.asarray(largest) * (1 + 1e-9)))


def _check_server_lr(setting: Setting) -> None:
    if not setting.server_lr_in_range:
        low, high = setting.server_lr_range
        raise FedMomError(
            f"server-lr {setting.server_lr:g} is not in [{low:g}, {high:g}], which is [1, K/M]:"
            " the paper's theorems do not speak of it. Take a server-lr in this range."
        )


def _check_unit_server_lr(setting: Setting) -> None:
    if setting.server_lr != 1:
        raise FedMomError(
            f"Corollary 2 holds for server-lr 1 only, not {setting.server_lr:g}."
            " Take Theorem 1 for other server step sizes."
        )
