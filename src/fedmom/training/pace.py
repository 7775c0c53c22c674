"""Paces: whom to ask now, when a round has enough replies, what a stale reply counts."""

import itertools
import math
from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fedmom.core.bounds import MOST
from fedmom.core.errors import FedMomError
from fedmom.training.samplers import Cohort, Draw, Sampler, in_random_order

AGAIN = 2**32  # a round's number, this many later: one that no run reaches
TRIES = 100


@runtime_checkable
class Pace(Protocol):
    """When the server asks and when it steps.

    ``timeout`` is how long it waits for the next reply, in seconds; None waits for ever.
    ``rows`` is how many replies a round usually has. ``keeps_late`` says whether replies that
    are not in when a round ends may count in a later one.

    Examples:
        >>> pace = synchronous(lambda size: lambda seed, round_: np.arange(size), 2)
        >>> isinstance(pace, Pace), pace.ask(0, 0, frozenset()).tolist(), pace.weight(0)
        (True, [0, 1], 1.0)
    """

    @property
    def timeout(self) -> float | None: ...  # noqa: D102
    @property
    def rows(self) -> int: ...  # noqa: D102
    @property
    def keeps_late(self) -> bool: ...  # noqa: D102

    def ask(self, seed: int, round_: int, busy: Set[int]) -> Cohort:
        """Return the clients to ask in a round.

        Args:
            seed: The seed of the run.
            round_: The round, from 0 on.
            busy: Clients that were asked before and have not answered yet.
        """
        ...

    def enough(self, replies: int) -> bool:
        """Return whether a round has enough replies.

        Args:
            replies: How many are in.
        """
        ...

    def weight(self, staleness: int) -> float:
        """Return the weight of a reply.

        Args:
            staleness: How many rounds old the model is that it comes from.
        """
        ...


@dataclass(frozen=True)
class Synchronous:
    """Ask a cohort, take the first ``enough_`` replies (all, if None), forget the others."""

    sampler: Sampler
    rows: int
    timeout: float | None = None
    enough_: int | None = None
    keeps_late = False

    def ask(self, seed: int, round_: int, busy: Set[int]) -> Cohort:  # noqa: ARG002
        """Return the round's cohort."""
        return self.sampler(seed, round_)

    def enough(self, replies: int) -> bool:
        """Tell whether the round has its replies."""
        return self.enough_ is not None and replies >= self.enough_

    def weight(self, staleness: int) -> float:
        """Return 1 for this round's replies, 0 for older ones."""
        return float(staleness == 0)


@dataclass(frozen=True)
class Buffered:
    """Keep several cohorts at work and step whenever ``rows`` replies are in (FedBuff).

    Nguyen et al. 2022: a reply to a model that is s rounds old counts 1/sqrt(1 + s).
    """

    draw: Draw
    rows: int
    in_flight: int
    timeout: float | None = None
    keeps_late = True

    def ask(self, seed: int, round_: int, busy: Set[int]) -> Cohort:
        """Return as many free clients as are missing of those to be at work."""
        cohorts = self.in_flight // self.rows
        # The cohorts 0, 1, 2, ... in turn; then draws that no round has, for clients that were
        # busy or have failed. Nearly everybody may be busy, so it does not try for ever.
        first = 0 if round_ == 0 else round_ + cohorts - 1
        again = (first + k * AGAIN for k in range(1, TRIES))
        asked: dict[int, None] = {}
        in_vain = 0
        for number in itertools.chain(range(first, round_ + cohorts), again):
            missing = self.in_flight - len(busy) - len(asked)
            if missing <= 0 or in_vain >= TRIES:
                break
            drawn = self.draw(min(missing, self.rows))(seed, number)
            before = len(asked)
            asked |= dict.fromkeys(c for c in np.asarray(drawn).tolist() if c not in busy)
            in_vain = 0 if len(asked) > before else in_vain + 1
        return np.array(list(asked), np.int64)

    def enough(self, replies: int) -> bool:
        """Tell whether the buffer is full."""
        return replies >= self.rows

    def weight(self, staleness: int) -> float:
        """Return 1/sqrt(1 + s)."""
        return 1 / math.sqrt(1 + staleness)


def synchronous(draw: Draw, size: int, *, timeout: float | None = None) -> Pace:
    """Ask M clients and wait for all of them.

    Args:
        draw: A function of M that returns a sampler, such as ``uniform(samples)``.
        size: M, the clients of a round.
        timeout: Seconds without a reply after which the round ends with those that are in.

    Returns:
        A pace.

    Examples:
        >>> from fedmom import uniform
        >>> pace = synchronous(uniform(np.ones(10, np.int64)), 2)
        >>> len(pace.ask(0, 0, set()))
        2
    """
    return Synchronous(draw(size), size, _checked(timeout))


def over_selected(
    draw: Draw, size: int, *, extra: float = 0.3, timeout: float | None = None
) -> Pace:
    """Ask more than M clients, take the first M replies and drop the slow ones.

    Args:
        draw: A function of M that returns a sampler, such as ``uniform(samples)``.
        size: M, the replies of a round.
        extra: How many more are asked, as a share of M.
        timeout: Seconds without a reply after which the round ends with those that are in.

    Returns:
        A pace.

    Examples:
        >>> from fedmom import uniform
        >>> pace = over_selected(uniform(np.ones(100, np.int64)), 10, extra=0.5)
        >>> len(pace.ask(0, 0, set())), pace.enough(10)
        (15, True)
    """
    if not 0 <= extra <= MOST:
        raise FedMomError(
            f"over_selected: extra={extra} is not a number of 0 or more (at most {MOST:,})."
        )
    # Rounded first: 7 % of 100 is 7, but 0.07 * 100 is a little more in floating point.
    more = math.ceil(round(size * extra, 9))
    return Synchronous(in_random_order(draw(size + more)), size, _checked(timeout), size)


def buffered(draw: Draw, size: int, *, in_flight: int, timeout: float | None = None) -> Pace:
    """Keep in_flight clients at work; step whenever M replies are in (FedBuff).

    Args:
        draw: A function of M that returns a sampler, such as ``uniform(samples)``.
        size: M, the replies of a round.
        in_flight: The clients at work at once, M or more.
        timeout: Seconds without a reply after which the round ends with those that are in.

    Returns:
        A pace.

    Examples:
        >>> from fedmom import uniform
        >>> pace = buffered(uniform(np.ones(1000, np.int64)), 10, in_flight=40)
        >>> pace.enough(9), pace.enough(10), pace.weight(3)
        (False, True, 0.5)
    """
    if in_flight < size:
        raise FedMomError(
            f"buffered: in_flight={in_flight} is less than the {size} clients of a round."
        )
    draw(size)  # refuses a size that is not possible
    return Buffered(draw, size, in_flight, _checked(timeout))


def _checked(timeout: float | None) -> float | None:
    if timeout is not None and not 0 < timeout <= MOST:
        raise FedMomError(
            f"timeout={timeout} is not a number of seconds greater than 0, and at most {MOST}."
        )
    return timeout
