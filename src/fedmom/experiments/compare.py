"""Several algorithms on one task: from the same model, on the same cohorts and batches."""

import contextlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.files import parse_json, slug, write_atomic
from fedmom.experiments import settings
from fedmom.experiments.build import Experiment, Loaded, fitting, prepare
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.results import COMPARE_LIST, LISTS, Result, check_names, read_names
from fedmom.experiments.settings import RunConfig

LIST = COMPARE_LIST
UNDER_WAY = "creation.json"  # what the folder is to hold, while it is being made
Runner = Callable[[RunFolder, Experiment, str], Result]


def configs(
    values: Mapping[str, Any], algorithms: Sequence[str], seeds: int = 1
) -> dict[str, RunConfig]:
    """Return the settings of every run of a comparison, by the run's name.

    Args:
        values: The settings that all share; what an algorithm has no use for is left out.
        algorithms: The algorithms, with their options.
        seeds: How many seeds each algorithm has, counted from that of ``values`` on.

    Examples:
        >>> list(configs({"seed": 4}, ["fedavg", "fedmom"], seeds=2))
        ['fedavg_seed4', 'fedavg_seed5', 'fedmom_seed4', 'fedmom_seed5']
    """
    if seeds < 1:
        raise FedMomError(f"--seeds {seeds} must be a whole number of 1 or more. Give 10, say.")
    found = {}
    for algorithm in algorithms:
        own = fitting({**values, "algorithm": algorithm})
        first = settings.parse(own)
        if seeds == 1:
            found[slug(algorithm)] = first
            continue
        for seed in range(first.seed, first.seed + seeds):
            found[f"{slug(algorithm)}_seed{seed}"] = settings.parse({**own, "seed": seed})
    return found


def create(folder: Path, configs: Mapping[str, RunConfig], list_name: str) -> dict[str, Experiment]:
    """Make the folder of a comparison or sweep, with a folder for every run of it.

    Args:
        folder: The new folder.
        configs: The runs' settings by name.
        list_name: The file that lists the runs, ``compare.json`` or ``sweep.json``.

    Returns:
        The experiments, by name.
    """
    if any((folder / name).exists() for name in (list_name, UNDER_WAY)):
        raise FedMomError(
            f"{folder} already holds runs. Go on with them (fedmom resume {folder}), or choose"
            " another --out."
        )
    loaded = Loaded()
    experiments = {name: prepare(config, loaded[config.data]) for name, config in configs.items()}
    for name in experiments:
        RunFolder.check_free(folder / name)
    _make_folder(folder)
    plan = {
        "list": list_name,
        "runs": {name: tomllib.loads(e.config.toml()) for name, e in experiments.items()},
    }
    write_atomic(folder / UNDER_WAY, json.dumps(plan).encode())
    finish_creation(folder)
    return experiments


def _make_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise FedMomError(f"{folder} is a file. Choose another --out.")
    folder.mkdir(parents=True, exist_ok=True)


def finish_creation(folder: Path) -> None:
    """Make what is still missing of a folder whose creation was begun, and maybe killed.

    What is to be made is written down first, so that a kill at any moment leaves a folder that
    can be gone on with.
    """
    file = folder / UNDER_WAY
    if not file.exists():
        return
    try:
        found = parse_json(file.read_bytes())
        list_name, runs = str(found["list"]), dict(found["runs"])
    except (ValueError, KeyError, TypeError):
        raise FedMomError(f"{file} is damaged. Remove {folder}, and start again.") from None
    check_names(file, [list_name, *runs])  # plain names: nothing is made elsewhere
    if list_name not in LISTS:  # or another file would be written over
        raise FedMomError(f"{file} is damaged. Remove {folder}, and start again.")
    for name, values in runs.items():
        if not (folder / name / "config.toml").exists():
            RunFolder.create(folder / name, settings.parse(values))
    write_atomic(folder / list_name, json.dumps(list(runs)).encode())
    file.unlink()


def remove_untouched(folder: Path, names: Iterable[str], list_name: str) -> None:
    """Remove the folder of runs that were refused before any of them began."""
    runs = [RunFolder(folder / name) for name in names]
    if all(run.is_untouched() for run in runs):
        for run in runs:
            run.remove_untouched()
        (folder / list_name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it has files of somebody else's
            folder.rmdir()


def reopen(folder: Path, list_name: str) -> dict[str, Experiment]:
    """Return the experiments of a comparison or sweep that was started before."""
    loaded = Loaded()
    configs = {
        name: RunFolder.open(folder / name).settings() for name in read_names(folder / list_name)
    }
    return {name: prepare(config, loaded[config.data]) for name, config in configs.items()}


def compare(folder: Path, experiments: Mapping[str, Experiment], run: Runner) -> dict[str, Result]:
    """Run, or go on with, one algorithm after another. One that diverges does not stop the rest.

    Args:
        folder: The comparison's folder.
        experiments: What to run, by name.
        run: What runs one of them, with the progress that the caller wants.

    Returns:
        The results, by name.
    """
    return {
        name: run(RunFolder.open(folder / name), experiment, name)
        for name, experiment in experiments.items()
    }
