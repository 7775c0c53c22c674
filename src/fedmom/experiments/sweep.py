"""A grid of settings -> many runs, side by side on all cores, in one folder."""

import contextlib
import itertools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.files import slug
from fedmom.experiments import build, settings
from fedmom.experiments.build import Experiment
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.results import SWEEP_LIST, Group, Result
from fedmom.experiments.settings import RunConfig, kebab
from fedmom.runtimes import cores
from fedmom.training.loop import Record

LIST = SWEEP_LIST
Outcome = Result | FedMomError
Advanced = Callable[[Path, int], None]
Ended = Callable[[Path, Outcome], None]
# Returns who else looks on at a run: watchers that are entered before it and left after it.
Watchers = Callable[[Path, Experiment], Sequence[Any]]


def cells(shared: Mapping[str, Any], grid: Mapping[str, list[Any]]) -> dict[str, RunConfig]:
    """Return the settings of every run of a grid, by the run's name.

    Settings that an algorithm has no use for are left out, and what is then equal is one run.
    """
    if not isinstance(grid, Mapping):
        raise FedMomError(
            f"grid = {grid!r} is not a table of lists. Write [grid] and lr = [0.01, 0.1] below it."
        )
    known = [kebab(name) for name in RunConfig.model_fields]
    for key, values in grid.items():
        if key not in known:
            raise FedMomError(
                f"There is no setting {key!r} to vary. Settings: {', '.join(sorted(known))}."
            )
        if not isinstance(values, list) or not values:
            raise FedMomError(f"grid: {key} = {values!r} must be a list of one value or more.")
    configs: dict[str, RunConfig] = {}
    for combination in itertools.product(*grid.values()):
        chosen = dict(zip(grid, combination, strict=True))
        fitting = build.fitting({**shared, **chosen})
        config = settings.parse(fitting)
        if config in configs.values():
            continue
        name = _name({k: v for k, v in chosen.items() if k in fitting})
        if name in configs:
            raise FedMomError(f"Two runs of the grid would be called {name}. Write values apart.")
        configs[name] = config
    return configs


def side_by_side(
    experiments: Mapping[Path, Experiment],
    advanced: Advanced,
    ended: Ended | None = None,
    watchers: Watchers = lambda _path, _experiment: (),
    **how: Any,
) -> dict[Path, Outcome]:
    """Run, or go on with, the run in every folder, as many at a time as there are cores.

    Each run has one thread, so that the cores are filled by independent runs, and all share
    one copy of the data and its compiled programs. On a Ray cluster each run has one actor, and
    the cores are those of the cluster.

    Args:
        experiments: What to run, by its folder.
        advanced: Told of rounds that are done, on the threads of the runs.
        ended: Told of every run that ends, with its result or error.
        watchers: Who else looks on at a run, such as TensorBoard.
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
    with ThreadPoolExecutor(_at_once(experiments, how), thread_name_prefix="run") as pool:
        futures = {
            pool.submit(_run, path, experiment, _Tick(path, advanced, stop), watchers, how): path
            for path, experiment in experiments.items()
        }
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


def groups(results: Mapping[str, Result]) -> list[Group]:
    """Return the runs of a sweep by name, seeds taken together."""
    together: dict[str, list[Result]] = {}
    for name, run in results.items():
        parts = (part for part in name.split("_") if part != f"seed{run.config.seed}")
        together.setdefault("_".join(parts) or "run", []).append(run)
    return [Group(label, runs) for label, runs in together.items()]


class _Tick:
    """Tells of every round that is done, and ends its run when all are to stop."""

    def __init__(self, path: Path, advanced: Advanced, stop: threading.Event) -> None:
        self._path, self._advanced, self._stop = path, advanced, stop

    def begin(self, _experiment: Experiment, round_: int) -> None:
        self._advanced(self._path, round_)

    def round(self, _record: Record) -> None:
        self._advanced(self._path, 1)
        if self._stop.is_set():
            raise KeyboardInterrupt

    def evaluated(self, rows: list[dict[str, Any]]) -> None:
        """Nothing to show: the table comes at the end."""


def _run(
    path: Path, experiment: Experiment, tick: _Tick, watchers: Watchers, how: Mapping[str, Any]
) -> Result:
    with contextlib.ExitStack() as stack:
        more = [stack.enter_context(watcher) for watcher in watchers(path, experiment)]
        return execute(RunFolder.open(path), experiment, [*more, tick], workers=1, actors=1, **how)


def _at_once(experiments: Mapping[Path, Experiment], how: Mapping[str, Any]) -> int:
    """Return how many runs the cores have room for."""
    used = {how.get("runtime") or e.config.runtime for e in experiments.values()}
    return max((cores(spec) for spec in used), default=1)


def _name(chosen: Mapping[str, Any]) -> str:
    """Return a run's name, which is its folder: algorithm-lr0.1-seed2."""
    parts = [str(v) if k == "algorithm" else f"{k}{v}" for k, v in chosen.items()]
    return slug("_".join(parts) or "run", keep="-_.=")
