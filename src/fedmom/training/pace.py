"""Paces: whom to ask now, when a round has enough replies, what a stale reply counts."""

import itertools
import math
from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.validation import MOST
from fedmom.training.samplers import (
    Cohort,
    Sampler,
    checked_cohort,
    in_random_order,
    poisson,
    uniform,
    weighted,
)

AGAIN = 2**32  # a round's number, this many later: one that no run reaches
TRIES = 100


Samples = NDArray[np.int64]  # n_k of every client


@runtime_checkable
class Pace(Protocol):
    """When the server asks and when it steps.

    ``timeout`` is how long it waits for the next reply, in seconds; None waits forever.
    ``rows`` is how many replies a round usually has. ``keeps_late`` says whether replies that
    are not in when a round ends may count in a later one. ``takes_sums`` says whether replies may
    be added up on their way: not where a round ends before all are in.

    Examples:
        >>> from fedmom import buffered, synchronous
        >>> isinstance(synchronous(10), Pace), synchronous(10).takes_sums
        (True, True)
    """

    @property
    def timeout(self) -> float | None: ...  # noqa: D102
    @property
    def rows(self) -> int: ...  # noqa: D102
    @property
    def keeps_late(self) -> bool: ...  # noqa: D102
    @property
    def takes_sums(self) -> bool: ...  # noqa: D102

    def ask(self, seed: int, round_: int, samples: Samples, busy: Set[int]) -> Cohort:
        """Return the clients to ask in a round, while others are busy.

        Args:
            seed: The run's seed.
            round_: Rounds done.
            samples: n_k of every client.
            busy: The clients that were asked before and have not answered.
        """

    def enough(self, replies: int) -> bool:
        """Return whether a round has enough replies.

        Args:
            replies: How many there are.
        """

    def weight(self, staleness: int) -> float:
        """Return the weight of a stale reply; 0 leaves it out.

        Args:
            staleness: How many rounds old the model is that it trained.
        """


@dataclass(frozen=True)
class Synchronous:
    """Ask a cohort, take the first ``rows`` replies or all of them, forget the others."""

    sampler: Sampler
    size: int  # of the cohort
    rows: int
    timeout: float | None = None
    keeps_late = False

    @property
    def takes_sums(self) -> bool:
        """Whether a round waits for all replies, however long."""
        return self.rows == self.size and self.timeout is None

    def ask(self, seed: int, round_: int, samples: Samples, busy: Set[int]) -> Cohort:  # noqa: ARG002
        """Return the round's cohort."""
        return self.sampler(seed, round_, self.size, samples)

    def enough(self, replies: int) -> bool:
        """Return whether the round has its replies."""
        return self.rows < self.size and replies >= self.rows

    def weight(self, staleness: int) -> float:
        """Return 1 for this round's replies, 0 for older ones."""
        return float(staleness == 0)


@dataclass(frozen=True)
class Buffered:
    """Keep several cohorts at work and step whenever ``rows`` replies are in (FedBuff).

    Nguyen et al. 2022: a reply to a model that is s rounds old counts 1/sqrt(1 + s).
    """

    sampler: Sampler
    rows: int
    in_flight: int
    timeout: float | None = None
    keeps_late = True

    @property
    def takes_sums(self) -> bool:
        """Whether what an actor sends is from one round: no reply is dropped, however late."""
        return self.timeout is None

    def ask(self, seed: int, round_: int, samples: Samples, busy: Set[int]) -> Cohort:
        """Return as many free clients as are missing of those to be at work."""
        cohorts = self.in_flight // self.rows
        # The cohorts 0, 1, 2, ... in turn; then draws that no round has, for clients that were
        # busy or have failed. Nearly everybody may be busy, so it does not try forever.
        first = 0 if round_ == 0 else round_ + cohorts - 1
        again = (first + k * AGAIN for k in range(1, TRIES))
        asked: dict[int, None] = {}
        in_vain = 0
        for number in itertools.chain(range(first, round_ + cohorts), again):
            missing = self.in_flight - len(busy) - len(asked)
            if missing <= 0 or in_vain >= TRIES:
                break
            drawn = self.sampler(seed, number, min(missing, self.rows), samples)
            cohort = checked_cohort(drawn, round_, len(samples)).tolist()
            before = len(asked)
            asked |= dict.fromkeys(client for client in cohort if client not in busy)
            in_vain = 0 if len(asked) > before else in_vain + 1
        return np.array(list(asked), np.int64)

    def enough(self, replies: int) -> bool:
        """Return whether the buffer is full."""
        return replies >= self.rows

    def weight(self, staleness: int) -> float:
        """Return 1/sqrt(1 + s)."""
        return 1 / math.sqrt(1 + staleness)


@checked
def synchronous(size: int, sampler: Sampler = uniform, *, timeout: float | None = None) -> Pace:
    """Ask M clients and wait for all of them.

    Args:
        size: M, the clients of a round.
        sampler: Draws them: ``uniform``, ``poisson``, ``weighted``, or your own function of
            (seed, round, size, samples).
        timeout: Seconds without a reply after which the round ends with those that are in.

    Returns:
        A pace.

    Examples:
        >>> pace = synchronous(2)
        >>> len(pace.ask(0, 0, np.ones(10, np.int64), set()))
        2
    """
    return Synchronous(sampler, _size(size), size, _checked(timeout))


@checked
def over_selected(
    size: int, sampler: Sampler = uniform, *, extra: float = 0.3, timeout: float | None = None
) -> Pace:
    """Ask more than M clients, take the first M replies and drop the slow ones.

    Args:
        size: M, the replies of a round.
        sampler: As for ``synchronous``.
        extra: How many more are asked, as a share of M.
        timeout: Seconds without a reply after which the round ends with those that are in.

    Returns:
        A pace.

    Examples:
        >>> pace = over_selected(10, extra=0.5)
        >>> len(pace.ask(0, 0, np.ones(100, np.int64), set())), pace.enough(10)
        (15, True)
    """
    if not 0 <= extra <= MOST:
        raise FedMomError(f"over_selected: extra={extra} must be a number from 0 to {MOST:,}.")
    # Rounded first: 7 % of 100 is 7, but 0.07 * 100 is a little more in floating point.
    more = math.ceil(round(_size(size) * extra, 9))
    return Synchronous(in_random_order(sampler), size + more, size, _checked(timeout))


@checked
def buffered(
    size: int, sampler: Sampler = uniform, *, in_flight: int, timeout: float | None = None
) -> Pace:
    """Keep in_flight clients at work; step whenever M replies are in (FedBuff).

    Args:
        size: M, the replies of a round.
        sampler: As for ``synchronous``.
        in_flight: The clients at work at once, M or more.
        timeout: Seconds without a reply after which the round ends with those that are in.

    Returns:
        A pace.

    Examples:
        >>> pace = buffered(10, in_flight=40)
        >>> pace.enough(9), pace.enough(10), pace.weight(3)
        (False, True, 0.5)
    """
    if in_flight < _size(size):
        raise FedMomError(
            f"buffered: in_flight={in_flight} must be at least {size}, the clients of a round."
        )
    if getattr(sampler, "func", sampler) is weighted:  # with options it is a partial
        raise FedMomError(
            "buffered cannot draw clients by weighted: those at work cannot be drawn, and clients"
            " with many samples are at work most, so they would count less than their share. Use"
            " the sampler uniform, or another pace."
        )
    if getattr(sampler, "func", sampler) is poisson:
        raise FedMomError(
            "buffered cannot draw clients by poisson: it keeps in_flight clients at work, and a"
            " cohort by poisson has any size. Use the sampler uniform, or another pace."
        )
    return Buffered(sampler, size, in_flight, _checked(timeout))


def _size(size: int) -> int:
    if not isinstance(size, int | np.integer) or size < 1:
        raise FedMomError(f"clients-per-round {size!r} must be a whole number of at least 1.")
    return size


def _checked(timeout: float | None) -> float | None:
    if timeout is not None and not 0 < timeout <= MOST:
        raise FedMomError(
            f"timeout={timeout} must be a number of seconds greater than 0, at most {MOST}."
        )
    return timeout
