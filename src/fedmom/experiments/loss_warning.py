"""A run whose training loss rises: told while there is still time, with a step size to try."""

import math
from collections.abc import Mapping

from fedmom.core.types import Say
from fedmom.experiments.events import Event
from fedmom.experiments.results import Result
from fedmom.experiments.settings import RunConfig

PATIENCE = 3  # evaluations in a row with a loss above the first one's
FACTOR = 10.0  # to the step size to try
MOST_NAMED = 5  # runs, in the sentence about several


class RisingLoss:
    """An observer that warns once when the training loss stays above its start.

    Args:
        config: The run's settings.
        say: Told the sentence.
    """

    def __init__(self, config: RunConfig, say: Say) -> None:
        self._config, self._say, self._first, self._above = config, say, math.inf, 0

    def __call__(self, event: Event) -> None:
        """Compare an evaluation with the first one; a round's loss is that of a few clients."""
        if "train" not in event.evals:
            return
        loss = event.evals["train"]["loss"]
        if event.round == 0:
            self._first = loss
        self._above = self._above + 1 if loss > self._first else 0
        if self._above == PATIENCE and event.round < self._config.rounds:
            self._say(
                f"after round {event.round} the training loss is {loss:.4g}; it began at"
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
