"""Which actor works for which clients: the longest first, each where it is done soonest."""

import heapq
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Speeds count in steps of a fourth root of 2, about 19 %: what differs by less is noise, and
# clients would move for it.
STEPS = 4


def deal(
    costs: NDArray[np.float64], speeds: Sequence[float], homes: Sequence[int | None] = ()
) -> list[list[int]]:
    """Share out work among actors.

    Args:
        costs: What each client costs, in any unit.
        speeds: What each actor does in a unit of time.
        homes: The actor that holds a client's state, if there is one. A client stays there, as
            long as that actor is not asked for more than its share.

    Returns:
        For every actor, the places of its clients in ``costs``.

    Examples:
        >>> deal(np.array([4.0, 1.0, 2.0, 1.0]), speeds=[1.0, 1.0])
        [[0], [2, 1, 3]]
        >>> deal(np.array([1.0, 1.0, 1.0]), speeds=[2.0, 1.0], homes=[1, None, None])
        [[1, 2], [0]]
    """
    shares: list[list[int]] = [[] for _ in speeds]
    loads = [0.0 for _ in speeds]
    fair = float(costs.sum()) / sum(speeds)
    left = []
    for place in np.argsort(-costs, kind="stable").tolist():
        home = homes[place] if homes else None
        if home is None or loads[home] + costs[place] > fair * speeds[home] * (1 + 1e-9):
            left.append(place)
            continue
        shares[home].append(place)
        loads[home] += float(costs[place])
    # By the time at which each actor would be done; between equals the first one.
    queue = [(loads[actor] / speed, actor) for actor, speed in enumerate(speeds)]
    heapq.heapify(queue)
    for place in left:
        time, actor = queue[0]
        shares[actor].append(place)
        heapq.heapreplace(queue, (time + float(costs[place]) / speeds[actor], actor))
    return shares


class Speed:
    """How fast an actor was lately, in work per second.

    The first jobs, which compile, do not count.
    """

    IGNORED, MEMORY = 2, 0.7

    def __init__(self) -> None:
        self._jobs = 0
        self._rate: float | None = None

    def note(self, work: float, seconds: float) -> None:
        """Note a job that is done."""
        self._jobs += 1
        if self._jobs <= self.IGNORED or seconds <= 0:
            return
        old = work / seconds if self._rate is None else self._rate
        self._rate = self.MEMORY * old + (1 - self.MEMORY) * work / seconds

    @staticmethod
    def compared(speeds: "Sequence[Speed]") -> list[float]:
        """Return speeds relative to their median; one that is not known yet counts as 1."""
        known = [speed._rate for speed in speeds if speed._rate is not None]
        if not known:
            return [1.0] * len(speeds)
        middle = float(np.median(known))
        ratios = (1.0 if s._rate is None else s._rate / middle for s in speeds)
        return [float(2 ** (round(STEPS * math.log2(ratio)) / STEPS)) for ratio in ratios]
