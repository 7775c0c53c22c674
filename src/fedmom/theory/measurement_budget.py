"""How much of a task is measured: for estimates of constants, and for Hessian spectra."""

from collections.abc import Callable
from dataclasses import dataclass

from fedmom.core.errors import FedMomError

Tick = Callable[[], None]  # called after every piece of work, to move a bar


@dataclass(frozen=True)
class EstimateBudget:
    """Clients, samples of each, models (for L and σ²) and pairs of batches to measure.

    Examples:
        >>> EstimateBudget(clients=20, models=3).steps(population=1000)
        123
    """

    clients: int = 20
    samples: int = 64
    models: int = 3
    pairs: int = 4

    def __post_init__(self) -> None:
        """Refuse a budget that gives no spread."""
        _check(self, {"clients": 2, "samples": 1, "models": 2, "pairs": 1}, "estimate from")

    def steps(self, population: int) -> int:
        """Return how often ``estimate`` ticks, for ``population`` clients."""
        return self.models * (2 * min(self.clients, population) + 1)


@dataclass(frozen=True)
class SpectrumBudget:
    """How much of a task is measured for its spectra.

    Args:
        clients: Clients, drawn uniformly.
        samples: Samples of each for gradients, at most.
        hessian_samples: Samples of each for products with the Hessian, which cost far more.
        gradient_steps: Products with the Hessian for the gradient's spectrum.
        steps: Products for each of the other vectors.
        vectors: Clients' differences, and as many noises of batches.

    Examples:
        >>> SpectrumBudget(clients=20).products
        64
    """

    clients: int = 20
    samples: int = 256
    hessian_samples: int = 32
    gradient_steps: int = 16
    steps: int = 8
    vectors: int = 3

    def __post_init__(self) -> None:
        """Refuse a budget that gives no spectrum."""
        _check(self, {"clients": 2, "samples": 1, "hessian_samples": 1, "vectors": 1}, "look at")

    @property
    def products(self) -> int:
        """Products with a Hessian in all, each a tick."""
        return self.gradient_steps + 2 * self.vectors * self.steps


def _check(found: EstimateBudget | SpectrumBudget, least: dict[str, int], purpose: str) -> None:
    for name, lowest in least.items():
        value = getattr(found, name)
        if value < lowest:
            raise FedMomError(f"{name} {value} is too few to {purpose}. Use at least {lowest}.")
