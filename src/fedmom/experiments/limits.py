"""What a run's numbers may reach: schedules over all of its rounds, local steps, batches."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms import SCHEDULES, schedules
from fedmom.algorithms.local_work import LocalWork
from fedmom.core.errors import FedMomError
from fedmom.core.registry import options, options_of
from fedmom.core.validation import MOST, check_memory
from fedmom.data.federated import FederatedData
from fedmom.experiments.settings import AUTO, RunConfig, kebab

LOOKS = 12  # rounds between the first and the last in which a schedule is looked at
OVER_ROUNDS = ("lr", "server_lr", "local_steps", "local_epochs")


def check(config: RunConfig, work: LocalWork, data: FederatedData) -> None:
    """Refuse a run whose numbers will leave what can be computed, before it has a folder.

    Args:
        config: The settings, with nothing left open.
        work: The local work they mean.
        data: The population.
    """
    for name in OVER_ROUNDS:
        value = getattr(config, name)
        if isinstance(value, str) and value != AUTO:
            _check_schedule(f"{kebab(name)} {value}", value, config.rounds)
    _check_steps(config, work, data.train.size)
    if work.batch_size is not None:
        values = math.prod(data.features.shape)
        check_memory(
            f"batch-size {work.batch_size}", 4 * values * work.batch_size, "Take a smaller one."
        )


def _check_schedule(what: str, spec: str, rounds: int) -> None:
    schedule = schedules.parse(spec)
    least = 0 if _ends_in_zero(spec) else math.ulp(0)
    for t in _looked_at(rounds):
        value = schedules.at(schedule, t)
        if not least <= value < math.inf:
            raise FedMomError(
                f"{what} is {value:g} in round {t + 1} of {rounds}; it must stay a number greater"
                " than 0. Give it a milder rate, or the run fewer rounds."
            )


def _ends_in_zero(spec: str) -> bool:
    """Tell whether a schedule is one that is meant to come down to 0, such as a cosine."""
    function = SCHEDULES.find(spec)
    default = options_of(function).get("end")
    return default is not None and options(function, spec).get("end", default.default) == 0


def _check_steps(config: RunConfig, work: LocalWork, samples: NDArray[np.int64]) -> None:
    """Refuse more local steps than a program can count, of the client with the most samples."""
    amount = work.steps if work.steps is not None else work.epochs
    name = "local-steps" if work.steps is not None else "local-epochs"
    assert amount is not None
    batches = 1 if work.steps is not None else _per_epoch(work, int(samples.max()))
    for t in _looked_at(config.rounds) if callable(amount) else (0,):
        steps = schedules.at(amount, t) * batches
        if steps > MOST:
            raise FedMomError(
                f"{name} {getattr(config, name.replace('-', '_'))} means {steps:.3g} local steps in"
                f" round {t + 1}, more than the {MOST:,} that can be counted. Take fewer."
            )


def _per_epoch(work: LocalWork, samples: int) -> int:
    return 1 if work.batch_size is None else math.ceil(samples / work.batch_size)


def _looked_at(rounds: int) -> Iterator[int]:
    """Yield the first round, the last and some between, counted from 0."""
    yield from sorted({int(t) for t in np.linspace(0, rounds - 1, LOOKS + 2)})
