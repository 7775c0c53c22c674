"""Step sizes and local work that change over rounds: functions of t = 0, 1, 2, ..."""

import math

import jax.numpy as jnp
import numpy as np
import optax

from fedmom.algorithms import SCHEDULES
from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.core.name_caches import cached_by_name
from fedmom.core.registry import split
from fedmom.core.types import Schedule


def linear(*, start: float, end: float, rounds: int) -> Schedule:
    """From start to end in equal steps over so many rounds, then end."""
    return optax.linear_schedule(start, end, rounds)


def cosine(*, start: float, rounds: int, end: float = 0.0) -> Schedule:
    """From start to end along half a cosine over so many rounds, then end."""
    return optax.cosine_decay_schedule(start, rounds, alpha=end / start)


def exponential(*, start: float, rate: float, rounds: int = 1) -> Schedule:
    """start * rate^(t / rounds)."""
    return optax.exponential_decay(start, transition_steps=rounds, decay_rate=rate)


def inverse(*, start: float, rounds: float = 1.0) -> Schedule:
    """start / (1 + t / rounds)."""
    return lambda t: start / (1 + t / rounds)


def inverse_sqrt(*, start: float, rounds: float = 1.0) -> Schedule:
    """start / sqrt(1 + t / rounds)."""
    return lambda t: start / jnp.sqrt(1 + t / rounds)


def step(*, start: float, rate: float, rounds: int) -> Schedule:
    """start, multiplied by rate after every so many rounds."""
    return optax.exponential_decay(start, rounds, rate, staircase=True)


@cached_by_name  # equal schedules are one object, so that runs share compiled programs
def parse(value: float | str) -> float | Schedule:
    """Return a number as it is, and the schedule that a text like cosine:start=1,rounds=9 means."""
    if not isinstance(value, str):
        return value
    for key, text in split(value)[1].items():
        _positive(value, key, text)
    schedule: Schedule = SCHEDULES.build(value)
    return schedule


def at(value: float | Schedule, round_: int) -> float:
    """Return the value in a round."""
    if not callable(value):
        return float(value)
    found = value(round_)
    try:
        number = float(found) if np.shape(found) == () else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise FedMomError(
            f"The schedule {getattr(value, '__name__', value)} returns {short(found)} for round"
            f" {round_}, counted from 0. It must return a number."
        )
    return number


def _positive(spec: str, key: str, text: str) -> None:
    try:
        ok = float(text) > 0 or (key == "end" and float(text) == 0)
    except ValueError:
        return  # not a number: the schedule's own types refuse it
    if not ok:
        raise FedMomError(f"{spec}: {key}={text} must be greater than 0.")
