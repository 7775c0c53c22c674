"""Several algorithms on one task: from the same model, on the same cohorts and batches."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from fedmom.core.errors import FedMomError
from fedmom.core.files import write_atomic
from fedmom.experiments.build import Experiment, Loaded, prepare
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.results import Result, read_names
from fedmom.experiments.settings import RunConfig

LIST = "compare.json"
Run = Callable[[RunFolder, Experiment, str], Result]


def create(folder: Path, configs: Mapping[str, RunConfig], list_name: str) -> dict[str, Experiment]:
    """Make the folder of a comparison or sweep, with a folder for every run of it.

    Args:
        folder: The new folder.
        configs: The runs' settings by name.
        list_name: The file that lists the runs, ``compare.json`` or ``sweep.json``.

    Returns:
        The experiments, by name.
    """
    if (folder / list_name).exists():
        raise FedMomError(
            f"{folder} already holds runs. Go on with them (fedmom resume {folder}), or choose"
            " another --out."
        )
    loaded = Loaded()
    experiments = {name: prepare(config, loaded[config.data]) for name, config in configs.items()}
    for name, experiment in experiments.items():
        RunFolder.create(folder / name, experiment.config)
    write_atomic(folder / list_name, json.dumps(list(configs)).encode())
    return experiments


def reopen(folder: Path, list_name: str) -> dict[str, Experiment]:
    """Return the experiments of a comparison or sweep that was started before."""
    loaded = Loaded()
    configs = {
        name: RunFolder.open(folder / name).settings() for name in read_names(folder / list_name)
    }
    return {name: prepare(config, loaded[config.data]) for name, config in configs.items()}


def compare(folder: Path, experiments: Mapping[str, Experiment], run: Run) -> dict[str, Result]:
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
