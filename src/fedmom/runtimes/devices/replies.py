"""What devices send back, as the loop takes it: every number is checked before it counts."""

import re
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

MOST_METRICS = 100
METRIC = r"(?!norm$)[A-Za-z][\w./-]{0,63}"  # the norm is measured by the server
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
    metrics = _metrics(answered.content)
    if not 0 <= samples < 2**62:
        raise UnusableReplyError("it claims a number of samples that nobody has")
    return Block(
        clients=np.array([client]),
        update=jax.tree.map(lambda leaf: leaf[None], update),
        samples=np.array([samples]),
        metrics={name: np.array([value], np.float32) for name, value in metrics.items()},
        version=round_,
    )


def _metrics(content: RecordDict) -> dict[str, float]:
    """Return the loss, and what else a device reports of its training."""
    loss = wire.number(content, "loss", float)
    names = [name for name in content.metric_records[wire.FACTS] if name not in ("loss", "samples")]
    if len(names) > MOST_METRICS or not all(re.fullmatch(METRIC, name) for name in names):
        raise UnusableReplyError("it reports too many metrics, or names that no metric has")
    return {"loss": loss} | {name: wire.number(content, name, float) for name in names}


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
