"""Step sizes and local work that change over rounds: functions of t = 0, 1, 2, ..."""

import jax.numpy as jnp
import optax

from fedmom.algorithms import SCHEDULES
from fedmom.core.errors import FedMomError
from fedmom.core.identity import label
from fedmom.core.name_caches import cached_by_name
from fedmom.core.registry import split
from fedmom.core.tracing import one_number
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
    what = f"The schedule {label(value)} returns, for round {round_} (counted from 0),"
    found = value(round_)
    one_number(what, found)
    if not float(found) >= 0:
        raise FedMomError(f"{what} {float(found):g}. It must be at least 0.")
    return float(found)


def _positive(spec: str, key: str, text: str) -> None:
    try:
        ok = float(text) > 0 or (key == "end" and float(text) == 0)
    except ValueError:
        return  # not a number: the schedule's own types refuse it
    if not ok:
        raise FedMomError(f"{spec}: {key}={text} must be greater than 0.")
