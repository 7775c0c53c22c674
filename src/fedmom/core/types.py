"""Types that several layers share."""

import re
from collections.abc import Callable
from typing import Any, Literal

Params = Any  # any tree of arrays
Schedule = Callable[[Any], Any]  # of a round number, plain or traced; any optax schedule
Say = Callable[[str], None]  # is told a sentence for the user
Weighting = Literal["population", "cohort", "uniform"]
# In a line of evals.jsonl: the metrics of which lower values are better, and those of which nobody
# has said which values are.
LOWER_IS_BETTER, UNRANKED = "lower_is_better", "unranked"
# What metrics cannot be called: other fields of logs and tables, and attributes of evaluations.
TAKEN = (
    *("round", "split", "loss", "clients", "samples", LOWER_IS_BETTER, UNRANKED, "run", "row"),
    *("values", "metrics", "diagnostics", "cohort", "rejected", "crc32"),
)
PERCENTILE = re.compile(r"_p\d+(_identical)?$")  # the end of the name of a percentile of one
WEIGHTINGS: tuple[Weighting, ...] = ("population", "cohort", "uniform")

# Before the reason why a client of a simulated world does not reply, which is no fault of the run.
SIMULATED = "simulated: "
