"""What the theorems are about: the constants of a problem, and how it is trained."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom.core.errors import FedMomError

Array = NDArray[np.float64]
Number = float | Array  # γ, T and bounds: one of them, or arrays that broadcast


@dataclass(frozen=True)
class Constants:
    """What the assumptions bound, for one problem and one start.

    Equal clients have G² = 0 and B² = 1. The paper's theorems do not use these two.

    Args:
        smoothness: L, the Lipschitz constant of every ∇f_k and so of ∇f.
        variance: σ², the bound on E|∇f_k(w, ξ) - ∇f_k(w)|² of a client's stochastic gradient.
        gap: f(w_0) - f_inf.
        dissimilarity: G² of Σ p_k |∇f_k(w)|² ≤ G² + B² |∇f(w)|².
        similarity: B² of the same.

    Examples:
        >>> Constants(smoothness=1.0, variance=0.5, gap=2.0).similarity
        1.0
    """

    smoothness: float
    variance: float
    gap: float
    dissimilarity: float = 0.0
    similarity: float = 1.0

    def __post_init__(self) -> None:
        """Refuse constants that no problem has."""
        if not 0 < self.smoothness < math.inf:
            raise FedMomError(f"L {self.smoothness} is not a number greater than 0.")
        amounts = {"σ²": self.variance, "f(w_0) - f_inf": self.gap, "G²": self.dissimilarity}
        for name, value in amounts.items():
            if not 0 <= value < math.inf:
                raise FedMomError(f"{name} {value} is not a number of 0 or more.")
        if not 1 <= self.similarity < math.inf:
            raise FedMomError(
                f"B² {self.similarity} is not a number of 1 or more;"
                " clients that all agree have B² = 1."
            )


@dataclass(frozen=True)
class Setting:
    """How the problem is trained, except for the learning rate γ and the rounds T.

    Args:
        clients: K.
        per_round: M, drawn uniformly without replacement.
        local_steps: H.
        server_lr: η, any number above 0; the paper's theorems ask for [1, K/M].
        momentum: β, 0 for FedAvg.
        largest_weight: max p_k with p_k = n_k / n. The default, 1, is true of any population
            and makes the corrected bounds loose: equal clients have 1/K.

    Examples:
        >>> Setting(clients=10, per_round=5, local_steps=4).server_lr_range
        (1.0, 2.0)
    """

    clients: int
    per_round: int
    local_steps: int
    server_lr: float = 1.0
    momentum: float = 0.0
    largest_weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if self.clients < 1:
            raise FedMomError(f"K = {self.clients} clients: must be at least 1.")
        if not 1 <= self.per_round <= self.clients:
            raise FedMomError(
                f"M = {self.per_round} clients per round is not between 1 and the"
                f" K = {self.clients} clients."
            )
        if self.local_steps < 1:
            raise FedMomError(f"H = {self.local_steps} local steps: must be at least 1.")
        if not 0 < self.server_lr < math.inf:
            raise FedMomError(f"server-lr {self.server_lr} is not a number greater than 0.")
        if not 0 <= self.momentum < 1:
            raise FedMomError(f"momentum {self.momentum} is not in [0, 1). The paper uses 0.9.")
        # A hair of room below 1/K: weights are sums of floats.
        if not (1 - 1e-9) / self.clients <= self.largest_weight <= 1:
            raise FedMomError(
                f"The largest weight {self.largest_weight} is not between 1/K"
                f" = {1 / self.clients:g} and 1."
            )

    @property
    def share(self) -> float:
        """M/K, the chance of a client to be in a round."""
        return self.per_round / self.clients

    @property
    def sampling_weight(self) -> float:
        """c = max p_k (K - M) / (K - 1): what drawing M of K adds; 0 if all clients take part."""
        if self.per_round == self.clients:
            return 0.0
        return self.largest_weight * (self.clients - self.per_round) / (self.clients - 1)

    @property
    def server_lr_range(self) -> tuple[float, float]:
        """[1, K/M], the paper's range of η."""
        return 1.0, self.clients / self.per_round

    @property
    def server_lr_in_range(self) -> bool:
        """Whether η is in [1, K/M], up to rounding."""
        low, high = self.server_lr_range
        return low * (1 - 1e-9) <= self.server_lr <= high * (1 + 1e-9)


def positive(values: ArrayLike, name: str) -> Array:
    """Return the values as floats, or refuse those that are not above 0."""
    array = np.asarray(values, float)
    if not (array.size and np.all(array > 0) and np.all(np.isfinite(array))):
        raise FedMomError(f"{name} {array} is not a number greater than 0.")
    return array


def plain(values: Array) -> Number:
    """Return a float for a single number, and arrays as they are."""
    return float(values) if np.ndim(values) == 0 else values
