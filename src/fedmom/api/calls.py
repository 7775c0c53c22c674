"""Whole experiments in one call each: run, compare, sweep, resume, load, report."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from fedmom import data as datasets
from fedmom.api.runs import Run, Runs, write_report
from fedmom.core.arguments import checked
from fedmom.core.compilation import keep_programs
from fedmom.core.errors import FedMomError
from fedmom.core.files import (
    claimed,
    free_folder,
    inner_folder,
    removed_if_refused,
    user_place,
)
from fedmom.core.validation import Finite
from fedmom.data.federated import FederatedData
from fedmom.experiments import collection, object_names, results, run_lists
from fedmom.experiments import settings as schema
from fedmom.experiments.build import Experiment, prepare
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.observers import Observer
from fedmom.experiments.results import COMPARE_LIST, SWEEP_LIST
from fedmom.experiments.settings import RunConfig

Place = str | Path
Load = Callable[[str], FederatedData]


class ObjectsNeededError(FedMomError):
    """A run was started with objects, and is computed with without them. It ends in a call."""


@checked
def run(
    data: Any = "shakespeare",
    model: Any = "auto",
    algorithm: Any = "fedmom",
    *,
    rounds: int = 100,
    out: Place | None = None,
    overwrite: bool = False,
    progress: bool = True,
    callbacks: Sequence[Observer] = (),
    **settings: Any,
) -> Run:
    """Train one model with one algorithm, in a run folder.

    Args:
        data: A dataset's name with options, a path, or a ``FederatedData``.
        model: A model's name with options; a net of PyTorch, flax, equinox or haiku; a
            ``fedmom.Model``; or a function of ``data.features`` that returns a net or a model.
            "auto" takes one that fits the data.
        algorithm: A name with options, an ``Algorithm``, an optax transformation, or a function
            as in ``CONTRIBUTING.md``.
        rounds: Communication rounds, T.
        out: The run's new folder; by default one below ``runs``.
        overwrite: Remove the run that ``out`` holds. A folder with anything else is refused.
        progress: Show a progress bar.
        callbacks: Functions of a ``fedmom.Event``, called after every round. One that returns a
            text ends the run there, for that reason.
        **settings: All other settings of ``fedmom run --help``, with _ for -: ``lr``,
            ``clients_per_round``, ``local_steps``, ``seed`` and so on. Where a name may stand,
            an object may: ``lr`` and ``server_lr`` take functions of the round, ``sampler`` one
            of (seed, round_, size, samples), ``solver`` one of lr, ``aggregate`` stages and a rule.

    Returns:
        The run.

    Raises:
        FedMomError: A setting is wrong; nothing was started.
        DivergedError: Training diverged; the rounds before are in the folder.
        BadReplyError: A reply could not be used; the rounds before are in the folder.

    Examples:
        >>> import tempfile, fedmom
        >>> first = fedmom.run(
        ...     "synthetic:clients=20",
        ...     algorithm="fedavg",
        ...     rounds=5,
        ...     lr=0.01,
        ...     out=tempfile.mkdtemp(),
        ...     progress=False,
        ... )
        >>> first.result.last("test", "accuracy") > 0
        True
    """
    values = {"data": data, "model": model, "algorithm": algorithm, "rounds": rounds, **settings}
    with new_run(_named(values), out, overwrite) as created:
        return created.resume(progress=progress, callbacks=callbacks)


@checked
def compare(
    algorithms: Sequence[Any] | Mapping[str, Any] = run_lists.ALGORITHMS,
    *,
    seeds: int = 1,
    out: Place | None = None,
    overwrite: bool = False,
    progress: bool = True,
    callbacks: Sequence[Observer] = (),
    **settings: Any,
) -> Runs:
    """Train with several algorithms, from the same model, on the same cohorts and batches.

    Runs are side by side, as many at a time as there are cores.

    Args:
        algorithms: The algorithms, named or as objects; a mapping gives the runs' names.
        seeds: Seeds of each algorithm, counted from ``seed`` on.
        out: The comparison's new folder; by default one below ``runs``.
        overwrite: Remove the runs that ``out`` holds, as for ``run``.
        progress: Show a progress bar.
        callbacks: As for ``run``; they are called on the threads of the runs.
        **settings: The settings that all share, as for ``run``. What an algorithm has no use for
            is left out. By default those of ``fedmom compare``: 100 roles of Shakespeare's plays,
            100 rounds, evaluated every 10 on 2,000 samples.

    Returns:
        The runs, by name.

    Examples:
        >>> import tempfile, optax, fedmom
        >>> runs = fedmom.compare(
        ...     {"avg": "fedavg", "sgd": optax.sgd(1.0, momentum=0.5)},
        ...     data="synthetic:clients=20",
        ...     weighting="cohort",
        ...     rounds=3,
        ...     lr=0.01,
        ...     out=tempfile.mkdtemp(),
        ...     progress=False,
        ... )
        >>> [(name, len(run.result.rounds)) for name, run in runs.items()]
        [('avg', 3), ('sgd', 3)]
    """
    values = run_lists.DEFAULTS | _named(settings)
    if not len(algorithms):
        raise FedMomError("algorithms is empty. Give a list: ['fedavg', 'fedmom'].")
    if not isinstance(algorithms, Mapping):
        algorithms = run_lists.by_name(map(_algorithm, algorithms))
    specs = {name: _algorithm(algorithm) for name, algorithm in algorithms.items()}
    configs = run_lists.of_comparison(values, specs, seeds)
    with new_runs(configs, COMPARE_LIST, out, overwrite) as created:
        return created.resume(progress=progress, callbacks=callbacks)


@checked
def sweep(
    grid: Mapping[str, Sequence[Any]],
    *,
    data: Any = "shakespeare",
    out: Place | None = None,
    overwrite: bool = False,
    progress: bool = True,
    callbacks: Sequence[Observer] = (),
    **settings: Any,
) -> Runs:
    """Run a grid of settings, as many at a time as there are cores.

    Args:
        grid: Settings to vary, each with its values, such as ``{"lr": [0.01, 0.1]}``.
        data: As for ``run``.
        out: The sweep's new folder; by default one below ``runs``.
        overwrite: Remove the runs that ``out`` holds, as for ``run``.
        progress: Show a progress bar.
        callbacks: As for ``run``; they are called on the threads of the runs.
        **settings: The settings that all share, as for ``run``.

    Returns:
        The runs, by name.

    Examples:
        >>> import tempfile, fedmom
        >>> runs = fedmom.sweep(
        ...     {"lr": [0.0003, 0.001]},
        ...     data="synthetic:clients=20",
        ...     rounds=2,
        ...     out=tempfile.mkdtemp(),
        ...     progress=False,
        ... )
        >>> list(runs)
        ['lr0.0003', 'lr0.001']
    """
    if not grid:
        raise FedMomError("grid is empty. Give settings with values: {'lr': [0.01, 0.1]}.")
    lists = {
        schema.kebab(name): [_named({name: value})[schema.kebab(name)] for value in values]
        for name, values in grid.items()
    }
    configs = run_lists.of_sweep(_named({"data": data, **settings}), lists)
    with new_runs(configs, SWEEP_LIST, out, overwrite) as created:
        return created.resume(progress=progress, callbacks=callbacks)


@checked
def resume(
    folder: Place,
    *,
    progress: bool = True,
    callbacks: Sequence[Observer] = (),
    accept_changes: bool = False,
    runtime: str | None = None,
    **given: Any,
) -> Run | Runs:
    """Resume the run, comparison or sweep in a folder, until the last round.

    The result is the same as without the stop.

    Args:
        folder: The folder.
        progress: Show a progress bar.
        callbacks: As for ``run``.
        accept_changes: Resume although data or settings are no longer those that it was started
            with.
        runtime: Another runtime than that of the settings, this time.
        **given: Objects, as for ``load``.

    Returns:
        The run; or the runs by name, of a comparison or a sweep.

    Raises:
        FedMomError: It cannot be resumed, or ended early; as for ``run``.

    Examples:
        >>> import tempfile, fedmom
        >>> folder, two = tempfile.mkdtemp(), lambda event: event.round == 2
        >>> run = fedmom.run(
        ...     "synthetic:clients=4", rounds=3, out=folder, progress=False, callbacks=[two]
        ... )
        >>> run.status, fedmom.resume(folder, progress=False).status
        ('stopped', 'finished')
    """
    found = opened(user_place(folder, "folder"), given)
    return found.resume(
        progress=progress, callbacks=callbacks, accept_changes=accept_changes, runtime=runtime
    )


@checked
def load(folder: Place, **given: Any) -> Run | Runs:
    """Open the folder of a run, comparison or sweep.

    Results are read without data and objects; these are needed once something is computed.

    Args:
        folder: The folder.
        **given: The objects that the run was given instead of names, under the names of their
            settings, such as ``model=net``. Each must be equal to what it was.

    Returns:
        The run; or the runs by name, of a comparison or a sweep.

    Raises:
        FedMomError: There is no run; or an object is not the one that it was.

    Examples:
        >>> import tempfile, fedmom
        >>> folder = tempfile.mkdtemp()
        >>> first = fedmom.run("synthetic:clients=4", rounds=2, out=folder, progress=False)
        >>> fedmom.load(folder).result.done
        2
    """
    found = opened(user_place(folder, "folder"), given)
    for run in found.values() if isinstance(found, Runs) else [found]:
        run.result  # noqa: B018  # read now, so that what is damaged is refused here
    return found


@checked
def report(
    runs: Run | Runs | Place | Sequence[Run | Runs | Place],
    out: Place = "report.html",
    *,
    target: Finite | None = None,
) -> Path:
    """Write one page about runs, comparisons and sweeps, in any mix.

    Args:
        runs: Runs, or their folders; one or several.
        out: The page's file.
        target: The test accuracy to count rounds to; by default the best of the runner-up.

    Returns:
        The page's path.

    Examples:
        >>> import tempfile, fedmom
        >>> folder = tempfile.mkdtemp()
        >>> first = fedmom.run("synthetic:clients=4", rounds=2, out=folder, progress=False)
        >>> fedmom.report(first, f"{folder}/page.html").name
        'page.html'
    """
    several: Sequence[Any] = runs if isinstance(runs, list | tuple) else [runs]
    if not several:
        raise FedMomError("There is no run to report on. Give one, or its folder.")
    places = [
        each.path if isinstance(each, Run | Runs) else user_place(each, "runs") for each in several
    ]
    return write_report(places, user_place(out, "out"), target)


@contextlib.contextmanager
def new_run(values: Mapping[str, Any], out: Place | None, overwrite: bool = False) -> Iterator[Run]:
    """Make the folder of a run, and remove it again if the run is refused before it begins."""
    experiment = prepare(schema.parse(values))
    config = experiment.config
    name = f"{config.data}-{config.algorithm}"
    folder = free_folder(name) if out is None else user_place(out, "out")
    if overwrite:
        collection.remove(folder)
    with claimed(folder, RunFolder.check_free):
        created = RunFolder.create(folder, config)
        with removed_if_refused(created.remove_untouched):
            yield Run(folder, lambda: experiment)


@contextlib.contextmanager
def new_runs(
    configs: Mapping[str, RunConfig], list_name: str, out: Place | None, overwrite: bool = False
) -> Iterator[Runs]:
    """Make the folder of a comparison or sweep, as ``new_run`` does that of a run."""
    name = list_name.removesuffix(".json")
    folder = free_folder(name) if out is None else user_place(out, "out")
    with contextlib.ExitStack() as held:
        made = collection.create(folder, configs, list_name, overwrite=overwrite, held=held)
        remove = partial(collection.remove_untouched, folder, made, list_name)
        held.enter_context(removed_if_refused(remove))
        yield Runs(
            folder, {name: Run(folder / name, partial(made.__getitem__, name)) for name in made}
        )


def opened(folder: Path, given: Mapping[str, Any]) -> Run | Runs:
    """Return what is in a folder, of which nothing but settings is read yet."""
    collection.refuse_journal(folder)
    named, load_data = _named(given) if given else {}, cache(datasets.load)
    for list_name in results.LISTS:
        if os.path.lexists(folder / list_name):
            names = results.read_names(folder / list_name)
            return Runs(
                folder,
                {name: _opened(inner_folder(folder / name), named, load_data) for name in names},
            )
    return _opened(folder, named, load_data)


def _opened(path: Path, given: Mapping[str, Any], load_data: Load) -> Run:
    config = RunFolder.open(path).settings()
    before = config.model_dump(by_alias=True)
    for name, value in given.items():
        if before.get(name) != value:
            raise FedMomError(
                f"{path} was started with {name} {before.get(name)}, and this is {value}. Give the"
                " same object, or start a new run."
            )
    return Run(path, partial(_built, path, config, set(given), load_data))


def _built(path: Path, config: RunConfig, given: set[str], load_data: Load) -> Experiment:
    """Return the parts of a run that was started before, once it has all its objects."""
    keep_programs()
    lost = object_names.missing(config.model_dump(), given)
    if lost:
        wanted = ", ".join(f"{name}=..." for name in lost)
        named = " and ".join(f"{name} ({value})" for name, value in lost.items())
        raise ObjectsNeededError(
            f"{path} was started from Python, with objects for its {named}. Give them again:"
            f" fedmom.load({str(path)!r}, {wanted})."
        )
    return prepare(config, load_data(config.data))


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as texts and numbers; objects get names."""
    keep_programs()
    return object_names.named(values)


def _algorithm(value: Any) -> str:
    if value is None:
        raise FedMomError("algorithms has None. Give names, or objects as for fedmom.run.")
    return str(_named({"algorithm": value})["algorithm"])
