"""What the theorems are about: the constants of a problem, and how it is trained."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom.core.arguments import checked_class, short
from fedmom.core.errors import FedMomError
from fedmom.core.validation import Between

Array = NDArray[np.float64]
Number = float | Array  # γ, T and bounds: one of them, or arrays that broadcast
Rounds = Annotated[int, Between(1, 1_000_000)]


@checked_class
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
            raise FedMomError(f"smoothness (L) is {self.smoothness}. It must be greater than 0.")
        amounts = {
            "variance (σ²)": self.variance,
            "gap (f(w_0) - f_inf)": self.gap,
            "dissimilarity (G²)": self.dissimilarity,
        }
        for name, value in amounts.items():
            if not 0 <= value < math.inf:
                raise FedMomError(f"{name} is {value}. It must be at least 0.")
        if not 1 <= self.similarity < math.inf:
            raise FedMomError(
                f"similarity (B²) is {self.similarity}. It must be at least 1; clients that all"
                " agree have 1."
            )


@checked_class
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
            raise FedMomError(f"clients (K) is {self.clients}. It must be at least 1.")
        if not 1 <= self.per_round <= self.clients:
            raise FedMomError(
                f"per_round (M) is {self.per_round}. It must be from 1 to the number of clients,"
                f" {self.clients}."
            )
        if self.local_steps < 1:
            raise FedMomError(f"local_steps (H) is {self.local_steps}. It must be at least 1.")
        if not 0 < self.server_lr < math.inf:
            raise FedMomError(f"server_lr (η) is {self.server_lr}. It must be greater than 0.")
        if not 0 <= self.momentum < 1:
            raise FedMomError(
                f"momentum (β) is {self.momentum}. It must be at least 0 and below 1; the paper"
                " uses 0.9."
            )
        # A hair of room below 1/K: weights are sums of floats.
        if not (1 - 1e-9) / self.clients <= self.largest_weight <= 1:
            raise FedMomError(
                f"largest_weight is {self.largest_weight}. It must be from 1/K ="
                f" {1 / self.clients:g} to 1."
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


def numbers(values: ArrayLike, name: str) -> Array:
    """Return a number, list or array as floats, or refuse what is not made of finite numbers."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):  # rows of different lengths
        array = np.array("")
    masked = isinstance(values, np.ma.MaskedArray)
    if masked or array.dtype.kind not in "iuf" or not array.size or not np.isfinite(array).all():
        raise FedMomError(f"{name} is {short(values)}. It must be one or several finite numbers.")
    return array.astype(float)


def positive(values: ArrayLike, name: str) -> Array:
    """Return the values as floats, or refuse those that are not above 0."""
    array = numbers(values, name)
    if not np.all(array > 0):
        raise FedMomError(f"{name} is {array.min():g}. It must be greater than 0.")
    return array


def plain(values: Array) -> Number:
    """Return a float for a single number, and arrays as they are."""
    return float(values) if np.ndim(values) == 0 else values
