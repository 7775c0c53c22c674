"""Bounds for FedAvg and FedMom that hold when clients differ: Theorems 1' and 2'.

Assumptions. The paper's: every ∇f_k is L-Lipschitz; given the past, a client's stochastic
gradient has mean ∇f_k and variance at most σ²; f ≥ f_inf; M of K clients are drawn uniformly
without replacement and weighted p_k = n_k/n. And two that its proofs need: the noise of
different clients is independent of one another and of the draw; and clients differ boundedly,

    Σ p_k |∇f_k(w)|² ≤ G² + B² |∇f(w)|²   for all w.

η may be any number above 0. What is bounded is the mean over the rounds, and so also the
minimum that the paper speaks of. Proofs are in docs/theory.md. γ (``lr``) and T (``rounds``)
may be arrays; bounds then come in their broadcast shape.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from fedmom.theory.constants import Array, Constants, Number, Setting, plain, positive

# e^{2γLH} at the largest γLH that is allowed, 1/4: how much local steps can amplify.
GROWTH = math.exp(0.5)


def corrected_fedavg(
    constants: Constants, setting: Setting, lr: ArrayLike, rounds: ArrayLike
) -> Number:
    """Theorem 1' (FedAvg). Its condition is ``corrected_fedavg_max_lr``; β is not looked at.

        (1/T) Σ_{t<T} E|∇f(w_t)|² ≤ 4K(f(w_0) - f_inf)/(MηγHT)
                                    + √e L²γ²(H-1)(σ² + ⅔HG²)
                                    + 2√e Lηγ(p σ² + c HG²)

    with p = max p_k and c = p(K-M)/(K-1), if

        γLH ≤ min{1/4, 1/(2B)},   ηγLH · M/K ≤ 1/4   and   ηγLH · c ≤ 1/(5B²).

    The second of these follows from the first for η ≤ K/M.

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
        >>> round(corrected_fedavg(constants, setting, lr=0.01, rounds=1000), 4)
        0.4167
    """
    return corrected_fedmom(constants, replace(setting, momentum=0.0), lr, rounds)


def corrected_fedavg_max_lr(constants: Constants, setting: Setting) -> float:
    """Return the largest γ that Theorem 1' allows.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.

    Returns:
        The step size γ.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> corrected_fedavg_max_lr(constants, setting)
        0.0625
    """
    return corrected_fedmom_max_lr(constants, replace(setting, momentum=0.0))


def corrected_fedmom(
    constants: Constants, setting: Setting, lr: ArrayLike, rounds: ArrayLike
) -> Number:
    """Theorem 2' (FedMom). Its condition is ``corrected_fedmom_max_lr``; β = 0 is Theorem 1'.

        (1/T) Σ_{t<T} E|∇f(w_t)|² ≤ 4K(1-β)(f(w_0) - f_inf)/(MηγHT)
                                    + √e L²γ²(H-1)(σ² + ⅔HG²)
                                    + 2√e κ (Lηγ/(1-β)) (p σ² + c HG²)

    with p = max p_k, c = p(K-M)/(K-1) and κ = 1 + β²/(1+β) < 3/2, if for u = ηγLH/(1-β)

        γLH ≤ min{1/4, 1/(2B)},   u · M/K ≤ min{1, (1-β)/β²}/4   and   u · κc ≤ 1/(5B²).

    So momentum is FedAvg with the server step η/(1-β), but for the factor κ.

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
        >>> round(corrected_fedmom(constants, setting, lr=0.001, rounds=1000), 4)
        0.4235
    """
    lr, rounds = positive(lr, "lr"), positive(rounds, "rounds")
    start, linear, square = terms(constants, setting)
    return plain(start / (lr * rounds) + linear * lr + square * lr**2)


def corrected_fedmom_max_lr(constants: Constants, setting: Setting) -> float:
    """Return the largest γ that Theorem 2' allows.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.

    Returns:
        The step size γ.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4, momentum=0.9)
        >>> round(corrected_fedmom_max_lr(constants, setting), 4)
        0.0015
    """
    beta = setting.momentum
    local = min(1 / 4, 1 / (2 * math.sqrt(constants.similarity)))
    steady = min(1, (1 - beta) / beta**2) if beta**2 else 1.0  # a tiny β squares to 0
    server = steady / (4 * setting.share)
    if setting.sampling_weight:
        drawn = _momentum_factor(beta) * setting.sampling_weight
        server = min(server, 1 / (5 * constants.similarity * drawn))
    reach = min(local, server * (1 - beta) / setting.server_lr)
    return reach / (constants.smoothness * setting.local_steps)


def corrected_applies(constants: Constants, setting: Setting, lr: ArrayLike) -> bool:
    """Whether every γ meets the condition of Theorem 2' (of Theorem 1' if β = 0).

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        lr: γ, a number or an array.

    Returns:
        Whether it does.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> corrected_applies(constants, setting, 0.01), corrected_applies(constants, setting, 1.0)
        (True, False)
    """
    largest = corrected_fedmom_max_lr(constants, setting)
    return bool(np.all(positive(lr, "lr") <= largest * (1 + 1e-9)))


def corrected_floor(constants: Constants, setting: Setting, lr: ArrayLike) -> Number:
    """Return what is left of the bound as T grows: its terms in γ and γ².

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        lr: γ, a number or an array.

    Returns:
        The bound for T → ∞.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> corrected_floor(constants, setting, lr=[0.01, 0.001]).round(4).tolist()
        [0.0167, 0.0017]
    """
    lr = positive(lr, "lr")
    _, linear, square = terms(constants, setting)
    return plain(linear * lr + square * lr**2)


def corrected_best_lr(constants: Constants, setting: Setting, rounds: ArrayLike) -> Number:
    """Return the allowed γ at which the bound of Theorem 2' after T rounds is least.

    The bound is a/γ + bγ + cγ², convex in γ, and least where 2cγ³ + bγ² = a. γ falls as
    T^(-1/2), or as T^(-1/3) where b = 0 (all clients take part, and no noise); the bound falls
    as T^(-1/2) and T^(-2/3). Without noise and dissimilarity the largest γ is the best. It is
    0 for a start at the minimum: any step is too long.

    Args:
        constants: L, σ², f(w_0) - f_inf, and G² and B² where they count.
        setting: How it is trained: K, M, H, η and β.
        rounds: T, a number or an array.

    Returns:
        The step size γ.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4)
        >>> corrected_best_lr(constants, setting, rounds=[100, 10_000]).round(4).tolist()
        [0.0625, 0.0152]
    """
    start, linear, square = terms(constants, setting)
    level = start / positive(rounds, "rounds")
    largest = corrected_fedmom_max_lr(constants, setting)
    if not linear and not square:
        return plain(np.full_like(level, largest))
    # From above, where one term alone reaches the level, Newton's steps fall to the root.
    alone = [np.sqrt(level / linear)] if linear else []
    alone += [np.cbrt(level / (2 * square))] if square else []
    lr: Array = np.minimum.reduce(alone)
    for _ in range(50):
        slope = 6 * square * lr**2 + 2 * linear * lr
        excess = 2 * square * lr**3 + linear * lr**2 - level
        lr = lr - np.divide(excess, slope, out=np.zeros_like(lr), where=slope > 0)
    return plain(np.minimum(lr, largest))


def terms(constants: Constants, setting: Setting) -> tuple[float, float, float]:
    """Return a, b and c of the bound a/(γT) + bγ + cγ².

    For a sequence γ_t they are those of (a + b Σγ_t² + c Σγ_t³)/Σγ_t.
    """
    steps, rest = setting.local_steps, 1 - setting.momentum
    start = 4 * rest * constants.gap / (setting.share * setting.server_lr * steps)
    spread = setting.largest_weight * constants.variance
    spread += setting.sampling_weight * steps * constants.dissimilarity
    reach = constants.smoothness * setting.server_lr / rest
    linear = 2 * GROWTH * _momentum_factor(setting.momentum) * reach * spread
    drift = constants.variance + 2 / 3 * steps * constants.dissimilarity
    return start, linear, GROWTH * constants.smoothness**2 * (steps - 1) * drift


def _momentum_factor(beta: float) -> float:
    """κ, what momentum adds beyond the longer step."""
    return 1 + beta**2 / (1 + beta)
