"""Lets Python objects stand where settings expect names.

A run's settings are texts, so that a folder says what it holds. An object gets a row in the table
that its name would be looked up in, and the folder says ``model = "CNN@1f2e3d4c"``, where the
digits are the object's fingerprint: another process can resume the run with an equal object. One
that the user has named is ``lr = "my-schedule@named"``. A function that can be imported is named by
its place, ``@my_nets.cnn``, and is found without help.
"""

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmom.algorithms import ALGORITHMS, ATTACKS, RULES, SCHEDULES, SOLVERS, STAGES
from fedmom.algorithms.torch_solvers import spec_of
from fedmom.core.arguments import short, takes
from fedmom.core.errors import FedMomError
from fedmom.core.files import slug
from fedmom.core.identity import (
    UnidentifiedError,
    fingerprint,
    given_name,
    has_changed,
    importable,
    label,
)
from fedmom.core.name_caches import forget, forget_programs
from fedmom.core.registry import NAMED, Registry, is_object
from fedmom.core.user_code import parts as user_code_of
from fedmom.data import DATASETS
from fedmom.data.federated import FederatedData
from fedmom.data.summary import facts
from fedmom.experiments.decided import is_decided
from fedmom.experiments.settings import RunConfig, kebab
from fedmom.models import ADAPTATIONS, MODELS
from fedmom.runtimes import RUNTIMES
from fedmom.training import PACES, SAMPLERS
from fedmom.world import WORLDS

PLAIN = (str, int, float, np.number)


def named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with a name for every object in them.

    Args:
        settings: Settings by name; names may have _ or -.

    Returns:
        The same settings as texts and numbers, under the names of files and options.

    Examples:
        >>> import optax
        >>> found = named({"rounds": 5, "algorithm": optax.adam(0.01)})
        >>> found["rounds"], found["algorithm"].partition("@")[0]
        (5, 'optax')
    """
    return {kebab(key): _named(kebab(key), v) for key, v in settings.items() if v is not None}


def _named(key: str, value: Any) -> Any:
    naming = _NAMING.get(key.replace("-", "_"))
    if isinstance(value, np.bool_):
        value = bool(value)
    if isinstance(value, PLAIN):
        return value
    if naming is None:
        if key.replace("-", "_") in RunConfig.model_fields:
            raise FedMomError(f"{key} is {short(value)}. It must be a text or a number.")
        return value
    try:
        return naming[0](value)
    except UnidentifiedError as error:
        raise FedMomError(f"{key} cannot be known again: {error}") from None


def _row(table: Registry, word: str, value: Any, function: Callable[..., Any]) -> str:
    """Name an object as the user has named it, or by its fingerprint."""
    if name := given_name(value):
        return table.adopt(name, NAMED, function)
    if has_changed(value):
        forget_programs()
    return table.adopt(word, fingerprint(value), function)


def user_functions(settings: Mapping[str, Any]) -> list[Callable[..., Any]]:
    """Import the function behind every ``@module.function`` in settings, as it is by now.

    That of data is left out: its content is known.
    """
    found = [
        _NAMING[name][1][0].find(spec)
        for name in sorted(_NAMING.keys() - {"data", "runtime"})
        for spec in str(settings.get(name, "")).split("+")
        if spec.startswith("@")
    ]
    with contextlib.suppress(UnidentifiedError):
        if any(has_changed(function) for function in found):
            forget()
            forget_programs()
    return found


def user_code(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of the code behind every ``@module.function`` in settings, by name."""
    found: dict[str, str] = {}
    for function in user_functions(settings):
        found |= user_code_of(function)
    return dict(sorted(found.items()))


def missing(settings: Mapping[str, Any], given: Iterable[str]) -> dict[str, str]:
    """Return the settings that name objects of another process, but for those given now."""
    return {
        name: value
        for name, value in settings.items()
        if name in _NAMING.keys() - set(given) and isinstance(value, str)
        for part in value.split("+")
        if is_object(part)
        and not is_decided(part)
        and not any(part.partition(":")[0] in t for t in _NAMING[name][1])
    }


def _function(table: Registry, value: Any) -> str:
    """Name a function that is like those of a table's rows."""
    if not callable(value):
        raise FedMomError(
            f"{kebab(table.what)} is {short(value)}. Give a name (`fedmom list` shows them) or a"
            " function like those that CONTRIBUTING.md shows."
        )
    table.check_function(label(value), value)
    place = None if given_name(value) else importable(value)
    return f"@{place}" if place else _row(table, label(value), value, value)


def _data(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    if inspect.isroutine(value):
        return _function(DATASETS, value)
    if not isinstance(value, FederatedData):
        raise FedMomError(
            f"data is {short(value)}. Give a dataset's name, a path, or what fedmom.from_arrays and"
            " its like return."
        )
    held = weakref.ref(value)  # a table that kept it would keep its memory for good

    def again() -> FederatedData:
        if (data := held()) is None:
            raise FedMomError(f"The data {value_name!r} is no longer there. Give it again.")
        return data

    value_name = given_name(value) or slug(value.name, keep="-_")
    return DATASETS.adopt(value_name, NAMED if given_name(value) else facts(value)["sha256"], again)


def _model(value: Any) -> str:
    from fedmom.models.base import Model

    if inspect.isroutine(value):
        return _function(MODELS, value)
    # A net of PyTorch, flax, equinox or haiku becomes a model once the data is known.
    name = "model" if isinstance(value, Model) else label(value)
    return _row(MODELS, name, value, lambda _features: value)


def _solver(value: Any) -> str:
    return spec_of(value) or _function(SOLVERS, value)


def _algorithm(value: Any) -> str:
    import optax

    from fedmom.algorithms.base import Algorithm, Server

    if not isinstance(value, Algorithm | Server | optax.GradientTransformation):
        _refuse_uncalled(value)
        return _function(ALGORITHMS, value)
    name = "optax" if isinstance(value, optax.GradientTransformation) else label(value).lower()
    return _row(ALGORITHMS, name, value, lambda: value)


def _refuse_uncalled(value: Any) -> None:
    """Refuse a function that needs arguments, such as ``optax.adam`` in place of optax.adam(0.01).

    A row's function is called with options only, or with a step size that has a default.
    """
    if not callable(value) or takes(value, 0):
        return
    if isinstance(value, type):
        raise FedMomError(f"algorithm is {short(value)}. Give a name, a function or an object.")
    needed = [
        name
        for name, p in inspect.signature(value).parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if needed:
        called = getattr(value, "__name__", "function")
        raise FedMomError(
            f"The algorithm {called} is a function that needs {', '.join(needed)}. Call it:"
            f" {called}(...), or give those parameters defaults."
        )


def _schedule(name: str, value: Any) -> str:
    if not callable(value) or not takes(value, 1):
        raise FedMomError(
            f"{kebab(name)} is {short(value)}. Give a number, a schedule's name or a function of"
            " the round."
        )
    return _row(SCHEDULES, label(value), value, lambda: value)


def _attack(value: Any) -> str:
    from fedmom.algorithms.base import Attack

    if isinstance(value, Attack):
        return _row(ATTACKS, value.name, value, lambda: value)
    return _function(ATTACKS, value)


def _aggregate(value: Any) -> str:
    """Name stages and a rule, one of them or a list."""
    from fedmom.algorithms.base import Rule, Stage

    if isinstance(value, str):
        return value
    if isinstance(value, Rule):
        return _row(RULES, "rule", value, lambda _weighting: value)
    if isinstance(value, Stage):
        return _row(STAGES, "stage", value, lambda: value)
    if isinstance(value, Sequence) and len(value):
        return "+".join(map(_aggregate, value))
    raise FedMomError(f"aggregate is {short(value)}. Give stages and a rule.")


def _world(value: Any) -> str:
    """Name the parts of a world, one of them or a list."""
    from fedmom.world.base import World

    if isinstance(value, str):
        return value
    if isinstance(value, World):
        return _row(WORLDS, value.name, value, lambda: value)
    if isinstance(value, Sequence) and len(value):
        return "+".join(map(_world, value))
    if callable(value):
        return _function(WORLDS, value)
    raise FedMomError(f"world is {short(value)}. Give the parts of a world.")


# How an object becomes the name of a setting, and the tables that the name may be in.
_NAMING: dict[str, tuple[Callable[[Any], str], tuple[Registry, ...]]] = {
    "data": (_data, (DATASETS,)),
    "model": (_model, (MODELS,)),
    "algorithm": (_algorithm, (ALGORITHMS,)),
    "adapt": (functools.partial(_function, ADAPTATIONS), (ADAPTATIONS,)),
    "aggregate": (_aggregate, (RULES, STAGES)),
    "attack": (_attack, (ATTACKS,)),
    "world": (_world, (WORLDS,)),
    **{
        table.what: (functools.partial(_function, table), (table,))
        for table in (SAMPLERS, PACES, RUNTIMES)
    },
    "solver": (_solver, (SOLVERS,)),
    **{
        name: (functools.partial(_schedule, name), (SCHEDULES,))
        for name in ("lr", "server_lr", "local_steps", "local_epochs")
    },
}
