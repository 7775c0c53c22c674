"""Losses and metrics, against definitions written out; sums add up over any parts."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmom
from fedmom.models import METRICS, losses

RNG = np.random.default_rng(0)
N, C, T = 40, 7, 6
LOGITS, CLASSES = RNG.normal(size=(N, C)).astype(np.float32), RNG.integers(0, C, N)
LABELS = (RNG.random((N, C)) < 0.3).astype(int)
VALUES = RNG.normal(size=(N, 2)).astype(np.float32)
SEQUENCES = RNG.normal(size=(N, T, C)).astype(np.float32)
POSITIONS = RNG.integers(-1, C, (N, T))  # -1: behind the end


def entropy(logits, label):
    return np.log(np.exp(logits).sum()) - logits[label]


def f1_of(pairs):
    true = sum(p and t for p, t in pairs)
    return 2 * true / (sum(p for p, _ in pairs) + sum(t for _, t in pairs))


def area(scores, true):
    """The share of pairs of a positive and a negative that are in order, ties half."""
    apart = scores[true == 1][:, None] - scores[true == 0]
    return np.mean((apart > 0) + (apart == 0) / 2)


PREDICTED = LOGITS.argmax(1)
CASES = {
    "accuracy": (LOGITS, CLASSES, np.mean(PREDICTED == CLASSES)),
    "top:k=3": (
        LOGITS,
        CLASSES,
        np.mean([c in np.argsort(row)[-3:] for row, c in zip(LOGITS, CLASSES, strict=True)]),
    ),
    "mse": (LOGITS[:, :2], VALUES, np.mean((LOGITS[:, :2] - VALUES) ** 2)),
    "rmse": (LOGITS[:, :2], VALUES, np.sqrt(np.mean((LOGITS[:, :2] - VALUES) ** 2))),
    "mae": (LOGITS[:, :2], VALUES, np.mean(np.abs(LOGITS[:, :2] - VALUES))),
    "f1": (
        LOGITS,
        CLASSES,
        np.mean(
            [
                f1_of(list(zip(c == PREDICTED, c == CLASSES, strict=True)))
                for c in set(PREDICTED) | set(CLASSES)
            ]
        ),
    ),
    "f1:average=micro": (
        LOGITS,
        LABELS,
        f1_of(list(zip((LOGITS > 0).ravel(), LABELS.ravel(), strict=True))),
    ),
    "auc": (
        LOGITS,
        LABELS,
        np.mean([area(LOGITS[:, c], LABELS[:, c]) for c in range(C)]),
    ),
    "position_accuracy": (
        SEQUENCES,
        POSITIONS,
        np.mean((SEQUENCES.argmax(-1) == POSITIONS)[POSITIONS >= 0]),
    ),
    "perplexity": (
        SEQUENCES,
        POSITIONS,
        np.exp(
            np.mean(
                [
                    entropy(SEQUENCES[i, t], POSITIONS[i, t])
                    for i, t in zip(*np.nonzero(POSITIONS >= 0), strict=True)
                ]
            )
        ),
    ),
}


def value_of(metric, rows):
    total = np.asarray(rows, np.float64).sum(0)
    return total / len(rows) if metric.value is None else metric.value(total)


@pytest.mark.parametrize("spec", CASES)
def test_every_metric_is_its_definition(spec):
    outputs, labels, expected = CASES[spec]
    metric = METRICS.build(spec)
    rows = metric.per_sample(jnp.asarray(outputs, jnp.float32), jnp.asarray(labels))
    assert rows.ndim == (1 if metric.value is None else 2)
    tied = 1e-3 if spec == "auc" else 0  # scores in one bin
    assert value_of(metric, rows) == pytest.approx(expected, rel=1e-5, abs=tied)
    assert metric.higher_is_better is (metric.name not in ("mse", "rmse", "mae", "perplexity"))


@pytest.mark.parametrize("spec", CASES)
def test_a_metric_of_many_clients_is_that_of_each(spec):
    """``value`` takes sums of one client, of all, or of a table of them."""
    outputs, labels, _ = CASES[spec]
    metric = METRICS.build(spec)
    rows = np.asarray(metric.per_sample(jnp.asarray(outputs, jnp.float32), jnp.asarray(labels)))
    if metric.value is not None:
        sums = rows.astype(float).reshape(4, 10, -1).sum(1)
        each = [metric.value(row) for row in sums]
        np.testing.assert_allclose(metric.value(sums), each)


@settings(max_examples=25)
@given(cut=st.integers(0, N), order=st.permutations(range(N)))
def test_sums_add_up_over_any_parts(cut, order):
    for spec in ("f1", "auc", "rmse", "perplexity"):
        metric = METRICS.build(spec)
        rows = np.asarray(ROWS[spec], np.float64)[list(order)]
        parts = rows[:cut].sum(0) + rows[cut:].sum(0)
        np.testing.assert_allclose(metric.value(parts), metric.value(rows.sum(0)), rtol=1e-9)


ROWS = {
    spec: METRICS.build(spec).per_sample(jnp.asarray(out, jnp.float32), jnp.asarray(y))
    for spec, (out, y, _) in CASES.items()
}


def area_of(metric, scores, true):
    return metric.value(np.asarray(metric.per_sample(scores[:, None], true[:, None])).sum(0))


@settings(max_examples=40)
@given(
    scores=st.lists(st.floats(-1e6, 1e6, width=32), min_size=20, max_size=20),
    data=st.data(),
)
def test_the_area_errs_by_no_more_than_half_the_pairs_in_one_bin(scores, data):
    true = np.array(
        data.draw(st.lists(st.integers(0, 1), min_size=len(scores), max_size=len(scores)))
    )
    scores = np.array(scores, np.float32)
    found = area_of(METRICS.build("auc"), scores, true)
    if true.min() == true.max():
        assert np.isnan(found)  # no pair to compare
        return
    pairs = np.array(list(itertools.product(scores[true == 1], scores[true == 0])), float)
    widest = np.maximum(0.11 * np.abs(pairs).max(1), 2.1e-6)
    shared = np.mean(np.abs(pairs[:, 0] - pairs[:, 1]) <= widest)
    assert abs(found - area(scores, true)) <= shared / 2 + 1e-6


@pytest.mark.parametrize("scale", [1e-5, 0.01, 1, 50, 1e4])
def test_the_area_does_not_depend_on_the_scale_of_scores(scale):
    rng = np.random.default_rng(1)
    true = (rng.random(2000) < 0.3).astype(int)
    scores = ((rng.normal(size=2000) + true - 0.5) * scale).astype(np.float32)
    assert area_of(METRICS.build("auc"), scores, true) == pytest.approx(
        area(scores, true), abs=5e-4
    )


def test_two_classes_have_an_area_and_more_have_none():
    metric = METRICS.build("auc")
    two = metric.value(np.asarray(metric.per_sample(LOGITS[:, :2], CLASSES % 2)).sum(0))
    assert two == pytest.approx(area(LOGITS[:, 1] - LOGITS[:, 0], CLASSES % 2), abs=0.01)
    with pytest.raises(fedmom.FedMomError, match="auc is of two classes or of several labels"):
        metric.per_sample(LOGITS, CLASSES)


def test_top_needs_more_classes_than_it_takes():
    with pytest.raises(fedmom.FedMomError, match="top:k=7 needs more than 7 classes, not 7"):
        METRICS.build("top:k=7").per_sample(LOGITS, CLASSES)


def test_losses_are_their_definitions():
    out, y = LOGITS, CLASSES
    expected = [entropy(row, c) for row, c in zip(out, y, strict=True)]
    np.testing.assert_allclose(losses.cross_entropy(out, y), expected, rtol=1e-5)
    np.testing.assert_allclose(
        losses.squared_error(out[:, :2], VALUES), ((out[:, :2] - VALUES) ** 2).mean(1), rtol=1e-5
    )
    p = 1 / (1 + np.exp(-LOGITS))
    bernoulli = -np.where(LABELS, np.log(p), np.log(1 - p)).mean(1)
    np.testing.assert_allclose(losses.binary_cross_entropy(LOGITS, LABELS), bernoulli, rtol=1e-5)
    at = [
        [entropy(SEQUENCES[i, t], POSITIONS[i, t]) for t in np.flatnonzero(POSITIONS[i] >= 0)]
        for i in range(N)
    ]
    total, count = losses.sequence_cross_entropy(SEQUENCES, POSITIONS)
    np.testing.assert_allclose(total, [sum(row) for row in at], rtol=1e-4)
    np.testing.assert_array_equal(count, [len(row) for row in at])
    model = fedmom.Model(lambda key: key, lambda _w, x, _key: x, loss=losses.sequence_cross_entropy)
    means = [np.mean(row) if row else 0.0 for row in at]
    np.testing.assert_allclose(model.losses(SEQUENCES, POSITIONS), means, rtol=1e-4)


def test_outputs_of_one_dimension_are_not_compared_all_with_all():
    flat, column = VALUES[:, 0], VALUES[:, 1:]
    found = losses.absolute_error(jnp.asarray(flat), jnp.asarray(column))
    np.testing.assert_allclose(found, np.abs(flat - column[:, 0]), rtol=1e-5)
    with pytest.raises(fedmom.FedMomError, match="It must return a number for every label"):
        losses.squared_error(jnp.zeros((N, 1)), jnp.asarray(VALUES))


@pytest.mark.parametrize(
    ("task", "metrics"),
    [
        ("classes", ["accuracy"]),
        ("regression", ["mse", "mae"]),
        ("multilabel", ["f1_micro", "f1"]),
        ("sequence", ["position_accuracy", "perplexity"]),
    ],
)
def test_loss_and_metrics_follow_from_the_datas_task(task, metrics):
    features = fedmom.Features("vector", (4,), 3, task)
    own = fedmom.model((lambda key: key, lambda _w, x, _key: x), features)
    assert [metric.name for metric in own.metrics] == metrics
    if task == "sequence":
        with pytest.raises(fedmom.FedMomError, match="one label per input"):
            fedmom.build_model("mlp", features)
        return
    built = fedmom.build_model("mlp:hidden=4", features)
    assert (built.loss, built.metrics) == (own.loss, own.metrics)
    assert built.apply(built.init(jax.random.key(0)), jnp.zeros((2, 4)), None).shape == (2, 3)
