"""Which replies are absurdly large: against those of their round, and of the rounds before."""

from collections import deque

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedmom.core.errors import FedMomError

LIMIT = 1000.0  # times the median: of honest clients, in the experiments at hand, below 30
RECENT = 100  # replies that are remembered
FEWEST = 3  # norms that have a median worth comparing with

Norms = NDArray[np.float64]


class ReplySizes:
    """Remembers the norms of the replies that counted lately, and says which are absurd.

    Norms of 0 are no measure, and are left out of medians.

    Args:
        limit: How many times the median a norm may be; 0: any.

    Examples:
        >>> sizes = ReplySizes(limit=10.0)
        >>> sizes.add([1.0, 2.0, 3.0])
        >>> sizes.absurd([2.0, 19.0, 21.0]).tolist()
        [False, False, True]
    """

    def __init__(self, limit: float = LIMIT) -> None:
        if not (limit == 0 or limit >= 1):
            raise FedMomError(
                f"norm_limit={limit:g} must be at least 1: how many times the median of the replies"
                " an update may be large. 0 sets no limit."
            )
        self._limit = limit
        self._recent: deque[float] = deque(maxlen=RECENT)

    @property
    def knows(self) -> bool:
        """Whether a reply can be judged when it comes, before the others of its round."""
        return self._limit > 0 and len(self._recent) >= FEWEST

    @property
    def typical(self) -> float:
        """The median of the recent norms; 0 without any."""
        return lower_median(self._recent)

    def add(self, norms: ArrayLike) -> None:
        """Remember the norms of replies that count."""
        self._recent.extend(n for n in np.ravel(np.asarray(norms, float)).tolist() if n > 0)

    def absurd(self, norms: ArrayLike) -> NDArray[np.bool_]:
        """Return which norms are absurd against the recent ones."""
        found, typical = np.asarray(norms, float), self.typical
        if not (self._limit and typical):
            return np.zeros(found.shape, bool)
        return found > self._limit * typical

    def absurd_in_round(self, norms: ArrayLike) -> NDArray[np.bool_]:
        """Return which norms of a whole round are absurd against each other and the recent ones.

        Where most of them are absurd against the recent ones, none is: training diverges.
        """
        found, limit = np.asarray(norms, float), self._limit or LIMIT
        typical = lower_median([*self._recent, *found.ravel().tolist()])
        bad = found > limit * typical if typical else np.zeros(found.shape, bool)
        return np.zeros_like(bad) if 2 * bad.sum() > found.size > 1 else bad

    def reason(self, norm: float) -> str:
        """Say why a reply is rejected."""
        known = f", {self.typical:.3g}" if self.typical else ""
        return (
            f"its update has the norm {norm:.3g}, more than {self._limit or LIMIT:g} times the"
            f" median of the replies{known} (norm-limit)"
        )


def lower_median(norms: "deque[float] | list[float]") -> float:
    """Return the median of the norms above 0, of two the smaller; 0 without any.

    Examples:
        >>> lower_median([1e17, 2.0, 0.0]), lower_median([])
        (2.0, 0.0)
    """
    positive = sorted(norm for norm in norms if norm > 0)
    return positive[(len(positive) - 1) // 2] if positive else 0.0
