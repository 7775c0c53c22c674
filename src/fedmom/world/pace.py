"""A pace in a simulated world: it asks those who are there."""

from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmom.training.pace import Buffered, Pace, Samples, Synchronous
from fedmom.training.samplers import LARGE, Cohort, checked_cohort, generator, is_uniform
from fedmom.world.base import Clients, Truths

AT_ONCE = 1024  # candidates
BUDGET = 2**18  # candidates of one draw: from a large population, fewer may be found than are there

Here = Callable[[int, Clients], Truths]  # (round, clients) -> who is there now


@dataclass
class Present:
    """A sampler that draws as another one does, among those who are there.

    A uniform cohort is filled up with others who are there, so that it is a uniform one of them.
    Any other sampler's cohort shrinks: a client that is there is then in it with the probability
    that the sampler says.

    Args:
        sampler: Draws from everybody.
        here: Says who is there.
    """

    sampler: Any
    here: Here
    round: int = field(default=0)

    def __call__(self, seed: int, number: int, size: int, samples: Samples) -> Cohort:
        """Return a cohort; ``number`` may be another draw than that of the round."""
        drawn = checked_cohort(self.sampler(seed, number, size, samples), number, len(samples))
        there = self.here(self.round, drawn)
        if there.all():
            return drawn
        found = drawn[there]
        if not is_uniform(self.sampler):
            return found
        more = self._others(seed, number, len(samples), drawn, size - len(found))
        return np.concatenate([found, more])

    def _others(self, seed: int, number: int, clients: int, drawn: Cohort, missing: int) -> Cohort:
        """Return others who are there, in a random order, at a cost that does not depend on K."""
        rng = generator(seed, number, stream=2)
        seen, found = set(drawn.tolist()), list[int]()
        few = clients <= LARGE
        order = rng.permutation(clients) if few else None
        for first in range(0, clients if few else BUDGET, AT_ONCE):
            part = _candidates(rng, clients, order, first)
            there = self.here(self.round, part)
            for client in part[there].tolist():
                if client not in seen:
                    seen.add(client)
                    found.append(client)
            if len(found) >= missing:
                break
        return np.array(found[:missing], np.int64)


def _candidates(
    rng: np.random.Generator, clients: int, order: NDArray[np.int64] | None, first: int
) -> NDArray[np.int64]:
    if order is None:
        return rng.integers(0, clients, AT_ONCE)
    return order[first : first + AT_ONCE]


class WorldPace:
    """A pace whose sampler draws among those who are there.

    A pace of your own asks whom it asks; those who are not there fail.

    Args:
        pace: Decides all else.
        here: Says who is there, in a round and now.
    """

    def __init__(self, pace: Pace, here: Here) -> None:
        self._pace, self._present = pace, None
        if isinstance(pace, Synchronous | Buffered):
            self._present = Present(pace.sampler, here)
            self._pace = replace(pace, sampler=self._present)

    @property
    def timeout(self) -> float | None:
        """As of the pace."""
        return self._pace.timeout

    @property
    def rows(self) -> int:
        """As of the pace."""
        return self._pace.rows

    @property
    def keeps_late(self) -> bool:
        """As of the pace."""
        return self._pace.keeps_late

    @property
    def takes_sums(self) -> bool:
        """As of the pace."""
        return self._pace.takes_sums

    def ask(self, seed: int, round_: int, samples: Samples, busy: Set[int]) -> Cohort:
        """Return the clients to ask."""
        if self._present is not None:
            self._present.round = round_
        return self._pace.ask(seed, round_, samples, busy)

    def enough(self, replies: int) -> bool:
        """As of the pace."""
        return self._pace.enough(replies)

    def weight(self, staleness: int) -> float:
        """As of the pace."""
        return self._pace.weight(staleness)
