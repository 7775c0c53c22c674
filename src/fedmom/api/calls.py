"""Whole experiments in one call each: run, compare, sweep, load, report."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedmom.api.execution import finish, finish_all
from fedmom.api.runs import Run, Runs, write_report
from fedmom.core.compilation import keep_programs
from fedmom.core.errors import FedMomError
from fedmom.core.files import free_folder, removed_if_refused
from fedmom.experiments import compare as comparisons
from fedmom.experiments import objects, results
from fedmom.experiments import settings as schema
from fedmom.experiments import sweep as sweeps
from fedmom.experiments.build import prepare
from fedmom.experiments.execute import Callback
from fedmom.experiments.folder import RunFolder

Place = str | Path


def run(
    data: Any = "shakespeare",
    model: Any = "auto",
    algorithm: Any = "fedmom",
    *,
    rounds: int = 100,
    out: Place | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Run:
    """Train one model with one algorithm, in a run folder.

    Args:
        data: A dataset's name with options, a path, or a ``FederatedData``.
        model: A model's name with options, a ``fedmom.Model`` or a function of
            ``data.features`` that returns one; "auto" takes one that fits the data.
        algorithm: A name with options, an ``Algorithm``, an optax transformation, or a function
            as in ``CONTRIBUTING.md``.
        rounds: Communication rounds, T.
        out: The run's new folder; by default one below ``runs``.
        progress: Show a progress bar.
        callbacks: Functions of a ``fedmom.Event``, called after every round. One that returns a
            text ends the run there, for that reason.
        **settings: All other settings of ``fedmom run --help``, with _ for -: ``lr``,
            ``clients_per_round``, ``local_steps``, ``seed`` and so on. Where a name may stand,
            an object may: ``lr`` and ``server_lr`` take functions of the round, ``sampler`` one
            of (seed, round), ``solver`` one of lr, ``aggregate`` stages and a rule.

    Returns:
        The run.

    Raises:
        FedMomError: A setting is wrong; nothing was started.
        DivergedError: Training diverged; the rounds before are in the folder.

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
    experiment = prepare(schema.parse(_named(values)))
    config = experiment.config
    folder = Path(out) if out else free_folder(f"{config.data}-{config.algorithm}")
    created = RunFolder.create(folder, config)
    with removed_if_refused(created.remove_untouched):
        result = finish(folder, experiment, progress=progress, callbacks=callbacks)
    return Run(experiment, result)


def compare(
    algorithms: Sequence[Any] | Mapping[str, Any],
    *,
    data: Any = "shakespeare",
    seeds: int = 1,
    out: Place | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Runs:
    """Train with several algorithms, from the same model, on the same cohorts and batches.

    Args:
        algorithms: The algorithms, named or as objects; a mapping gives the runs' names.
        data: As for ``run``.
        seeds: Seeds of each algorithm, counted from ``seed`` on.
        out: The comparison's new folder; by default one below ``runs``.
        progress: Show a progress bar.
        callbacks: As for ``run``; they are called on the threads of the runs.
        **settings: The settings that all share, as for ``run``. What an algorithm has no use for
            is left out.

    Returns:
        The runs, by name.

    Examples:
        >>> import tempfile, optax, fedmom
        >>> runs = fedmom.compare(
        ...     {"avg": "fedavg", "adam": optax.adam(0.01)},
        ...     data="synthetic:clients=20",
        ...     weighting="cohort",
        ...     rounds=3,
        ...     lr=0.01,
        ...     out=tempfile.mkdtemp(),
        ...     progress=False,
        ... )
        >>> [(name, len(run.result.rounds)) for name, run in runs.items()]
        [('avg', 3), ('adam', 3)]
    """
    values = _named({"data": data, **settings})
    if isinstance(algorithms, str) or not algorithms:
        raise FedMomError(f"algorithms is {algorithms!r}. Give a list: ['fedavg', 'fedmom'].")
    if not isinstance(algorithms, Mapping):
        algorithms = {name: name for name in map(_algorithm, algorithms)}
    configs: dict[str, schema.RunConfig] = {}
    for name, algorithm in algorithms.items():
        own = comparisons.configs(values, [_algorithm(algorithm)], seeds)
        configs |= {f"{name}{_seed(key)}": config for key, config in own.items()}
    return _run_all(configs, comparisons.LIST, out, progress, callbacks)


def sweep(
    grid: Mapping[str, Sequence[Any]],
    *,
    data: Any = "shakespeare",
    out: Place | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Runs:
    """Run a grid of settings, as many at a time as there are cores.

    Args:
        grid: Settings to vary, each with its values, such as ``{"lr": [0.01, 0.1]}``.
        data: As for ``run``.
        out: The sweep's new folder; by default one below ``runs``.
        progress: Show a progress bar.
        callbacks: As for ``run``; they are called on the threads of the runs.
        **settings: The settings that all share, as for ``run``.

    Returns:
        The runs, by name.

    Examples:
        >>> import tempfile, fedmom
        >>> runs = fedmom.sweep(
        ...     {"lr": [0.001, 0.01]},
        ...     data="synthetic:clients=20",
        ...     rounds=2,
        ...     out=tempfile.mkdtemp(),
        ...     progress=False,
        ... )
        >>> list(runs)
        ['lr0.001', 'lr0.01']
    """
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise FedMomError(f"grid: {name} is {values!r}. Give a list of values: [{values!r}].")
    lists = {
        schema.kebab(name): [_named({name: value})[schema.kebab(name)] for value in values]
        for name, values in grid.items()
    }
    configs = sweeps.cells(_named({"data": data, **settings}), lists)
    return _run_all(configs, sweeps.LIST, out, progress, callbacks)


def load(folder: Place, **given: Any) -> Run | Runs:
    """Open the folder of a run, comparison or sweep.

    Args:
        folder: The folder.
        **given: The objects that the run was given in the place of names, under the names of
            their settings, such as ``model=net``. Each must be equal to what it was.

    Returns:
        The run; or the runs by name, of a comparison or a sweep.

    Raises:
        FedMomError: There is no run; or an object is missing, or not the one that it was.

    Examples:
        >>> import tempfile, fedmom
        >>> folder = tempfile.mkdtemp()
        >>> first = fedmom.run("synthetic:clients=4", rounds=2, out=folder, progress=False)
        >>> fedmom.load(folder).result.done
        2
    """
    path = Path(folder)
    keep_programs()
    comparisons.finish_creation(path)
    for name in (comparisons.LIST, sweeps.LIST):
        if (path / name).exists():
            found = {run: _opened(path / run, given) for run in results.read_names(path / name)}
            return Runs(path, found)
    return _opened(path, given)


def report(
    runs: Run | Runs | Place | Sequence[Run | Runs | Place],
    out: Place = "report.html",
    *,
    target: float | None = None,
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
    several = runs if isinstance(runs, list | tuple) else [runs]
    if not several:
        raise FedMomError("There is no run to report on. Give one, or its folder.")
    places = [each.path if isinstance(each, Run | Runs) else Path(str(each)) for each in several]
    return write_report(results.find(places), Path(out), target)


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as texts and numbers; objects get names."""
    keep_programs()
    return objects.named(values)


def _algorithm(value: Any) -> str:
    return str(_named({"algorithm": value})["algorithm"])


def _seed(key: str) -> str:
    """Return the end of a run's name that says its seed; nothing if there is one seed only."""
    _, mark, seed = key.rpartition("_seed")
    return f"_seed{seed}" if mark else ""


def _run_all(
    configs: Mapping[str, schema.RunConfig],
    list_name: str,
    out: Place | None,
    progress: bool,
    callbacks: Sequence[Callback],
) -> Runs:
    folder = Path(out) if out else free_folder(list_name.removesuffix(".json"))
    experiments = comparisons.create(folder, configs, list_name)
    remove = partial(comparisons.remove_untouched, folder, experiments, list_name)
    with removed_if_refused(remove):
        found = finish_all(folder, experiments, progress=progress, callbacks=callbacks)
    return Runs(folder, {name: Run(experiments[name], found[name]) for name in experiments})


def _opened(path: Path, given: Mapping[str, Any]) -> Run:
    """Return the run in a folder, once it has all objects that it was started with."""
    result = results.read(path)
    values = result.config.model_dump()
    for name, value in _named(given).items():
        before = values.get(name.replace("-", "_"))
        if before != value:
            raise FedMomError(
                f"{path} was started with {name} {before}, and this is {value}. Give the same"
                " object, or start a new run."
            )
    lost = objects.missing(values, given)
    if lost:
        wanted = ", ".join(f"{name}=..." for name in lost)
        named = " and ".join(f"{name} ({value})" for name, value in lost.items())
        raise FedMomError(
            f"{path} was started from Python, with objects for its {named}. Give them again:"
            f" fedmom.load({str(path)!r}, {wanted})."
        )
    return Run(prepare(result.config), result)
