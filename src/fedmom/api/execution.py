"""Running experiments in their folders, with progress, for programs and notebooks."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedmom.api.progress import ManyRuns, tensorboard, watch
from fedmom.core.errors import DivergedError, FedMomError
from fedmom.experiments.build import Experiment
from fedmom.experiments.execute import Callback, execute, warn
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.loss_warning import RisingLoss, risen
from fedmom.experiments.results import Result
from fedmom.experiments.sweep import side_by_side


def finish(
    path: Path,
    experiment: Experiment,
    *,
    progress: bool,
    callbacks: Sequence[Callback] = (),
    **how: Any,
) -> Result:
    """Run until the last round.

    Raises:
        DivergedError: The run's numbers left the finite ones. Its folder holds all rounds before.
    """
    _check_callbacks(callbacks)
    watchers: list[Any] = [
        *([watch(Console(), experiment.config.algorithm)] if progress else []),
        *tensorboard(path, experiment),
        RisingLoss(warn),
    ]
    with contextlib.ExitStack() as stack:
        for watcher in watchers:
            stack.enter_context(watcher)
        result = execute(RunFolder.open(path), experiment, watchers, callbacks=callbacks, **how)
    if result.diverged:
        raise DivergedError(result.why)
    _say_risen({experiment.config.algorithm: result})
    return result


def finish_all(
    folder: Path,
    experiments: Mapping[str, Experiment],
    *,
    progress: bool,
    callbacks: Sequence[Callback] = (),
    **how: Any,
) -> dict[str, Result]:
    """Run side by side until the last round; a run that diverges does not stop the others.

    Raises:
        FedMomError: A run could not be run at all. The others are finished first.
    """
    _check_callbacks(callbacks)
    by_path = {folder / name: experiment for name, experiment in experiments.items()}
    with ManyRuns(Console(quiet=not progress), by_path) as shown:
        outcomes = side_by_side(
            by_path, shown.advanced, shown.ended, tensorboard, callbacks=callbacks, **how
        )
    for outcome in outcomes.values():
        if isinstance(outcome, FedMomError):
            raise outcome
    results = {path.name: found for path, found in outcomes.items() if isinstance(found, Result)}
    _say_risen(results)
    return results


def _say_risen(results: Mapping[str, Result]) -> None:
    if sentence := risen(results):
        warn(sentence)


def _check_callbacks(callbacks: Sequence[Callback]) -> None:
    several = callbacks if isinstance(callbacks, Sequence) else [callbacks]
    wrong = [each for each in several if not callable(each)]
    if several is not callbacks or wrong:
        raise FedMomError(
            f"callbacks is {callbacks!r}. Give a list of functions of a fedmom.Event."
        )
