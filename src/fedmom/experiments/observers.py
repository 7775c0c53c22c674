"""What is told of a run, round by round: events, and two observers of them."""

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.files import inner_folder
from fedmom.core.types import LOWER_IS_BETTER, UNRANKED, Params, Say
from fedmom.experiments.results import Result
from fedmom.experiments.settings import RunConfig
from fedmom.training.loop import Record

PATIENCE = 3  # evaluations in a row with a loss above the first one's
FACTOR = 10.0  # to the step size to try
LARGEST_LR = 10.0  # of what a tenth is still worth a try: no default is above 3
MOST_NAMED = 5  # runs, in the sentence about several


@dataclass(frozen=True)
class Event:
    """What a callback is told after every round, and once before the first one.

    ``event.params`` are the parameters of the model at this moment.

    Args:
        round: Rounds done.
        record: The round, as it is logged; None when the run starts or is resumed.
        evals: The evaluation after it, by split, such as ``event.evals["test"]["loss"]``; empty
            if there was none.
        path: The run's folder.
        get_params: Returns the model's parameters, for ``params``.

    Examples:
        >>> event = Event(0, None, {"test": {"loss": 2.3}}, Path("runs/first"), lambda: {"w": 1.0})
        >>> event.evals["test"]["loss"], event.params
        (2.3, {'w': 1.0})
    """

    round: int
    record: Record | None
    evals: Mapping[str, Mapping[str, Any]]
    path: Path
    get_params: Callable[[], Params]

    @cached_property
    def params(self) -> Params:
        """The model's parameters."""
        return self.get_params()


# Is called with every event of a run. Returns a reason (or True) to end the run there, else None.
Observer = Callable[[Event], str | bool | None]
Observers = Sequence[Observer]


class TensorBoard:
    """An observer of one run that writes TensorBoard files.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise FedMomError(
                "TensorBoard files need an extra: pip install 'fedmom[tensorboard]'."
            ) from None
        self._writer_at: Any = partial(SummaryWriter, str(inner_folder(folder / "tensorboard")))
        self._writer: Any = None

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def __call__(self, event: Event) -> None:
        """Write the numbers of a round and its evaluation."""
        if self._writer is None:  # rounds after the checkpoint will be written again
            # A name that nobody can guess and plant a link at. TensorBoard reads files in the
            # order of their names, which otherwise have whole seconds.
            suffix = f".{time.time_ns():020}.{secrets.token_hex(8)}"
            self._writer = self._writer_at(purge_step=event.round + 1, filename_suffix=suffix)
        if record := event.record:
            numbers = {
                name: getattr(record, name)
                for name in ("train_loss", "update_norm", "seconds", "bytes_up", "bytes_down")
            }
            if record.simulated_seconds is not None:
                numbers["simulated_seconds"] = record.simulated_seconds
            self._add("round", {**numbers, **record.metrics}, event.round)
        for split, row in event.evals.items():
            left_out = ("round", "split", LOWER_IS_BETTER, UNRANKED)
            kept = {name: value for name, value in row.items() if name not in left_out}
            self._add(split, kept, event.round)
        if event.evals:
            self._writer.flush()

    def _add(self, group: str, numbers: dict[str, Any], round_: int) -> None:
        for name, value in numbers.items():
            if value is not None:
                self._writer.add_scalar(f"{group}/{name}", value, round_)


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


def warn_if_risen(results: Mapping[str, Result], say: Say) -> None:
    """Say which runs ended worse than they began, except those that diverged or were stopped."""
    found = {name: run for name, run in results.items() if not run.stop and run.risen()}
    if not found:
        return
    runs = ", ".join(f"{name} {run.risen()}" for name, run in list(found.items())[:MOST_NAMED])
    more = f", and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    say(
        f"the training loss ended above that of the first model: {runs}{more}."
        f" {advice(next(iter(found.values())).config)}"
    )


def warn_if_rejected(results: Mapping[str, Result], say: Say) -> None:
    """Say of which runs replies were rejected, and why."""
    found = {name: text for name, run in results.items() if (text := run.rejected())}
    for name, text in list(found.items())[:MOST_NAMED]:
        say(f"{name}: {text}")
    if len(found) > MOST_NAMED:
        say(f"Replies of {len(found) - MOST_NAMED} more runs were rejected.")


def advice(config: RunConfig) -> str:
    """Return which step size to try instead.

    Examples:
        >>> advice(RunConfig(lr=0.1))
        'Try lr 0.01.'
    """
    if not isinstance(config.lr, str) and config.lr > LARGEST_LR:
        return "Try lr auto, the default for the algorithm and the data."
    if isinstance(config.lr, str):
        return f"Try a schedule that starts lower than lr {config.lr}."
    return f"Try lr {config.lr / FACTOR:.2g}."
