"""Settings by name -> an algorithm. Equal settings give one object, whose programs runs share."""

from functools import partial
from typing import Any

import optax

from fedmom.algorithms import ALGORITHMS, ATTACKS, RULES, SOLVERS, STAGES, schedules
from fedmom.algorithms.base import Algorithm, Attack, Rule, Server, Stage
from fedmom.algorithms.local_work import Solver
from fedmom.algorithms.server import averaged
from fedmom.core.errors import FedMomError
from fedmom.core.name_caches import cached_by_name
from fedmom.core.registry import joined, options, parameters_of
from fedmom.core.types import Weighting

MEAN = "mean"


def default_of(spec: str, parameter: str) -> Any:
    """Return the default of a parameter such as ``momentum``; None where there is none."""
    parameters = parameters_of(ALGORITHMS.find(spec))
    return parameters[parameter].default if parameter in parameters else None


@cached_by_name
def algorithm(
    spec: str,
    server_lr: float | str = 1.0,
    momentum: float | None = None,
    average: float | None = None,
    aggregate: str = MEAN,
    weighting: Weighting = "population",
) -> Algorithm:
    """Return the algorithm that settings name.

    Args:
        spec: A name with options, such as ``fedadam:tau=0.01``.
        server_lr: η, a number or a schedule such as ``cosine:start=1,rounds=100``.
        momentum: β, where the algorithm has one; None takes its default.
        average: The decay of a mean of the models, or None.
        aggregate: Stages and a rule, joined by +, such as ``clip:norm=1+mean``.
        weighting: The weights of the rule.

    Returns:
        The algorithm.

    Examples:
        >>> algorithm("fedavg", aggregate="clip:norm=1+mean", weighting="cohort").rule.needs
        'sum'
    """
    own = made(spec, server_lr, momentum)
    server: Server | optax.GradientTransformation = own.server
    if average is not None:
        server = averaged(server, average)
    stages, rule = aggregation(aggregate, weighting)
    if own.rule is not None and (aggregate == MEAN or not names_rule(aggregate)):
        rule = own.rule
    return own._replace(server=server, rule=rule, stages=(*own.stages, *stages))


def made(spec: str, server_lr: float | str = 1.0, momentum: float | None = None) -> Algorithm:
    """Return the algorithm as its function makes it, with what it decides itself."""
    function = ALGORITHMS.find(spec)
    taken = parameters_of(function)
    named: dict[str, Any] = {}
    if "learning_rate" in taken:
        named["learning_rate"] = schedules.parse(server_lr)
    if "momentum" in taken and momentum is not None:
        named["momentum"] = momentum
    found = ALGORITHMS.call(spec, **named, **options(function, spec))
    if isinstance(found, Server | optax.GradientTransformation):
        return Algorithm(found)
    if not isinstance(found, Algorithm):
        raise FedMomError(
            f"{spec} returns a {type(found).__name__}. An algorithm is a fedmom.Algorithm, a Server"
            " or an optax optimizer."
        )
    return found


def names_rule(aggregate: str) -> bool:
    """Return whether the text of stages and a rule names a rule."""
    return joined(aggregate)[-1].partition(":")[0] in RULES


def aggregation(spec: str, weighting: Weighting) -> tuple[tuple[Stage, ...], Rule]:
    """Return the stages and the rule of a text such as ``clip:norm=1+trimmed_mean:share=0.2``."""
    *before, last = joined(spec)
    if last.partition(":")[0] in STAGES:
        before, last = [*before, last], MEAN
    for part in before:
        if part.partition(":")[0] in RULES:
            raise FedMomError(
                f"aggregate {spec!r}: {part} is a rule, and a rule comes last, after the stages."
            )
    return tuple(STAGES.build(part) for part in before), RULES.build(last, weighting)


@cached_by_name
def attack(spec: str) -> Attack:
    """Return the attack of a spec such as ``sign_flip:share=0.2``."""
    found: Attack = ATTACKS.build(spec)
    return found


@cached_by_name
def solver(spec: str) -> Solver:
    """Return the client optimizer of a spec such as ``sgd:momentum=0.9``: a function of lr."""
    function = SOLVERS.find(spec)
    given = options(function, spec)
    SOLVERS.call(spec, 0.1, **given)  # whether it works is told before the run has a folder
    return partial(function, **given)
