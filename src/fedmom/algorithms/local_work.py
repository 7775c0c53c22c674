"""Local work: the steps that a client takes in a round, and with which optimizer."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import numpy as np
import optax

from fedmom.algorithms import schedules, torch_solvers
from fedmom.core.arguments import checked, checked_class
from fedmom.core.errors import FedMomError
from fedmom.core.identity import LATER
from fedmom.core.tracing import one_number, traced
from fedmom.core.types import Schedule
from fedmom.core.validation import MOST, MOST_FLOAT, Count

Scheduled = float | Schedule
Solver = Callable[[Any], optax.GradientTransformation]
Limit = Callable[[int, int, int, int], int]  # (round, client, n_k, H) -> the steps it takes


@checked_class
@dataclass(frozen=True)
class LocalWork:
    """What a client does in a round: H steps of an optimizer on batches of its own data.

    Args:
        lr: The learning rate γ, a number or a schedule over rounds.
        steps: H, a number or a schedule; or
        epochs: Passes over the client's data, a number or a schedule. One of the two.
        batch_size: Samples in a batch; None takes the client's whole data.
        batches: "random" batches are drawn with replacement (the paper's), "shuffled" ones go
            through the data in a new order each epoch (LEAF's); by default random for steps,
            shuffled for epochs.
        solver: The client optimizer: a function of the learning rate, such as ``optax.adam``; an
            optax optimizer that has its own; or a class of ``torch.optim``, of which
            ``functools.partial`` holds options.
        prox: FedProx's μ.
        accumulate: Parts in which a batch's gradient is computed, one after another: a batch takes
            as much memory as one part. The sum is that of the whole batch, up to rounding; dropout
            is drawn for each part.
        limit: The steps that a client takes of its H, as a function of (round, client, n_k, H);
            None: all. Simulated worlds set it.

    Examples:
        >>> work = LocalWork(lr=0.1, epochs=2, batch_size=10)
        >>> work.count(round_=0, samples=25)  # two epochs of three batches
        6
        >>> work.shuffled
        True
    """

    lr: Scheduled = 0.1
    steps: Scheduled | None = None
    epochs: Scheduled | None = None
    batch_size: int | None = 10
    batches: Literal["random", "shuffled"] | None = None
    solver: Solver | optax.GradientTransformation = optax.sgd
    prox: float = 0.0
    accumulate: int = field(default=1, metadata=LATER)
    limit: Limit | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        """Refuse what makes no sense before a round is run; name an optimizer of PyTorch."""
        object.__setattr__(self, "solver", torch_solvers.ours(self.solver))
        if (self.steps is None) == (self.epochs is None):
            raise FedMomError(
                "Local work is given either in steps or in epochs; got"
                f" local-steps {self.steps} and local-epochs {self.epochs}."
            )
        for name, value in (("lr", self.lr), ("steps", self.steps), ("epochs", self.epochs)):
            if value is not None and not callable(value):
                check_positive(name, value)
        if not callable(self.steps) and self.steps and self.steps != int(self.steps):
            raise FedMomError(f"steps is {self.steps}. It must be a whole number, or a schedule.")
        if self.batch_size is not None and not (
            isinstance(self.batch_size, int | np.integer) and self.batch_size >= 1
        ):
            raise FedMomError(
                f"batch-size {self.batch_size!r} must be a whole number of at least 1 (or all)."
            )
        if self.batches not in (None, "random", "shuffled"):
            raise FedMomError(f"batches {self.batches!r} must be random or shuffled.")
        if not (_is_number(self.prox) and 0 <= self.prox <= MOST_FLOAT):
            raise FedMomError(f"prox {self.prox!r} must be a number of at least 0.")
        _check_parts(self.accumulate, self.batch_size)

    @property
    def shuffled(self) -> bool:
        """Whether batches are shuffled epochs rather than drawn with replacement."""
        if self.batch_size is None:
            return False
        return self.batches == "shuffled" or (self.batches is None and self.epochs is not None)

    @checked
    def count(self, round_: Count, samples: Count) -> int:
        """Return H, a client's local steps in a round, at least 1.

        Args:
            round_: Rounds done before it.
            samples: n_k.
        """
        if self.steps is not None:
            return _whole("local-steps", schedules.at(self.steps, round_), round_)
        assert self.epochs is not None
        per_epoch = 1 if self.batch_size is None else math.ceil(samples / self.batch_size)
        return _whole("local-epochs", schedules.at(self.epochs, round_) * per_epoch, round_)

    def taken(self, round_: int, client: int, samples: int) -> int:
        """Return the steps that a client takes in a round: H, or what ``limit`` says.

        Args:
            round_: Rounds done before it.
            client: Its number.
            samples: n_k.
        """
        steps = self.count(round_, samples)
        return steps if self.limit is None else self.limit(round_, client, samples, steps)


def _check_parts(accumulate: int, batch_size: int | None) -> None:
    """Refuse a batch in parts that are not equal."""
    if not (isinstance(accumulate, int | np.integer) and accumulate >= 1):
        raise FedMomError(f"accumulate {accumulate!r} must be a whole number of at least 1.")
    if accumulate > 1 and (batch_size is None or batch_size % accumulate):
        raise FedMomError(
            f"accumulate {accumulate} cannot divide batch-size {batch_size or 'all'} into equal"
            " parts."
        )


def _whole(what: str, steps: float, round_: int) -> int:
    if not steps <= MOST:
        raise FedMomError(
            f"{what} means {steps:.3g} local steps in round {round_ + 1}, more than the {MOST:,}"
            " that can be counted. Use fewer."
        )
    return max(1, round(steps))


@checked
def full_gradient(lr: Scheduled) -> LocalWork:
    """FedSGD's clients: one gradient of the whole data.

    Args:
        lr: The learning rate γ, a number or a schedule over rounds.

    Returns:
        The local work.

    Examples:
        >>> full_gradient(0.1).count(round_=0, samples=25)
        1
    """
    return LocalWork(lr=lr, steps=1, batch_size=None)


def capacity(work: LocalWork, samples: int) -> int:
    """Return the room for a client's shuffled order: a power of two, to compile rarely."""
    return 1 << (samples - 1).bit_length() if work.shuffled else 0


def check_rate(learning_rate: Scheduled) -> None:
    """Refuse a learning rate that is neither a number greater than 0 nor a schedule."""
    if not callable(learning_rate):
        check_positive("learning_rate", learning_rate)
        return
    name = getattr(learning_rate, "__name__", "schedule")
    try:
        found = traced(learning_rate, np.zeros((), np.int32))
    except jax.errors.JAXTypeError as error:
        raise FedMomError(
            f"learning_rate is the function {name}, which needs the round's number itself. The"
            " server's step is compiled once for all rounds: use jnp.where in place of if."
        ) from error
    one_number(f"learning_rate is the function {name}, which returns", found)


def check_positive(name: str, value: float) -> None:
    """Refuse a number that is not greater than 0, or is infinite as a float of 32 bits."""
    if not (_is_number(value) and 0 < value <= MOST_FLOAT):
        raise FedMomError(
            f"{name} {value!r} must be a number greater than 0, at most {MOST_FLOAT:.2g}."
        )


def check_share(name: str, value: float) -> None:
    """Refuse a number that is not in [0, 1), as of a momentum."""
    if not (_is_number(value) and 0 <= value < 1):
        raise FedMomError(f"{name} {value!r} must be a number in [0, 1).")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
