"""The folder of a comparison or sweep: its run folders, and a list that says which they are."""

import contextlib
import json
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache, partial
from pathlib import Path
from typing import Any

from fedmom import data as datasets
from fedmom import runtimes
from fedmom.core.errors import FedMomError
from fedmom.core.files import (
    LOCK,
    claimed,
    inner_folder,
    locked,
    remove_file,
    temporary_name,
    write_atomic,
)
from fedmom.core.progress import track
from fedmom.experiments.build import Experiment, prepare
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.observers import Event, Observer, Observers
from fedmom.experiments.ours import foreign, foreign_to_new
from fedmom.experiments.results import LISTS, Result, read_names
from fedmom.experiments.settings import RunConfig

Outcome = Result | FedMomError
Ended = Callable[[Path, Outcome], None]
JOURNAL = "creation.json"  # earlier versions': what the folder was to hold, while it was made


def create(
    folder: Path,
    configs: Mapping[str, RunConfig],
    list_name: str,
    *,
    overwrite: bool = False,
    held: contextlib.ExitStack | None = None,
) -> dict[str, Experiment]:
    """Make the folder of a comparison or sweep, with a folder for every run of it.

    The list of the runs, ``list_name``, is written last. Killed before, the same call can be made
    again.

    Args:
        folder: The folder.
        configs: The settings of the runs, by their names.
        list_name: The name of the list.
        overwrite: Remove the runs that the folder holds.
        held: Keeps the folder locked; by default it is locked only while it is made.

    Returns:
        The experiments, by name.
    """
    refuse_journal(folder)
    if not overwrite:
        _check_free(folder)
    load = cache(datasets.load)
    shown = partial(track, total=len(configs))
    experiments = {
        name: prepare(config, load(config.data))
        for name, config in shown(configs.items(), "Settings of runs")
    }
    if overwrite:
        remove(folder)
    with contextlib.ExitStack() as stack:
        (held or stack).enter_context(claimed(folder, _check_free))
        for run in _left_over(folder):
            run.remove_untouched()
        for name, experiment in shown(experiments.items(), "Folders of runs"):
            RunFolder.create(folder / name, experiment.config)
        write_atomic(folder / list_name, json.dumps(list(experiments)).encode())
    return experiments


def _check_free(folder: Path) -> None:
    """Refuse a place where new runs cannot be; what a kill has left of such runs may be there."""
    if any(os.path.lexists(folder / name) for name in LISTS):
        raise FedMomError(
            f"{folder} already holds runs. Resume them (fedmom resume {folder}), overwrite them"
            " (--overwrite; overwrite=True in Python), or choose another --out."
        )
    RunFolder.check_free(folder, [run.path for run in _left_over(folder)])


def _left_over(folder: Path) -> list[RunFolder]:
    """Return the runs in a folder that was being made when a kill came."""
    folders = (path for path in folder.glob("*") if path.is_dir() and not path.is_symlink())
    return [run for run in map(RunFolder, folders) if run.is_left_over()]


def refuse_journal(folder: Path) -> None:
    """Refuse a folder that an earlier version was making when it was killed."""
    made = any(os.path.lexists(folder / name) for name in LISTS)
    if (folder / JOURNAL).exists() and not made:
        raise FedMomError(
            f"{folder} was not finished: an earlier version of FedMom was stopped while it made the"
            f" folder ({JOURNAL}), before any round. Remove {folder}, and start again."
        )


def remove_untouched(folder: Path, names: Iterable[str], list_name: str) -> None:
    """Remove the folder of runs that were refused before any of them began."""
    runs = [RunFolder(folder / name) for name in names]
    if all(run.is_untouched() for run in runs):
        remove_file(folder / list_name)
        for run in runs:
            run.remove_untouched()
        remove_file(folder / LOCK)
        with contextlib.suppress(OSError):  # it has other files
            folder.rmdir()


def remove(folder: Path) -> None:
    """Remove the folder of a run, comparison or sweep; refuse one that holds anything else."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    runs = _runs_in(folder)
    strange = foreign(folder, runs) if runs else foreign_to_new(folder)
    if strange or folder.is_symlink():
        what = "it is a link" if folder.is_symlink() else f"{strange} is not part of a run"
        raise FedMomError(f"{folder} is not overwritten: {what}. Choose another --out.")
    with contextlib.ExitStack() as stack:
        for place in dict.fromkeys([folder, *runs]):
            stack.enter_context(locked(place))  # nobody else is at work in it
        if os.name == "nt":  # where a folder with open files has to stay
            stack.close()
        # Renamed first: a kill leaves the whole folder, or none of this name.
        aside = folder.rename(temporary_name(folder))
    shutil.rmtree(aside)


def _runs_in(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run's, else the folders of runs in it."""
    if _is_run(folder):
        return [folder]
    lists = [folder / name for name in LISTS if os.path.lexists(folder / name)]
    listed = [inner_folder(folder / name) for file in lists for name in read_names(file)]
    begun = [run.path for run in _left_over(folder)]
    return [run for run in (listed if lists else begun) if _is_run(run)]


def _is_run(folder: Path) -> bool:
    """Return whether a folder has the settings of a run: others have a config.toml, too."""
    with contextlib.suppress(FedMomError):
        return bool(RunFolder.open(folder).settings())
    return False


def side_by_side(
    experiments: Mapping[Path, Experiment],
    observers: Observers = (),
    ended: Ended | None = None,
    **how: Any,
) -> dict[Path, Outcome]:
    """Run, or resume, the run in every folder, as many at a time as there are cores.

    The runs share the cores, so that they are filled by independent runs, and all share
    one copy of the data and its compiled programs. On a Ray cluster each run has one actor, and
    the cores are those of the cluster.

    Args:
        experiments: What to run, by its folder.
        observers: Called with the events of all runs, on the threads of the runs.
        ended: Told of every run that ends, with its result or error.
        **how: More arguments of ``execute``, such as ``accept_changes`` and ``runtime``.

    Returns:
        The results; a run that could not be run has its error instead.

    Raises:
        Exception: What was raised in a run and is not a ``FedMomError``; the others are
            finished first.
    """
    # Runs that begin together compile the same programs, and one may find what another is just
    # writing to JAX's cache on disk. JAX then compiles it itself; nothing to tell the user.
    warnings.filterwarnings("ignore", message="Error reading persistent compilation cache")
    stop = threading.Event()
    outcomes: dict[Path, Outcome] = {}
    faults: list[Exception] = []

    shares = {
        path: runtimes.side_by_side(how.get("runtime") or each.config.runtime, len(experiments))
        for path, each in experiments.items()
    }

    def run(path: Path, experiment: Experiment) -> Result:
        told: list[Observer] = [*observers, partial(_stop_if, stop)]
        return execute(RunFolder.open(path), experiment, told, **shares[path].options, **how)

    at_once = max((share.runs for share in shares.values()), default=1)
    with ThreadPoolExecutor(at_once, thread_name_prefix="run") as pool:
        futures = {pool.submit(run, path, each): path for path, each in experiments.items()}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if isinstance(error, Exception) and not isinstance(error, FedMomError):
                    faults.append(error)
                    continue
                path = futures[future]
                outcomes[path] = error if isinstance(error, FedMomError) else future.result()
                if ended is not None:
                    ended(path, outcomes[path])
        except BaseException:
            stop.set()  # every run ends after its round, with its checkpoint written
            pool.shutdown(cancel_futures=True)
            raise
    if faults:
        raise faults[0]
    return {path: outcomes[path] for path in experiments}


def _stop_if(stop: threading.Event, _event: Event) -> None:
    if stop.is_set():
        raise KeyboardInterrupt
