"""Types that several layers share."""

from collections.abc import Callable
from typing import Any, Literal

Params = Any  # any tree of arrays
Schedule = Callable[[Any], Any]  # of a round number, plain or traced; any optax schedule
Say = Callable[[str], None]  # is told a sentence for the user
Weighting = Literal["population", "cohort", "uniform"]
LOWER_IS_BETTER = "lower_is_better"  # in a line of evals.jsonl: the metrics that are so
WEIGHTINGS: tuple[Weighting, ...] = ("population", "cohort", "uniform")
