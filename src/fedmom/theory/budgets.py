"""How much of a task is looked at: for estimates of constants, and for spectra."""

from collections.abc import Callable
from dataclasses import dataclass

from fedmom.core.errors import FedMomError

Tick = Callable[[], None]  # called after every piece of work, to move a bar


@dataclass(frozen=True)
class Budget:
    """How much is looked at: clients, samples of each, models (for L and σ²), pairs of batches.

    Examples:
        >>> Budget(clients=20, models=3).steps(population=1000)
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
        """Return how often ``estimate`` ticks, for a population of so many clients."""
        return self.models * (2 * min(self.clients, population) + 1)


@dataclass(frozen=True)
class Look:
    """How much of the task is looked at.

    Args:
        clients: Clients, drawn uniformly.
        samples: Samples of each for gradients, at most.
        hessian_samples: Samples of each for products with the Hessian, which cost far more.
        gradient_steps: Products with the Hessian for the gradient's spectrum.
        steps: Products for each of the other vectors.
        vectors: Clients' differences, and as many noises of batches.

    Examples:
        >>> Look(clients=20).products
        64
    """

    clients: int = 20
    samples: int = 256
    hessian_samples: int = 32
    gradient_steps: int = 16
    steps: int = 8
    vectors: int = 3

    def __post_init__(self) -> None:
        """Refuse what gives no spectrum."""
        _check(self, {"clients": 2, "samples": 1, "hessian_samples": 1, "vectors": 1}, "look at")

    @property
    def products(self) -> int:
        """Products with a Hessian in all, each a tick."""
        return self.gradient_steps + 2 * self.vectors * self.steps


def _check(found: Budget | Look, least: dict[str, int], purpose: str) -> None:
    for name, lowest in least.items():
        value = getattr(found, name)
        if value < lowest:
            raise FedMomError(f"{name} {value} is too few to {purpose}. Take {lowest} or more.")
