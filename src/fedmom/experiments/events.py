"""What observers of a run are told: progress bars, TensorBoard, warnings, your own callbacks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedmom.core.types import Params
from fedmom.training.loop import Record


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
