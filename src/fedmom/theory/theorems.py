"""Convergence theorems as values, and Theorems 1' and 2', which hold when clients differ.

Their assumptions are the paper's: every ∇f_k is L-Lipschitz; given the past, a client's
stochastic gradient has mean ∇f_k and variance at most σ²; f ≥ f_inf; M of K clients are drawn
uniformly without replacement and weighted p_k = n_k/n. And two that the proofs need: the noise of
different clients is independent of one another and of the draw; and clients differ boundedly,

    Σ p_k |∇f_k(w)|² ≤ G² + B² |∇f(w)|²   for all w.

**Theorem 2'** (FedMom). Let all local steps of round t have the learning rate γ_t, with
γ_0 ≥ γ_1 ≥ ..., and Γ_T = Σ_{t<T} γ_t. Let p = max p_k, c = p(K-M)/(K-1) and
κ = 1 + β²/(1+β) < 3/2. If for every t and u_t = ηγ_tLH/(1-β)

    γ_tLH ≤ min{1/4, 1/(2B)},   u_t · M/K ≤ min{1, (1-β)/β²}/4   and   u_t · κc ≤ 1/(5B²),

then

    Σ_{t<T} (γ_t/Γ_T) E|∇f(w_t)|² ≤ 4K(1-β)(f(w_0) - f_inf)/(MηHΓ_T)
                    + √e L²(H-1)(σ² + ⅔HG²) Σγ_t³/Γ_T
                    + 2√e κ (Lη/(1-β)) (p σ² + c HG²) Σγ_t²/Γ_T.

**Theorem 1'** (FedAvg) is the same with β = 0 and κ = 1, and its γ_t may also rise. η may be any
number above 0; for η ≤ K/M the second condition of Theorem 1' follows from the first. The left
side is a mean over the rounds, so the minimum that the paper bounds is at most that. Momentum
acts as the server learning rate η/(1-β), except for the factor κ. Proofs are in docs/theory.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.validation import Between, Finite
from fedmom.theory.constants import Array, Constants, Number, Rounds, Setting, plain, positive

# e^{2γLH} at the largest γLH that is allowed, 1/4: how much local steps can amplify.
GROWTH = math.exp(0.5)
ROUNDING = 1e-9  # relative: limits and schedules are sums and products of floats


@dataclass(frozen=True)
class Theorem:
    """A bound on |∇f|² after T rounds, and the conditions for it.

    Every bound here has the form (a + b Σγ_t² + c Σγ_t³)/Γ_T with Γ_T = Σ_{t<T} γ_t, which is
    a/(γT) + bγ + cγ² for a constant γ.

    Args:
        name: As in docs/theory.md.
        source: The paper, or corrected.
        algorithm: ``fedavg``, where β is ignored, or ``fedmom``.
        schedules: The sequences γ_0, γ_1, ... that are covered. With ``falling``, a γ_t may rise
            only without momentum.
        terms: Returns a, b and c.
        limit: Returns the largest γ, given T where it depends on it.
        refuses: Returns why a setting is not covered, as a sentence; empty if it is.

    Examples:
        >>> constants = Constants(smoothness=1.0, variance=0.5, gap=2.0)
        >>> setting = Setting(clients=10, per_round=5, local_steps=4, momentum=0.9)
        >>> round(CORRECTED_FEDMOM.max_lr(constants, setting), 4)
        0.0015
        >>> round(CORRECTED_FEDMOM.bound(constants, setting, lr=0.001, rounds=1000), 4)
        0.4235
        >>> CORRECTED_FEDMOM.schedule_bounds(constants, setting, [0.001, 0.0008]).round(1).tolist()
        [400.0, 222.2]
        >>> CORRECTED_FEDMOM.objection(constants, setting, lr=0.01)
        "lr 0.01 is above 0.00154, the largest that Theorem 2' allows."
        >>> CORRECTED_FEDAVG.floor(constants, setting, lr=[0.01, 0.001]).round(4).tolist()
        [0.0167, 0.0017]
        >>> CORRECTED_FEDAVG.best_lr(constants, setting, rounds=[100, 10_000]).round(4).tolist()
        [0.0625, 0.0152]
    """

    name: str
    source: str
    algorithm: Literal["fedavg", "fedmom"]
    schedules: Literal["any", "falling", "constant"]
    terms: Callable[[Constants, Setting], tuple[float, float, float]]
    limit: Callable[[Constants, Setting, ArrayLike | None], Number]
    refuses: Callable[[Setting], str]

    @checked
    def bound(
        self, constants: Constants, setting: Setting, lr: ArrayLike, rounds: ArrayLike
    ) -> Number:
        """Return the bound for a constant γ; it holds where the theorem ``applies``.

        Args:
            constants: Those of the problem.
            setting: How it is trained.
            lr: γ, a number or an array.
            rounds: T, a number or an array that broadcasts with γ.
        """
        start, linear, square = self.terms(constants, self._covered(setting))
        lr, rounds = positive(lr, "lr"), positive(rounds, "rounds")
        return plain(start / (lr * rounds) + linear * lr + square * lr**2)

    @checked
    def schedule_bounds(self, constants: Constants, setting: Setting, lrs: ArrayLike) -> Array:
        """Return the bounds after T = 1, 2, ... rounds of a schedule; refuse one not covered.

        Args:
            constants: Those of the problem.
            setting: How it is trained.
            lrs: γ_0, γ_1, ...
        """
        own, steps = self._covered(setting), np.atleast_1d(positive(lrs, "lr"))
        if text := self._misfit(own, steps):
            raise FedMomError(text)
        start, linear, square = self.terms(constants, own)
        total = np.cumsum(steps)
        return (start + linear * np.cumsum(steps**2) + square * np.cumsum(steps**3)) / total

    @checked
    def floor(self, constants: Constants, setting: Setting, lr: ArrayLike) -> Number:
        """Return the bound for T → ∞: its terms in γ and γ².

        Args:
            constants: Those of the problem.
            setting: How it is trained.
            lr: γ, a number or an array.
        """
        _, linear, square = self.terms(constants, self._covered(setting))
        lr = positive(lr, "lr")
        return plain(linear * lr + square * lr**2)

    @checked
    def max_lr(
        self, constants: Constants, setting: Setting, rounds: ArrayLike | None = None
    ) -> Number:
        """Return the largest γ that the theorem allows.

        Args:
            constants: Those of the problem.
            setting: How it is trained.
            rounds: T, which Corollary 2 and Theorem 2 ask for.
        """
        return self.limit(constants, self._covered(setting), rounds)

    @checked
    def best_lr(self, constants: Constants, setting: Setting, rounds: ArrayLike) -> Number:
        """Return the allowed γ at which the bound after T rounds is least.

        a/(γT) + bγ + cγ² is convex in γ, and least where 2cγ³ + bγ² = a/T. So γ falls as
        T^(-1/2), or as T^(-1/3) where b = 0 (all clients take part, and no noise), and the bound
        as T^(-1/2) and T^(-2/3). For b = c = 0 the largest γ is the best. A start at the minimum
        gives 0, as any step is too long.

        Args:
            constants: Those of the problem.
            setting: How it is trained.
            rounds: T, a number or an array.
        """
        start, linear, square = self.terms(constants, self._covered(setting))
        level = start / positive(rounds, "rounds")
        largest = self.max_lr(constants, setting, rounds)
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

    @checked
    def best(self, constants: Constants, setting: Setting, rounds: Rounds) -> tuple[float, float]:
        """Return ``best_lr`` and the bound there, which is 0 for a start at the minimum.

        Args:
            constants: Those of the problem.
            setting: How it is trained.
            rounds: T.
        """
        lr = float(self.best_lr(constants, setting, rounds))
        return lr, float(self.bound(constants, setting, lr, rounds)) if lr > 0 else 0.0

    @checked
    def applies(
        self, constants: Constants, setting: Setting, lr: ArrayLike, rounds: ArrayLike | None = None
    ) -> bool:
        """Return whether all conditions are met.

        Args:
            constants: Those of the problem.
            setting: How it is trained.
            lr: γ, or a schedule γ_0, γ_1, ...
            rounds: T, where ``max_lr`` asks for it.
        """
        return not self.objection(constants, setting, lr, rounds)

    @checked
    def objection(
        self, constants: Constants, setting: Setting, lr: ArrayLike, rounds: ArrayLike | None = None
    ) -> str:
        """Return why the theorem does not apply, as a sentence; empty if it does.

        Args:
            constants: Those of the problem.
            setting: How it is trained.
            lr: γ, or a schedule γ_0, γ_1, ...
            rounds: T, where ``max_lr`` asks for it.
        """
        steps = np.atleast_1d(positive(lr, "lr"))
        if text := self.refuses(setting) or self._misfit(self._covered(setting), steps):
            return text
        largest = self.max_lr(constants, setting, rounds)
        if np.all(steps <= np.asarray(largest) * (1 + ROUNDING)):
            return ""
        return (
            f"lr {steps.max():g} is above {np.min(largest):.3g}, the largest that {self.name}"
            " allows."
        )

    def _covered(self, setting: Setting) -> Setting:
        """Return the setting as the theorem uses it, or refuse it."""
        if text := self.refuses(setting):
            raise FedMomError(text)
        return replace(setting, momentum=0.0) if self.algorithm == "fedavg" else setting

    def _misfit(self, setting: Setting, lrs: Array) -> str:
        """Return why a schedule is not covered; empty if it is."""
        before, after = lrs[:-1], lrs[1:]
        if self.schedules == "constant" and not np.allclose(before, after, rtol=ROUNDING, atol=0):
            return f"{self.name} is about a constant lr only."
        rises = after > before * (1 + ROUNDING)
        if self.schedules != "falling" or not setting.momentum or not rises.any():
            return ""
        round_ = int(np.argmax(rises))
        return (
            f"lr rises from {lrs[round_]:g} in round {round_} to {lrs[round_ + 1]:g} in the next,"
            f" which {self.name} does not allow with momentum. Leave out the warm-up, or ask for"
            " the bound from the round where it ends."
        )


def _corrected_terms(constants: Constants, setting: Setting) -> tuple[float, float, float]:
    steps, rest = setting.local_steps, 1 - setting.momentum
    start = 4 * rest * constants.gap / (setting.share * setting.server_lr * steps)
    spread = setting.largest_weight * constants.variance
    spread += setting.sampling_weight * steps * constants.dissimilarity
    reach = constants.smoothness * setting.server_lr / rest
    linear = 2 * GROWTH * _momentum_factor(setting.momentum) * reach * spread
    drift = constants.variance + 2 / 3 * steps * constants.dissimilarity
    return start, linear, GROWTH * constants.smoothness**2 * (steps - 1) * drift


def _corrected_limit(constants: Constants, setting: Setting, _: ArrayLike | None) -> float:
    beta = setting.momentum
    local = min(1 / 4, 1 / (2 * math.sqrt(constants.similarity)))
    steady = min(1, (1 - beta) / beta**2) if beta**2 else 1.0  # a tiny β squares to 0
    server = steady / (4 * setting.share)
    if setting.sampling_weight:
        drawn = _momentum_factor(beta) * setting.sampling_weight
        server = min(server, 1 / (5 * constants.similarity * drawn))
    reach = min(local, server * (1 - beta) / setting.server_lr)
    return reach / (constants.smoothness * setting.local_steps)


def _momentum_factor(beta: float) -> float:
    """κ, what momentum adds beyond the longer step."""
    return 1 + beta**2 / (1 + beta)


CORRECTED_FEDAVG = Theorem(
    "Theorem 1'", "corrected", "fedavg", "any", _corrected_terms, _corrected_limit, lambda _: ""
)
CORRECTED_FEDMOM = replace(
    CORRECTED_FEDAVG, name="Theorem 2'", algorithm="fedmom", schedules="falling"
)


@checked
def power_schedule(first: float, power: Annotated[float, Between(0, 100)], rounds: Rounds) -> Array:
    """Return γ_t = first/(t+1)^power for T rounds, as in Corollary 1.

    Args:
        first: γ_0.
        power: How fast γ_t falls.
        rounds: T.

    Returns:
        γ_0, ..., γ_{T-1}.

    Examples:
        >>> power_schedule(0.2, power=1, rounds=4).round(3).tolist()
        [0.2, 0.1, 0.067, 0.05]
    """
    return np.asarray(positive(first, "first") / np.arange(1, rounds + 1) ** power)


@checked
def power_vanishes(power: Finite) -> bool:
    """Return whether the bound of Theorem 2' goes to 0 for γ_t ∝ 1/(t+1)^power as T grows.

    It does if γ_t goes to 0 and Γ_T grows without end: Σγ_t²/Γ_T and Σγ_t³/Γ_T are means of γ_t
    and γ_t². It falls as T^-power below 1/2, as ln T/√T at 1/2, as T^(power-1) above, and as
    1/ln T at 1. Corollary 1 asks for Σγ_t² < ∞ in addition (``corollary1_applies``), which is
    more than is needed.

    Args:
        power: How fast γ_t falls.

    Returns:
        Whether it does.

    Examples:
        >>> power_vanishes(0.5), power_vanishes(1.5)
        (True, False)
    """
    return 0 < power <= 1
