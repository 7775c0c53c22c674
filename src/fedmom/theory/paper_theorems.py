"""The theorems of the paper (Huo et al. 2020), named and numbered as they are there.

They are given as published, for comparison. Their proofs replace <∇f(w_t), Σ p_k ∇f_k(w_h^k)> by
Σ p_k <∇f_k(w_t), ∇f_k(w_h^k)>, which is not the same where clients differ, and the bounds are
then false: ``counterexample.py`` has a case, ``theorems.py`` has theorems that hold, and
docs/theory.md tells the whole story.

Assumptions of all of them: every ∇f_k and ∇f is L-Lipschitz; a client's stochastic gradient has
mean ∇f_k and variance at most σ²; f ≥ f_inf; M of K clients are drawn uniformly each round and
weighted p_k = n_k/n; η is in [1, K/M]. G² and B² are not used.

**Theorem 1** (FedAvg). If γ_t ≤ min{1/(2LH), 1/(4ηLH)} for all t, with Γ_T = Σ_{t<T} γ_t

    min_{t<T} E|∇f(w_t)|² ≤ 2K(f(w_0) - f_inf)/(ηMHΓ_T) + (Lσ²(2η + 1)/2) Σ γ_t²/Γ_T.

**Corollary 1**. If also Σ γ_t = ∞ and Σ γ_t² < ∞, this goes to 0 as T grows. The paper's example
γ_t = 1/(t+1) needs a factor in front: Theorem 1 asks for a small γ_0.

**Corollary 2** (FedAvg, η = 1). If γ ≤ min{sqrt(4K(f(w_0) - f_inf)/(3MTHLσ²)), 1/(4LH)}

    min_{t<T} |∇f(w_t)|² ≤ 8LK(f(w_0) - f_inf)/(MT) + sqrt(12KLσ²(f(w_0) - f_inf)/(MTH)).

This follows at the largest γ only: for smaller ones the first term of Theorem 1 grows as 1/γ. So
``COROLLARY_2.bound`` is that of Theorem 1, and ``corollary2_display`` is the formula above.

**Theorem 2** (FedMom). With C = MLησ²/(4K(1-β)) + MLη²σ²/(2K(1-β)²) + β⁴M²Lη³σ²/(2K²(1-β)⁵) and
γ ≤ min{sqrt((f(w_0) - f_inf)/(THC)), (1-β)/(4ηHL), (1-β)²/(ηβ²HL) · sqrt(K/(8M))}, the last line
of the proof is

    min_{t<T} E|∇f(w_t)|² ≤ 4K(1-β)(f(w_0) - f_inf)/(THMγ) + 4KC(1-β)γ/M.

The paper puts the largest γ in, see ``theorem2_display``.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.validation import Finite
from fedmom.theory.constants import Array, Constants, Number, Setting, numbers, plain, positive
from fedmom.theory.theorems import CORRECTED_FEDAVG, CORRECTED_FEDMOM, Theorem


@checked
def lemma1(
    constants: Constants,
    setting: Setting,
    lr: ArrayLike,
    loss: ArrayLike,
    gradient_square: ArrayLike,
    local_squares: ArrayLike,
) -> Number:
    """Lemma 1: one round of FedAvg from w_t. Returns the claimed bound on E f(w_{t+1}).

        E f(w_{t+1}) ≤ f(w_t) - (MHηγ/2K) |∇f(w_t)|²
                       + (MLHη²γ²/2K + ML²ηH²γ³/2K) σ²
                       - (Mηγ/2K - ML²ηH²γ³/2K - MLHη²γ²/2K) Σ_h Σ_k p_k E|∇f_k(w_h^k)|²

    Args:
        constants: Those of the problem.
        setting: How it is trained.
        lr: γ, a number or an array.
        loss: f(w_t).
        gradient_square: |∇f(w_t)|².
        local_squares: Σ_h Σ_k p_k E|∇f_k(w_h^k)|², over the H local steps.

    Returns:
        The bound on E f(w_{t+1}).

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> lemma1(constants, setting, 0.05, loss=2.0, gradient_square=1.0, local_squares=4.0)
        1.9135
    """
    _check(_outside_range(setting))
    lr = positive(lr, "lr")
    half = setting.share * setting.server_lr * lr / 2
    rate = constants.smoothness * setting.local_steps * lr
    spread = rate * setting.server_lr + rate**2
    noise = half * spread * constants.variance
    descent = half * setting.local_steps * numbers(gradient_square, "gradient_square")
    local = half * (1 - spread) * numbers(local_squares, "local_squares")
    return plain(numbers(loss, "loss") - descent + noise - local)


@checked
def corollary1_applies(power: Finite) -> bool:
    """Return whether γ_t ∝ 1/(t+1)^power has an infinite sum and a finite sum of squares.

    Args:
        power: How fast γ_t falls.

    Returns:
        Whether it does.

    Examples:
        >>> corollary1_applies(0.5), corollary1_applies(0.75), corollary1_applies(1)
        (False, True, True)
    """
    return 0.5 < power <= 1


@checked
def corollary2_display(constants: Constants, setting: Setting, rounds: ArrayLike) -> Number:
    """Return Corollary 2's bound as the paper displays it, at its largest γ.

    Args:
        constants: Those of the problem.
        setting: How it is trained.
        rounds: T, a number or an array.

    Returns:
        The bound, at most twice ``COROLLARY_2.bound`` at that γ.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> round(corollary2_display(constants, setting, rounds=1000), 4)
        0.1095
    """
    _check(_not_one(setting))
    rounds = positive(rounds, "rounds")
    gap = constants.gap / (setting.share * rounds)
    noise = 12 * constants.smoothness * constants.variance * gap / setting.local_steps
    return plain(8 * constants.smoothness * gap + np.sqrt(noise))


@checked
def theorem2_display(constants: Constants, setting: Setting, rounds: ArrayLike) -> Number:
    """Return Theorem 2's bound as the paper displays it, at its largest γ, with one term mended.

        min_{t<T} E|∇f(w_t)|² ≤ 16KηL(f(w_0) - f_inf)/(TM)
                                + 4ηLβ²(f(w_0) - f_inf) sqrt(8K)/(T(1-β) sqrt(M))
                                + (8K(1-β)/M) sqrt((f(w_0) - f_inf)C/(TH))

    The paper prints the second term without its 1/T, which is lost when
    γ = (1-β)²/(ηβ²HL) · sqrt(K/(8M)) is put in.

    Args:
        constants: Those of the problem.
        setting: How it is trained.
        rounds: T, a number or an array.

    Returns:
        The bound.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4, momentum=0.9)
        >>> round(theorem2_display(constants, setting, rounds=1000), 4)
        2.6179
    """
    _check(_outside_range(setting))
    rounds = positive(rounds, "rounds")
    rest = 1 - setting.momentum
    product = setting.server_lr * constants.smoothness * constants.gap / rounds
    smooth = 16 * product / setting.share
    momentum = 4 * product * setting.momentum**2 * math.sqrt(8 / setting.share) / rest
    spread = constants.gap * theorem2_constant(constants, setting) / (rounds * setting.local_steps)
    return plain(smooth + momentum + 8 * rest / setting.share * np.sqrt(spread))


@checked
def theorem2_constant(constants: Constants, setting: Setting) -> float:
    """Return Theorem 2's C.

    Args:
        constants: Those of the problem.
        setting: How it is trained.

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


def _terms1(constants: Constants, setting: Setting) -> tuple[float, float, float]:
    eta = setting.server_lr
    start = 2 * constants.gap / (eta * setting.share * setting.local_steps)
    return start, constants.smoothness * constants.variance * (2 * eta + 1) / 2, 0.0


def _limit1(constants: Constants, setting: Setting, _: ArrayLike | None) -> float:
    product = constants.smoothness * setting.local_steps
    return min(1 / (2 * product), 1 / (4 * setting.server_lr * product))


def _corollary2_limit(constants: Constants, setting: Setting, rounds: ArrayLike | None) -> Number:
    product = constants.smoothness * setting.local_steps
    noise = 3 * setting.share * _needed(rounds) * product * constants.variance
    return plain(np.minimum(_root_of_ratio(4 * constants.gap, noise), 1 / (4 * product)))


def _terms2(constants: Constants, setting: Setting) -> tuple[float, float, float]:
    factor = 4 * (1 - setting.momentum) / setting.share
    start = factor * constants.gap / setting.local_steps
    return start, factor * theorem2_constant(constants, setting), 0.0


def _limit2(constants: Constants, setting: Setting, rounds: ArrayLike | None) -> Number:
    rest = 1 - setting.momentum
    product = setting.server_lr * setting.local_steps * constants.smoothness
    constant = theorem2_constant(constants, setting)
    noise = _needed(rounds) * setting.local_steps * constant
    largest = np.minimum(_root_of_ratio(constants.gap, noise), rest / (4 * product))
    if setting.momentum**2:  # a tiny β squares to 0
        momentum = rest**2 / (product * setting.momentum**2) * math.sqrt(1 / (8 * setting.share))
        largest = np.minimum(largest, momentum)
    return plain(largest)


def _needed(rounds: ArrayLike | None) -> Array:
    if rounds is None:
        raise FedMomError(
            "The largest lr of Corollary 2 and Theorem 2 depends on the rounds. Give rounds."
        )
    return positive(rounds, "rounds")


def _root_of_ratio(above: float, below: Array) -> Array:
    """Return sqrt(above/below); without noise below is 0, and there is no such limit."""
    ratio = np.full_like(below, np.inf)
    np.divide(above, below, out=ratio, where=below > 0)
    return np.sqrt(ratio)


def _outside_range(setting: Setting) -> str:
    if setting.server_lr_in_range:
        return ""
    low, high = setting.server_lr_range
    return (
        f"server-lr {setting.server_lr:g} is not in [{low:g}, {high:g}], which is [1, K/M], so the"
        " paper's theorems do not apply. Use a server-lr in this range."
    )


def _not_one(setting: Setting) -> str:
    if setting.server_lr == 1:
        return ""
    return (
        f"Corollary 2 holds for server-lr 1 only, not {setting.server_lr:g}. Use Theorem 1 for"
        " other server learning rates."
    )


def _check(refusal: str) -> None:
    if refusal:
        raise FedMomError(refusal)


THEOREM_1 = Theorem("Theorem 1", "paper", "fedavg", "any", _terms1, _limit1, _outside_range)
COROLLARY_2 = Theorem(
    "Corollary 2", "paper, η = 1", "fedavg", "constant", _terms1, _corollary2_limit, _not_one
)
THEOREM_2 = Theorem("Theorem 2", "paper", "fedmom", "constant", _terms2, _limit2, _outside_range)
THEOREMS = (THEOREM_1, COROLLARY_2, THEOREM_2, CORRECTED_FEDAVG, CORRECTED_FEDMOM)


@dataclass(frozen=True)
class Applied:
    """A theorem applied: the largest γ it allows, its bound there, and at another γ.

    None where it does not apply: η is not covered, or γ is too large.
    """

    theorem: Theorem
    largest_lr: float | None = None
    bound: float | None = None
    bound_at: float | None = None


def apply_all(
    constants: Constants, setting: Setting, rounds: int, lr: float | None = None
) -> list[Applied]:
    """Apply every theorem; Corollary 2 with η = 1, whatever η is."""
    found = []
    for theorem in THEOREMS:
        own = replace(setting, server_lr=1.0) if theorem is COROLLARY_2 else setting
        if theorem.refuses(own):
            found.append(Applied(theorem))
            continue
        largest = float(theorem.max_lr(constants, own, rounds))
        bound = at = None
        if largest > 0:
            bound = float(theorem.bound(constants, own, largest, rounds))
            if lr is not None and theorem.applies(constants, own, lr, rounds):
                at = float(theorem.bound(constants, own, lr, rounds))
        found.append(Applied(theorem, largest, bound, at))
    return found
