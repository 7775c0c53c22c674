"""Settings that an algorithm or rule decides: what the record says in their place.

``server-lr = "fedmom(learning_rate=1.0, momentum=0.9)@algorithm"`` says what the algorithm's server
is. The text is for readers: the part itself is the algorithm's.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import optax

from fedmom.algorithms import named as algorithms
from fedmom.algorithms.base import Algorithm, Rule
from fedmom.algorithms.local_work import LocalWork
from fedmom.algorithms.trial import try_weights
from fedmom.core.errors import FedMomError
from fedmom.core.identity import given_name, label
from fedmom.core.registry import joined
from fedmom.core.types import Weighting
from fedmom.experiments.settings import RunConfig

BY_ALGORITHM = "@algorithm"  # the end of a setting that is the algorithm's own
PARTS = (  # of an algorithm, in the order in which they are told
    *("server-lr", "weighting", "aggregate", "solver", "lr", "local-steps", "local-epochs"),
    *("batch-size", "batches", "prox"),
)
LETTERS = 160  # of a text
DEPTH = 6  # of functions in functions
_SAMPLES = np.array([1, 3, 10, 40, 200, 1000, 20_000, 1_000_000])  # a rule may cap or round them


def is_decided(value: Any) -> bool:
    """Return whether a setting is a text about a part of the algorithm."""
    return isinstance(value, str) and value.endswith(BY_ALGORITHM)


def settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that the algorithm and the rule decide, as the record has them."""
    made = algorithms.made(config.algorithm)
    found: dict[str, Any] = {}
    if not has_rate(config.algorithm):
        found["server_lr"] = _told(made.server)
    if made.work is not None and not takes_lr(config.algorithm):
        found |= of_work(made.work)
    elif made.work is not None and made.work.batch_size is None:  # FedSGD
        found["batch_size"] = "all"
    elif made.work is not None:
        found |= {name: value for name, value in of_work(made.work).items() if name != "lr"}
    if made.stages or made.rule:
        parts = [_told(part) for part in (*made.stages, made.rule) if part is not None]
        own = own_aggregate(config.aggregate)
        found["aggregate"] = "+".join([*parts, *([own] if own != algorithms.MEAN else [])])
        if made.rule is None and own == algorithms.MEAN:
            found["aggregate"] += f"+{own}"
    return {**found, "weighting": weighting_of(rule(config))}


def rule(config: RunConfig) -> Rule:
    """Return the rule that the settings mean."""
    method = algorithms.algorithm(
        config.algorithm,
        aggregate=own_aggregate(config.aggregate),
        weighting=asked_weighting(config),
    )
    assert method.rule is not None
    try_weights(method.rule)
    return method.rule


def asked_weighting(config: RunConfig) -> Weighting:
    """Return the weighting that a rule is made with, which one with its own need not follow."""
    return "population" if config.weighting == "own" else config.weighting


def own_aggregate(spec: str) -> str:
    """Return stages and rule without those of the algorithm."""
    parts = [part for part in joined(spec) if not is_decided(part)]
    return "+".join(parts) or algorithms.MEAN


def of_work(work: LocalWork) -> dict[str, Any]:
    """Return the settings that say what an algorithm's own work does."""
    return {
        "lr": _amount(work.lr, float),
        "local_steps": _amount(work.steps, round),
        "local_epochs": _amount(work.epochs, float),
        "batches": work.batches,
        "prox": work.prox,
        "accumulate": work.accumulate,
        "batch_size": work.batch_size or "all",
        "solver": "sgd" if work.solver is optax.sgd else _told(work.solver),
    }


def parts(run: Mapping[str, str]) -> str:
    """Return what an algorithm that is an object consists of, as a text; "" for a named one.

    Args:
        run: The settings of a run, as texts.

    Examples:
        >>> parts({"algorithm": "algorithm@12345678", "server-lr": "fedmom@algorithm", "lr": "0.1"})
        'server-lr fedmom, lr 0.1'
    """
    if "@" not in run["algorithm"]:
        return ""
    found = (f"{name} {run[name]}" for name in PARTS if name in run)
    return ", ".join(found).replace(BY_ALGORITHM, "")


def _amount(value: Any, number: Callable[[Any], float]) -> Any:
    if value is None:
        return None
    return _told(value) if callable(value) else number(value)


def weighting_of(rule: Rule) -> str:
    """Return how a rule weighs, found by trying: a weighting's name, or "own".

    Examples:
        >>> from fedmom import mean, median
        >>> weighting_of(mean("cohort")), weighting_of(median()), weighting_of(Rule(np.sqrt))
        ('cohort', 'uniform', 'own')
    """
    weights = np.asarray(rule.weigh(_SAMPLES), float)
    by_samples = np.allclose(weights * _SAMPLES[0], weights[0] * _SAMPLES)
    alike = np.allclose(weights, weights[0])
    if is_mean(rule) and (by_samples or alike):
        return "uniform" if alike else "cohort"
    return "population" if by_samples and np.isclose(_sum(rule), 0.5) else "own"


def is_mean(rule: Rule) -> bool:
    """Return whether a rule's weights add up to one over the replies, whoever they are."""
    return rule.needs == "each" or bool(np.isclose(_sum(rule), 1.0))


def _sum(rule: Rule) -> float:
    """Return what the weights add up to, over replies with half of the population's samples."""
    total = float(np.sum(rule.weigh(_SAMPLES)))
    return rule.scale(total, 2 * int(_SAMPLES.sum())) * total


def server_lr(config: RunConfig, clients: int) -> float:
    """Return the algorithm's own η if it has one, else the one that the rule's weights ask for."""
    own = algorithms.default_of(config.algorithm, "learning_rate")
    if own is not None and own != 1.0:
        return float(own)
    found = rule(config)
    if is_mean(found):
        return 1.0
    if weighting_of(found) == "population":
        return clients / config.clients_per_round
    raise FedMomError(
        f"aggregate {config.aggregate} has weights of its own that do not add up to one, so no"
        " server-lr follows from them. Give server-lr."
    )


def takes_lr(algorithm: str) -> bool:
    """Whether an algorithm that brings its own local work takes γ from the settings."""
    return algorithms.default_of(algorithm, "lr") is not None


def has_rate(algorithm: str) -> bool:
    """Whether an algorithm is made for a server step size; an object is made already."""
    return algorithms.default_of(algorithm, "learning_rate") is not None


def _told(part: Any) -> str:
    """Return what a part of an algorithm is, with its numbers, as a setting's text."""
    numbers = dict.fromkeys(_numbers(part, DEPTH))
    text = ", ".join(f"{name}={value}" for name, value in numbers)
    text = re.sub(r"[^\w.,=()\[\] +-]", "", text)[:LETTERS]
    return f"{given_name(part) or _name(part)}{f'({text})' if text else ''}{BY_ALGORITHM}"


def _name(part: Any) -> str:
    """Return what a part is called; of one made by a function of optax, the function's name."""
    if isinstance(name := getattr(part, "name", None), str):
        return re.sub(r"\W+", "_", name)
    made_by = part[-1] if isinstance(part, optax.GradientTransformation) else part
    where = getattr(made_by, "__qualname__", "")
    return where.partition(".<locals>")[0] if ".<locals>" in where else label(part)


def _numbers(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the numbers and texts that functions have closed over, by name."""
    inside = value if isinstance(value, tuple) else [value]
    for function in inside if depth else ():
        if isinstance(function, tuple):
            yield from _numbers(function, depth - 1)
        cells = getattr(function, "__closure__", None) or ()
        names = function.__code__.co_freevars if cells else ()
        for name, cell in zip(names, cells, strict=True):
            content = getattr(cell, "cell_contents", None)
            plain = content if isinstance(content, tuple) else (content,)
            if plain and all(isinstance(each, int | float | str) for each in plain):
                yield name, content
            elif not isinstance(content, Algorithm):
                yield from _numbers(content, depth - 1)
