"""Types that several layers share."""

from collections.abc import Callable
from typing import Any, Literal

Params = Any  # any tree of arrays
Schedule = Callable[[Any], Any]  # of a round number, plain or traced; any optax schedule
Say = Callable[[str], None]  # is told a sentence for the user
Weighting = Literal["population", "cohort", "uniform"]
# In a line of evals.jsonl: the metrics of which lower values are better, and those of which nobody
# has said which values are.
LOWER_IS_BETTER, UNRANKED = "lower_is_better", "unranked"
WEIGHTINGS: tuple[Weighting, ...] = ("population", "cohort", "uniform")
