"""Run experiments in their folders, with progress: for the command line, programs and notebooks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedmom.api.live_progress import RunProgress
from fedmom.core.compilation import keep_programs
from fedmom.core.errors import FedMomError
from fedmom.core.types import Say
from fedmom.experiments.build import Experiment
from fedmom.experiments.collection import side_by_side
from fedmom.experiments.execute import execute, warn
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.observers import Observer, RisingLoss, risen
from fedmom.experiments.results import Result


def finish(
    path: Path,
    experiment: Experiment,
    console: Console,
    *,
    callbacks: Sequence[Observer] = (),
    say: Say = warn,
    **how: Any,
) -> Result:
    """Run until the last round; ``how`` are more arguments of ``execute``.

    Raises:
        DivergedError: A value is NaN or infinite. The folder holds all rounds before.
        BadReplyError: A reply could not be used.
    """
    _check_callbacks(callbacks)
    keep_programs()
    label = experiment.config.algorithm
    with RunProgress(console, {path: experiment}, {path: label}) as shown:
        observers: list[Observer] = [shown, RisingLoss(experiment.config, say), *callbacks]
        result = execute(RunFolder.open(path), experiment, observers, say=say, **how)
    if result.error:
        raise result.error
    _warn_about_risen({label: result}, say)
    return result


def finish_all(
    folder: Path,
    experiments: Mapping[str, Experiment],
    console: Console,
    *,
    callbacks: Sequence[Observer] = (),
    say: Say = warn,
    **how: Any,
) -> tuple[dict[str, Result], dict[str, FedMomError]]:
    """Run side by side until the last round; a run that fails does not stop the others.

    Returns:
        The results, and the errors of runs that could not be run at all.
    """
    _check_callbacks(callbacks)
    keep_programs()
    by_path = {folder / name: experiment for name, experiment in experiments.items()}
    with RunProgress(console, by_path) as shown:
        found = side_by_side(by_path, [shown, *callbacks], shown.ended, say=say, **how)
    results = {path.name: each for path, each in found.items() if isinstance(each, Result)}
    errors = {path.name: each for path, each in found.items() if isinstance(each, FedMomError)}
    for name, result in results.items():
        if result.error:
            say(f"{name} stopped: {result.why}")
    _warn_about_risen(results, say)
    return results, errors


def _warn_about_risen(results: Mapping[str, Result], say: Say) -> None:
    if sentence := risen(results):
        say(sentence)


def _check_callbacks(callbacks: Sequence[Observer]) -> None:
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise FedMomError(
            f"callbacks is {callbacks!r}. Give a list of functions of a fedmom.Event."
        )
