"""What devices send back, as the loop takes it: every number is looked at before it counts."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from flwr.app import RecordDict

from fedmom.core.types import Params
from fedmom.models.metrics import Metric
from fedmom.runtimes.base import Block, Clients
from fedmom.runtimes.devices import wire
from fedmom.runtimes.devices.link import Answered
from fedmom.runtimes.devices.wire import UnusableReplyError
from fedmom.runtimes.scoring import cap

Sums = dict[str, float | list[float]]  # by metric, over a client's samples


def block(client: int, round_: int, answered: Answered, form: Params) -> Block:
    """Return a reply as the loop takes it.

    Args:
        client: Who was asked.
        round_: The round.
        answered: What came back.
        form: The shapes and types of an update.

    Raises:
        UnusableReplyError: It is not what was asked for.
    """
    if answered.content is None:
        raise UnusableReplyError(answered.fault)
    update = wire.tree_of(answered.content, wire.UPDATE, form)
    samples = wire.number(answered.content, "samples", int)
    loss = wire.number(answered.content, "loss", float)
    if not 0 <= samples < 2**62:
        raise UnusableReplyError("it claims a number of samples that nobody has")
    return Block(
        clients=np.array([client]),
        update=jax.tree.map(lambda leaf: leaf[None], update),
        samples=np.array([samples]),
        metrics={"loss": np.array([loss], np.float32)},
        version=round_,
    )


def taken(sizes: Clients, budget: int | None) -> Clients:
    """Return how many of its samples every client evaluates."""
    return np.minimum(sizes, cap(sizes[sizes > 0], budget))


def all_sums(
    answered: Answered, takes: Mapping[str, Clients], client: int, metrics: Sequence[Metric]
) -> dict[str, Sums]:
    """Return a device's sums on every split that it has samples of."""
    content = answered.content
    if content is None:
        raise UnusableReplyError(answered.fault)
    counts = {split: int(count[client]) for split, count in takes.items()}
    return {
        split: _sums(content, split, count, metrics) for split, count in counts.items() if count
    }


def _sums(content: RecordDict, split: str, expected: int, metrics: Sequence[Metric]) -> Sums:
    """Return a device's sums over its samples of a split."""
    evaluated = wire.number(content, f"{split}/evaluated", int)
    if evaluated != expected:
        raise UnusableReplyError(f"it evaluated {evaluated} {split} samples, not {expected}")
    names = ("loss", *(metric.name for metric in metrics))
    sums = {name: wire.numbers(content, f"{split}/sum/{name}") for name in names}
    if not isinstance(sums["loss"], float):
        raise UnusableReplyError("it does not tell its loss as one number")
    for metric in metrics:
        right = sums[metric.name]
        if metric.hits and not (isinstance(right, float) and 0 <= right <= evaluated):
            raise UnusableReplyError(f"it claims to be right on {right} of {evaluated}")
    return sums
