"""A run whose training loss rises: told while there is still time, with a step size to try."""

from collections.abc import Mapping
from typing import Any

from fedmom.core.types import Say
from fedmom.experiments.build import Experiment
from fedmom.experiments.results import Result
from fedmom.experiments.settings import RunConfig
from fedmom.training.loop import Record

PATIENCE = 3  # evaluations in a row with a loss above the first one's
FACTOR = 10.0  # to the step size to try
MOST_NAMED = 5  # runs, in the sentence about several


class RisingLoss:
    """Says once when the training loss has been above its start for several evaluations.

    Args:
        say: Told the sentence.
    """

    def __init__(self, say: Say) -> None:
        self._say, self._first, self._above = say, float("inf"), 0
        self._config: RunConfig | None = None

    def __enter__(self) -> "RisingLoss":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to tidy up."""

    def begin(self, experiment: Experiment, _round: int) -> None:
        """Remember the run."""
        self._config = experiment.config

    def round(self, record: Record) -> None:
        """Wait for an evaluation: the loss of a round is that of a few clients."""

    def evaluated(self, rows: list[dict[str, Any]]) -> None:
        """Compare with the first evaluation."""
        row = next((row for row in rows if row["split"] == "train"), None)
        if row is None or self._config is None:
            return
        if row["round"] == 0:
            self._first = row["loss"]
        self._above = self._above + 1 if row["loss"] > self._first else 0
        if self._above == PATIENCE and row["round"] < self._config.rounds:
            self._say(
                f"after round {row['round']} the training loss is {row['loss']:.4g}; it began at"
                f" {self._first:.4g}. {advice(self._config)}"
            )


def risen(results: Mapping[str, Result]) -> str:
    """Say which runs ended worse than they began; nothing if none did.

    Args:
        results: The runs by name. Those that diverged or were stopped have said so.
    """
    found = {name: run for name, run in results.items() if not run.stop and run.risen()}
    if not found:
        return ""
    runs = ", ".join(f"{name} {run.risen()}" for name, run in list(found.items())[:MOST_NAMED])
    more = f", and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return (
        f"the training loss ended above that of the first model: {runs}{more}."
        f" {advice(next(iter(found.values())).config)}"
    )


def advice(config: RunConfig) -> str:
    """Return which step size to try instead.

    Examples:
        >>> advice(RunConfig(lr=0.1))
        'Try lr 0.01.'
    """
    if isinstance(config.lr, str):
        return f"Try a schedule that starts lower than lr {config.lr}."
    return f"Try lr {config.lr / FACTOR:.2g}."
