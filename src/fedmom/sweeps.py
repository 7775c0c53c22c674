"""A grid of settings -> many runs, side by side on all cores, in one folder."""

import csv
import io
import itertools
import json
import os
import statistics
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedmom import config as settings
from fedmom import data as datasets
from fedmom import report, runs
from fedmom.config import Experiment, RunConfig
from fedmom.data import FederatedData
from fedmom.errors import FedMomError
from fedmom.rounds import Record
from fedmom.runs import RunFolder


def cells(shared: Mapping[str, Any], grid: Mapping[str, list[Any]]) -> dict[str, RunConfig]:
    """Return the settings of every run of a grid, by the run's name.

    Settings that an algorithm has no use for are left out, and what is then equal is one run.
    """
    known = {name.replace("_", "-") for name in RunConfig.model_fields}
    for key, values in grid.items():
        if key not in known:
            raise FedMomError(f"There is no setting {key!r} to vary. Settings: {sorted(known)}.")
        if not isinstance(values, list) or not values:
            raise FedMomError(f"grid: {key} = {values!r} must be a list of one value or more.")
    found: dict[str, RunConfig] = {}
    for combination in itertools.product(*grid.values()):
        chosen = dict(zip(grid, combination, strict=True))
        fitting = settings.fitting({**shared, **chosen})
        config = settings.parse(fitting)
        if config not in found.values():
            found[_name({k: v for k, v in chosen.items() if k in fitting})] = config
    return found


def create(folder: Path, configs: Mapping[str, RunConfig]) -> None:
    """Make the folder of a sweep, with a folder for every run of it."""
    if (folder / "sweep.json").exists():
        raise FedMomError(f"{folder} already holds a sweep. Go on with it: fedmom resume {folder}.")
    loaded = Loaded()
    for name, config in configs.items():
        RunFolder.create(folder / name, settings.prepare(config, loaded[config.data]))
    runs.write_atomic(folder / "sweep.json", json.dumps(list(configs)).encode())


def finish(folder: Path, console: Console) -> dict[str, str]:
    """Run what is left of a sweep; return why runs stopped early, by name."""
    names = json.loads((folder / "sweep.json").read_text())
    experiments = _experiments(folder, names)
    stopped: dict[str, str] = {}
    with _progress(console) as progress:
        total = sum(e.config.rounds for e in experiments.values())
        task = progress.add_task(f"{len(names)} runs", total=total)
        side_by_side(
            {folder / name: experiment for name, experiment in experiments.items()},
            lambda _, rounds: progress.advance(task, rounds),
            lambda path, why: stopped.update({path.name: why}),
        )
    return stopped


def side_by_side(
    experiments: Mapping[Path, Experiment],
    advanced: Callable[[Path, int], None],
    stopped: Callable[[Path, str], None],
) -> None:
    """Run, or go on with, the run in every folder, as many at a time as there are cores.

    Each run has one thread, so that the cores are filled by independent runs, and all share
    one copy of the data and its compiled programs. ``advanced`` hears of rounds that are done,
    on the threads of the runs, and ``stopped`` of runs that end early, and why.
    """
    # Runs that begin together compile the same programs, and one may find what another is just
    # writing to JAX's cache on disk. JAX then compiles it itself; nothing to tell the user.
    warnings.filterwarnings("ignore", message="Error reading persistent compilation cache")
    stop = threading.Event()
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="run") as pool:
        futures = {
            pool.submit(_run, path, experiment, _Tick(path, advanced, stop)): path
            for path, experiment in experiments.items()
        }
        try:
            for future in as_completed(futures):
                error = future.exception()
                if isinstance(error, FedMomError):
                    stopped(futures[future], str(error))
                elif error is not None:
                    raise error
        except BaseException:
            stop.set()  # every run ends after its round, with its checkpoint written
            pool.shutdown(cancel_futures=True)
            raise


def summary(folder: Path, stopped: Mapping[str, str]) -> tuple[Table, Path]:
    """Return the sweep as a table, best first, seeds taken together, and write it as CSV."""
    names = json.loads((folder / "sweep.json").read_text())
    groups: dict[str, list[report.Curves]] = {}
    for name in names:
        config = RunFolder.open(folder / name).settings()
        label = _group(name, config.seed)
        groups.setdefault(label, []).append(report.read(folder / name, name, stopped.get(name, "")))
    rows = sorted((_row(label, curves) for label, curves in groups.items()), key=lambda r: -r[3])
    columns = ("runs", "seeds", "train loss", "test accuracy", "spread", "best", "stopped")
    cells = [
        (label, str(seeds), *(f"{v:.3f}" for v in numbers), str(early or ""))
        for label, seeds, *numbers, early in rows
    ]
    file = io.StringIO()
    csv.writer(file).writerows([columns, *rows])
    runs.write_atomic(folder / "sweep.csv", file.getvalue().encode())
    return report.shown(columns, cells), folder / "sweep.csv"


class _Tick:
    """Tells of every round that is done, and ends its run when all are to stop."""

    def __init__(
        self, path: Path, advanced: Callable[[Path, int], None], stop: threading.Event
    ) -> None:
        self._path, self._advanced, self._stop = path, advanced, stop

    def begin(self, _experiment: Experiment, round_: int) -> None:
        self._advanced(self._path, round_)

    def round(self, _record: Record) -> None:
        self._advanced(self._path, 1)
        if self._stop.is_set():
            raise KeyboardInterrupt

    def evaluated(self, rows: list[dict[str, Any]]) -> None:
        """Nothing to show: the table comes at the end."""


def _experiments(folder: Path, names: Iterable[str]) -> dict[str, Experiment]:
    loaded = Loaded()
    opened = {name: RunFolder.open(folder / name) for name in names}
    return {name: run.experiment(loaded[run.settings().data]) for name, run in opened.items()}


class Loaded(dict[str, FederatedData]):
    """Datasets by their spec, each loaded once."""

    def __missing__(self, spec: str) -> FederatedData:
        self[spec] = datasets.load(spec)
        return self[spec]


def _run(path: Path, experiment: Experiment, tick: _Tick) -> None:
    runs.execute(RunFolder.open(path), experiment, [tick], workers=1)


def _progress(console: Console) -> Progress:
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(
        *columns,
        TextColumn("rounds"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _row(
    label: str, curves: list[report.Curves]
) -> tuple[str, int, float, float, float, float, int]:
    """Means over seeds of the last evaluation, its spread, and the best accuracy on the way."""
    accuracy = [c.of("test", "accuracy")[1][-1] for c in curves]
    loss = [c.of("train", "loss")[1][-1] for c in curves]
    best = [max(c.of("test", "accuracy")[1]) for c in curves]
    return (
        label,
        len(curves),
        statistics.fmean(loss),
        statistics.fmean(accuracy),
        statistics.pstdev(accuracy),
        statistics.fmean(best),
        sum(bool(c.stopped) for c in curves),
    )


def _name(chosen: Mapping[str, Any]) -> str:
    """Return a run's name, which is its folder: algorithm-lr0.1-seed2."""
    parts = [str(v) if k == "algorithm" else f"{k}{v}" for k, v in chosen.items()]
    text = "_".join(parts) or "run"
    return "".join(c if c.isalnum() or c in "-_.=" else "-" for c in text)


def _group(name: str, seed: int) -> str:
    """Return a run's name without its seed."""
    return "_".join(p for p in name.split("_") if p != f"seed{seed}") or "run"
