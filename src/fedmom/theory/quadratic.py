"""Clients whose losses are diagonal quadratics, and how they are trained.

Per coordinate client k has f_k(w) = h_k (w - c_k)²/2 and gradients with noise. For such clients a
whole run is linear in the model, and ``expected_loss`` computes its expectation exactly.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom.core.arguments import checked, checked_class, short
from fedmom.core.errors import FedMomError
from fedmom.core.types import WEIGHTINGS
from fedmom.core.validation import MOST, Between, Seed
from fedmom.theory.constants import Array, Rounds, numbers

DECAYS = ("constant", "cosine")


@dataclass(frozen=True, eq=False)
class QuadraticClients:
    """K clients in d coordinates. Arrays of shape (d,) hold for every client.

    Args:
        sizes: n_k, shape (K,); p_k = n_k/n.
        curvature: h_k > 0, shape (K, d) or (d,).
        optima: c_k, shape (K, d).
        noise: Variance of a batch's gradient, shape (K, d) or (d,).
        start: w_0, shape (d,).

    Examples:
        >>> clients = QuadraticClients(
        ...     sizes=[1, 3], curvature=[2.0], optima=[[0.0], [4.0]], noise=[0.0], start=[5.0]
        ... )
        >>> clients.minimizer.tolist(), clients.excess(clients.start)
        ([3.0], 4.0)
    """

    sizes: Array  # all of them may be given as lists
    curvature: Array
    optima: Array
    noise: Array
    start: Array

    def __post_init__(self) -> None:
        """Bring all arrays to (K, d), and refuse arrays that do not fit."""
        sizes = np.atleast_1d(numbers(self.sizes, "sizes"))
        start = np.atleast_1d(numbers(self.start, "start"))
        for name, array in (("sizes", sizes), ("start", start)):
            if array.ndim > 1:
                raise FedMomError(f"{name} has shape {array.shape}. It must have one dimension.")
        shape = (len(sizes), len(start))
        put = object.__setattr__
        put(self, "sizes", sizes)
        put(self, "start", start)
        for name in ("curvature", "optima", "noise"):
            given = numbers(getattr(self, name), name)
            try:
                put(self, name, np.broadcast_to(given, shape))
            except ValueError:
                raise FedMomError(
                    f"{name} has shape {given.shape}, which does not fit {shape[0]} clients in"
                    f" {shape[1]} coordinates. Give {shape}, or ({shape[1]},) for all clients."
                ) from None
        if not (sizes > 0).all():
            raise FedMomError(
                f"sizes contains {sizes.min():g}. Every client must have more than 0 samples."
            )
        if not (self.curvature > 0).all():
            lowest = self.curvature.min()
            raise FedMomError(f"curvature contains {lowest:g}. Every value must be greater than 0.")
        if not (self.noise >= 0).all():
            raise FedMomError(
                f"noise contains {self.noise.min():g}. Every variance must be at least 0."
            )

    @property
    def weights(self) -> Array:
        """p_k = n_k/n."""
        return self.sizes / self.sizes.sum()

    @property
    def mean_curvature(self) -> Array:
        """The curvature of f = Σ p_k f_k, shape (d,)."""
        return np.asarray(self.weights @ self.curvature)

    @property
    def minimizer(self) -> Array:
        """w*, the minimum of f."""
        pulls = self.weights @ (self.curvature * self.optima)
        return np.asarray(pulls / self.mean_curvature)

    def excess(self, w: ArrayLike) -> float:
        """Return f(w) - f(w*).

        Args:
            w: The model, one number per coordinate.
        """
        away = np.asarray(w, float) - self.minimizer
        return float(self.mean_curvature @ away**2 / 2)


@checked_class
@dataclass(frozen=True, eq=False)
class Plan:
    """How the clients are trained, except for γ, β and the rounds.

    Args:
        per_round: M, the clients of a round.
        steps: H, one number or one for each client.
        weighting: ``population``, ``cohort`` or ``uniform``.
        sampler: ``uniform`` or ``weighted``.
        server_lr: η; None is K/M for population weights and else 1, as in a run.
        decay: ``constant``, or ``cosine``: γ falls to 0 along half a cosine over the rounds.
        average: The decay of an average of the models, which is then what counts; None: the last.
        epochs: None for batches drawn with replacement. A number: that many shuffled epochs, of
            H/epochs equal batches each, whose noise cancels over an epoch. The clients' noise is
            then S²/B, with S² the variance of a sample's gradient (divisor n - 1).

    Examples:
        >>> Plan(per_round=2, steps=10).eta(clients=100)
        50.0
    """

    per_round: Annotated[int, Between(1, MOST)]
    steps: int | NDArray[np.int64] = 1
    weighting: str = "population"
    sampler: str = "uniform"
    server_lr: float | None = None
    decay: str = "constant"
    average: float | None = None
    epochs: Annotated[int, Between(1, MOST)] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if not np.size(self.steps) or np.min(self.steps) < 1:
            raise FedMomError("steps (H) must be at least 1, for every client.")
        for name, choices in (
            ("weighting", WEIGHTINGS),
            ("sampler", ("uniform", "weighted")),
            ("decay", DECAYS),
        ):
            if (given := getattr(self, name)) not in choices:
                raise FedMomError(
                    f"{name} is {short(given)}. It must be one of {', '.join(choices)}."
                )
        if self.server_lr is not None and not 0 < self.server_lr < math.inf:
            raise FedMomError(f"server_lr (η) is {self.server_lr}. It must be greater than 0.")
        if self.average is not None and not 0 < self.average < 1:
            raise FedMomError(f"average is {self.average}. It must be between 0 and 1.")
        if self.epochs is not None and np.any(np.asarray(self.steps) % self.epochs):
            raise FedMomError(
                f"{self.epochs} epochs do not divide the local steps {self.steps}."
                " Give steps = epochs x batches of an epoch."
            )

    @checked
    def eta(self, clients: int) -> float:
        """Return η.

        Args:
            clients: K.
        """
        if self.server_lr is not None:
            return self.server_lr
        return clients / self.per_round if self.weighting == "population" else 1.0

    @checked
    def rates(self, rounds: Rounds) -> Array:
        """Return γ_t / γ_0 of every round.

        Args:
            rounds: T.
        """
        if self.decay == "constant":
            return np.ones(rounds)
        return (1 + np.cos(np.pi * np.arange(rounds) / rounds)) / 2


def curvature_kinds(sizes: ArrayLike, spread: float, seed: int = 0) -> Array:
    """Return a factor of its curvature for every client, one of three kinds.

    Few kinds keep the recursion quick: clients that differ only in their optima share a table.

    Args:
        sizes: n_k of every client.
        spread: Standard deviation of the factors, about: that of a lognormal with their variance.
        seed: Of who is of which kind.

    Returns:
        Factors whose mean, weighted by samples, is 1.

    Examples:
        >>> factors = curvature_kinds(np.ones(300), spread=0.3)
        >>> len(np.unique(factors)), round(float(factors.std()), 1), round(float(factors.mean()), 2)
        (3, 0.3, 1.0)
    """
    counts = np.asarray(sizes, float)
    deviates = math.sqrt(1.5) * np.array([-1.0, 0.0, 1.0])  # of variance 1
    levels = np.exp(math.sqrt(math.log1p(spread**2)) * deviates)
    factors = np.random.default_rng(seed).permutation(levels[np.arange(len(counts)) % 3])
    return np.asarray(factors * counts.sum() / (counts @ factors))


@checked
def random_clients(
    *,
    clients: Annotated[int, Between(1, 1_000_000)] = 200,
    dimension: Annotated[int, Between(1, 1000)] = 30,
    condition: Annotated[float, Between(1, 1e15)] = 100.0,
    spread: Annotated[float, Between(0, 1e6)] = 0.3,
    noise: Annotated[float, Between(0, 1e6)] = 0.3,
    start: Annotated[float, Between(-1e6, 1e6)] = 3.0,
    seed: Seed = 0,
) -> QuadraticClients:
    """Draw a population for the general map.

    Curvatures of f run from 1 down to 1/condition in equal ratios; clients' own differ by 30 %.
    Sizes are lognormal.

    Args:
        clients: K.
        dimension: d.
        condition: The largest curvature over the smallest.
        spread: Standard deviation of the clients' optima, in every coordinate.
        noise: Standard deviation of a batch's gradient, in every coordinate.
        start: Distance of the start from the minimum, in every coordinate.
        seed: Of the draw.

    Returns:
        The clients, with their minimum at 0.

    Examples:
        >>> population = random_clients(clients=5, dimension=2, condition=10)
        >>> bool(np.allclose(population.minimizer, 0)), population.mean_curvature.round(1).tolist()
        (True, [1.0, 0.1])
    """
    rng = np.random.default_rng(seed)
    sizes = np.ceil(100 * rng.lognormal(0, 0.5, clients))
    kinds = curvature_kinds(sizes, 0.3, seed)
    optima = rng.normal(size=(clients, dimension))
    optima = spread * (optima - (sizes * kinds / (sizes @ kinds)) @ optima)
    return QuadraticClients(
        sizes=sizes,
        curvature=np.outer(kinds, np.geomspace(1, 1 / condition, dimension)),
        optima=optima,
        noise=np.full(dimension, noise**2),
        start=np.full(dimension, start),
    )
