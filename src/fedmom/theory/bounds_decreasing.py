"""Theorems 1' and 2' for a step size γ_t that falls over the rounds.

Assumptions and constants are those of ``bounds_corrected``. All local steps of round t have the
size γ_t. What is bounded is the mean of E|∇f(w_t)|² with weights γ_t/Γ_T, Γ_T = Σ_{t<T} γ_t,
and so also the minimum that the paper speaks of. For FedMom γ_t must not rise: its buffer holds
updates of earlier rounds, and their sizes are compared with today's. Proofs are in
docs/theory.md.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from fedmom.core.errors import FedMomError
from fedmom.theory.bounds_corrected import corrected_applies, terms
from fedmom.theory.constants import Array, Constants, Number, Setting, plain, positive

ROUNDING = 1e-9  # how much a schedule may rise, relatively, by rounding


def decreasing_fedavg(constants: Constants, setting: Setting, lrs: ArrayLike) -> Array:
    """Theorem 1' for a sequence γ_0, γ_1, ..., which here may rise, too; β is not looked at.

    Args:
        constants: Of the problem.
        setting: How it is trained.
        lrs: γ_0, γ_1, ...; each at most ``corrected_fedavg_max_lr`` (``decreasing_applies``).

    Returns:
        The bounds after T = 1, 2, ... rounds; see ``decreasing_fedmom`` at β = 0.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> decreasing_fedavg(constants, setting, [0.01, 0.008, 0.006]).round(1).tolist()
        [400.0, 222.2, 166.7]
    """
    return _bounds(constants, replace(setting, momentum=0.0), _sequence(lrs))


def decreasing_fedmom(constants: Constants, setting: Setting, lrs: ArrayLike) -> Array:
    """Theorem 2' for a sequence γ_0 ≥ γ_1 ≥ ..., with γ_0 at most ``corrected_fedmom_max_lr``.

        Σ_{t<T} (γ_t/Γ_T) E|∇f(w_t)|² ≤ 4K(1-β)(f(w_0) - f_inf)/(MηHΓ_T)
                        + √e L²(H-1)(σ² + ⅔HG²) Σγ_t³/Γ_T
                        + 2√e κ (Lη/(1-β)) (p σ² + c HG²) Σγ_t²/Γ_T

    The constants are those of Theorem 2', which this is if all γ_t are equal.

    Args:
        constants: Of the problem.
        setting: How it is trained.
        lrs: γ_0, γ_1, ...

    Returns:
        The bounds after T = 1, 2, ... rounds.

    Raises:
        FedMomError: If γ_t rises and β > 0, where the theorem says nothing.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4, momentum=0.9)
        >>> decreasing_fedmom(constants, setting, [0.001, 0.0008]).round(1).tolist()
        [400.0, 222.2]
    """
    steps = _sequence(lrs)
    if setting.momentum and not _falls(steps):
        rise = int(np.argmax(steps[1:] > steps[:-1] * (1 + ROUNDING)))
        raise FedMomError(
            f"lr rises from {steps[rise]:g} in round {rise} to {steps[rise + 1]:g} in the next."
            " With momentum the theorem is for step sizes that never rise: leave out the warm-up,"
            " or ask for the bound from the round on where it ends."
        )
    return _bounds(constants, setting, steps)


def decreasing_applies(constants: Constants, setting: Setting, lrs: ArrayLike) -> bool:
    """Whether a sequence γ_0, γ_1, ... meets the conditions: none too large, no rise if β > 0.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        lrs: γ_0, γ_1, ...

    Returns:
        Whether it does.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4, momentum=0.9)
        >>> decreasing_applies(constants, setting, [0.001, 0.0008])
        True
        >>> decreasing_applies(constants, setting, [0.001, 0.002])  # it rises
        False
    """
    steps = _sequence(lrs)
    falls = not setting.momentum or _falls(steps)
    return falls and corrected_applies(constants, setting, steps)


def decreasing_power(
    constants: Constants, setting: Setting, first: float, power: float, rounds: ArrayLike
) -> Number:
    """Return the bound after T rounds with γ_t = first/(t+1)^power, as in Corollary 1.

    It goes to 0 as T grows for 0 < power ≤ 1 (``decreasing_power_vanishes``): as T^-power below
    1/2, as ln T/√T at 1/2, as T^(power-1) above, and as 1/ln T at 1.

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
        >>> decreasing_power(constants, setting, 0.05, 0.5, rounds=[10, 1000]).round(2).tolist()
        [15.98, 1.3]
    """
    counts = np.asarray(positive(rounds, "rounds"), int)
    steps = positive(first, "lr") / np.arange(1, counts.max() + 1) ** power
    return plain(decreasing_fedmom(constants, setting, steps)[counts - 1])


def decreasing_power_vanishes(power: float) -> bool:
    """Whether Γ_T grows without end for γ_t ∝ 1/(t+1)^power while γ_t goes to 0.

    Then Σγ_t²/Γ_T and Σγ_t³/Γ_T, means of γ_t and γ_t², go to 0 as well. Corollary 1 asks for
    Σγ_t² < ∞ besides (``corollary1_applies``), which is more than is needed.

    Args:
        power: How fast γ_t falls.

    Returns:
        Whether it does.

    Examples:
        >>> decreasing_power_vanishes(0.5), decreasing_power_vanishes(1.5)
        (True, False)
    """
    return 0 < power <= 1


def _bounds(constants: Constants, setting: Setting, steps: Array) -> Array:
    start, linear, square = terms(constants, setting)
    total = np.cumsum(steps)
    return (start + linear * np.cumsum(steps**2) + square * np.cumsum(steps**3)) / total


def _sequence(lrs: ArrayLike) -> Array:
    return np.atleast_1d(positive(lrs, "lr"))


def _falls(steps: Array) -> bool:
    return bool(np.all(steps[1:] <= steps[:-1] * (1 + ROUNDING)))
