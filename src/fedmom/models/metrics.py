"""Metrics: sums over samples, and what is made of them.

A client sends sums only. They add up over its batches, and over clients: what a metric is for one
client and for all of them is the same function of their sums.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import checked, checked_class, short
from fedmom.core.errors import FedMomError
from fedmom.core.types import PERCENTILE, TAKEN
from fedmom.core.validation import Between
from fedmom.models.losses import absolute_error, position_losses, shaped, squared_error

Numbers = NDArray[np.float64]
LONGEST_NAME = 60  # letters


@checked_class
class Metric(NamedTuple):
    """A number that says how good a model is.

    Args:
        name: What it is called in logs and tables.
        per_sample: ``per_sample(outputs, labels) ->`` for a batch, one number per sample, or a row
            of numbers per sample.
        value: ``value(sums)``, the metric made of the sums of these rows, along the last axis of
            an array; it must take arrays of any dimension. None: the mean over samples of one
            number each.
        higher_is_better: Whether higher values are better, or lower ones. None: unknown; the metric
            is shown, and no run is called better or worse by it.
        hits: Whether each sample counts 0 or 1, as in accuracy; then percentiles over clients have
            next to them those expected if all clients were equally accurate.
        inputs: ``inputs(x) -> x``: other inputs than the samples' own, on which it is measured.

    Examples:
        >>> def mean_absolute(outputs, labels):
        ...     return jnp.abs(outputs - labels).mean(-1)
        >>> metric = Metric("mae", mean_absolute, higher_is_better=False)
        >>> metric.per_sample(jnp.zeros((2, 1)), jnp.array([[1.0], [3.0]])).tolist()
        [1.0, 3.0]
    """

    name: str
    per_sample: Callable[[jax.Array, jax.Array], jax.Array]
    value: Callable[[Numbers], Any] | None = None
    higher_is_better: bool | None = None
    hits: bool = False
    inputs: Callable[[jax.Array], jax.Array] | None = None


def check_names(metrics: Sequence[Metric]) -> None:
    """Refuse names that logs and tables cannot tell from their own, or from each other.

    Examples:
        >>> check_names([Metric("a b", lambda outputs, labels: outputs)])
        Traceback (most recent call last):
        fedmom.core.errors.FedMomError: A metric is called 'a b'. Its name must be a word of \
letters, digits and underscores, at most 60 of them.
    """
    for name, times in Counter(metric.name for metric in metrics).items():
        if times > 1:
            raise FedMomError(f"{times} metrics are called {name!r}. Give each a name of its own.")
        if name in TAKEN or PERCENTILE.search(name):
            raise FedMomError(
                f"A metric is called {name!r}. Evaluations have another field of that name: choose"
                " another name."
            )
        if not name.isidentifier() or len(name) > LONGEST_NAME:
            raise FedMomError(
                f"A metric is called {short(name)}. Its name must be a word of letters, digits and"
                f" underscores, at most {LONGEST_NAME} of them."
            )


@lru_cache
def accuracy() -> Metric:
    """The share of samples whose largest output is the right class."""
    return Metric("accuracy", lambda out, y: jnp.argmax(out, axis=-1) == y, None, True, hits=True)


@lru_cache
def attack_success(target: int, trigger: Callable[[jax.Array], jax.Array]) -> Metric:
    """The share of samples of other classes that a trigger makes the model take for a target."""

    def fooled(out: jax.Array, y: jax.Array) -> jax.Array:
        other = y != target
        return _row((jnp.argmax(out, axis=-1) == target) & other, other)

    return Metric("attack_success", fooled, ratio, higher_is_better=False, inputs=trigger)


@checked
@lru_cache
def top(*, k: Annotated[int, Between(1, 1000)] = 5) -> Metric:
    """The share of samples whose right class is among the k largest outputs.

    Examples:
        >>> top(k=2).per_sample(jnp.array([[0.1, 0.9, 0.5]]), jnp.array([2])).tolist()
        [True]
    """

    return Metric(f"top{k}", partial(_among, k), higher_is_better=True, hits=True)


def _among(k: int, out: jax.Array, y: jax.Array) -> jax.Array:
    """Return whether the right class is among the k largest outputs."""
    if k >= out.shape[-1]:
        raise FedMomError(f"top:k={k} needs more than {k} classes, not {out.shape[-1]}.")
    return jnp.any(jax.lax.top_k(out, k)[1] == y[..., None], axis=-1)


@lru_cache
def mse() -> Metric:
    """The mean squared error."""
    return Metric("mse", squared_error, higher_is_better=False)


@lru_cache
def rmse() -> Metric:
    """The root of the mean squared error."""

    def with_ones(out: jax.Array, y: jax.Array) -> jax.Array:
        return _row(errors := squared_error(out, y), jnp.ones_like(errors))

    return Metric("rmse", with_ones, lambda sums: np.sqrt(ratio(sums)), higher_is_better=False)


@lru_cache
def mae() -> Metric:
    """The mean absolute error."""
    return Metric("mae", absolute_error, higher_is_better=False)


@lru_cache
def position_accuracy() -> Metric:
    """The share of positions of sequences whose largest output is the right class."""

    def at_positions(out: jax.Array, y: jax.Array) -> jax.Array:
        counted = y >= 0
        return _row(_total((jnp.argmax(out, axis=-1) == y) & counted), _total(counted))

    return Metric("position_accuracy", at_positions, ratio, higher_is_better=True)


@checked
@lru_cache
def position_top(*, k: Annotated[int, Between(1, 1000)] = 5) -> Metric:
    """The share of positions of sequences whose right class is among the k largest outputs.

    Examples:
        >>> out, labels = jnp.array([[[3.0, 2, 1], [0, 0, 9]]]), jnp.array([[1, -100]])
        >>> position_top(k=2).per_sample(out, labels).tolist()  # positions: right, that count
        [[1.0, 1.0]]
    """

    def at_positions(out: jax.Array, y: jax.Array) -> jax.Array:
        counted = y >= 0
        return _row(_total(_among(k, out, y) & counted), _total(counted))

    return Metric(f"position_top{k}", at_positions, ratio, higher_is_better=True)


@lru_cache
def perplexity() -> Metric:
    """e to the mean cross-entropy: of samples, or of the positions of sequences."""

    def entropies(out: jax.Array, y: jax.Array) -> jax.Array:
        losses, counted = position_losses(out, y)
        return _row(_total(losses), _total(counted))

    return Metric("perplexity", entropies, _exponential, higher_is_better=False)


@checked
@lru_cache
def f1(*, average: Literal["macro", "micro"] = "macro") -> Metric:
    """The harmonic mean of precision and recall, of classes or of labels.

    Args:
        average: "macro": the mean over classes, of those that occur or are predicted. "micro": of
            all labels taken together.

    Examples:
        >>> scores = f1().per_sample(jnp.array([[2.0, -1.0]]), jnp.array([[1, 1]]))
        >>> float(f1().value(np.asarray(scores).sum(0)))  # 1 for the first label, 0 for the other
        0.5
    """
    micro = average == "micro"

    def counts(out: jax.Array, y: jax.Array) -> jax.Array:
        predicted, true = _as_labels(out, y)
        found = (predicted & true, predicted & ~true, ~predicted & true)
        if micro:
            return _row(*map(_total, found))
        by_class = (each.reshape(len(out), -1, each.shape[-1]).sum(1) for each in found)
        return jnp.concatenate(list(by_class), axis=-1)

    return Metric("f1_micro" if micro else "f1", counts, _f1_of_counts, True)


@checked
@lru_cache
def auc(*, bins: Annotated[int, Between(16, 10_000)] = 1000) -> Metric:
    """The area under the ROC curve, of two classes, or the mean over labels.

    It is made of a histogram of the log-odds, so that clients need not send their scores: scores in
    one bin count as equal, half right and half wrong. Widths of bins are a share of the score, from
    ±1e-6 to ±1e6, so that the scale of a model's outputs does not matter. The area is exact up to
    half the share of pairs, one positive and one negative, that are in the same bin. Labels that
    have no positives or no negatives are left out; if none is left, the area is NaN.

    Args:
        bins: The number of bins; with 1000 they are 2 % wide from ±0.25 to ±64, and 10 % elsewhere.
    """
    edges = _edges(bins)
    count = len(edges) + 1

    def histogram(out: jax.Array, y: jax.Array) -> jax.Array:
        scores, true = _as_scores(out, y)
        bin_ = jnp.searchsorted(edges, scores, method="compare_all")  # the quickest on a CPU
        place = jnp.where(true < 0, -1, bin_ + jnp.where(true > 0, 0, count))  # -1 is no place
        rows = jax.nn.one_hot(place, 2 * count)
        rows = rows.sum(1) if y.ndim < out.ndim else rows  # classes have one area, at all positions
        return rows.reshape(len(out), -1)

    return Metric("auc", histogram, lambda sums: _area(sums, count), higher_is_better=True)


def _edges(bins: int) -> NDArray[np.float32]:
    """Return where the bins of scores meet: half of them are for scores of the usual size."""
    low, high, whole = 0.25, 64.0, 1e6
    sides = [
        np.geomspace(1 / whole, low, bins // 8, endpoint=False),
        np.geomspace(low, high, bins // 4, endpoint=False),
        np.geomspace(high, whole, bins // 8),
    ]
    positive = np.concatenate(sides).astype(np.float32)
    return np.concatenate([-positive[::-1], positive])


def _area(sums: Numbers, bins: int) -> Numbers:
    """The mean over labels of the share of pairs that are in order."""
    table = sums.reshape(*sums.shape[:-1], -1, 2, bins)
    positive, negative = table[..., 0, :], table[..., 1, :]
    below = np.cumsum(negative, axis=-1) - negative / 2
    pairs = positive.sum(-1) * negative.sum(-1)
    return _mean_ratio((positive * below).sum(-1), pairs)


def _f1_of_counts(sums: Numbers) -> Numbers:
    true, false, missed = np.moveaxis(sums.reshape(*sums.shape[:-1], 3, -1), -2, 0)
    return _mean_ratio(2 * true, 2 * true + false + missed)


@np.errstate(invalid="ignore")
def _mean_ratio(above: Numbers, below: Numbers) -> Numbers:
    """The mean along the last axis of the ratios with ``below`` > 0; NaN where there is none."""
    return np.where(below > 0, above / below, 0).sum(-1) / (below > 0).sum(-1)


@np.errstate(invalid="ignore")
def ratio(sums: Numbers) -> Numbers:
    """Return the first of two sums over the second; NaN where both are 0."""
    return sums[..., 0] / sums[..., 1]


@np.errstate(over="ignore")
def _exponential(sums: Numbers) -> Numbers:
    return np.exp(ratio(sums))


def _row(*columns: jax.Array) -> jax.Array:
    return jnp.stack([jnp.asarray(c, jnp.float32) for c in columns], axis=-1)


def _total(values: jax.Array) -> jax.Array:
    """The sum over all of a sample's numbers."""
    return values.reshape(len(values), -1).sum(-1)


def _as_labels(out: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return predictions and truth, both as booleans per label or class."""
    if y.ndim == out.ndim:  # log-odds of labels
        return shaped(out, y) > 0, y > 0
    classes, counted = out.shape[-1], (y >= 0)[..., None]
    predicted = jax.nn.one_hot(out.argmax(-1), classes) > 0
    return predicted & counted, jax.nn.one_hot(y, classes) > 0  # no class at all for y < 0


def _as_scores(out: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log-odds per label, (samples, labels), and whether it is there.

    1: it is; 0: it is not; -1: it does not count.
    """
    if y.ndim < out.ndim:
        if out.shape[-1] > 2:
            raise FedMomError(
                f"auc is of two classes or of several labels, not of {out.shape[-1]} classes."
                " Use accuracy or f1."
            )
        out = out[..., 1] - out[..., 0] if out.shape[-1] == 2 else out[..., 0]
    scores = shaped(out, y).reshape(len(y), -1)
    return scores, jnp.where(y < 0, -1, y > 0).reshape(len(y), -1).astype(jnp.int32)
