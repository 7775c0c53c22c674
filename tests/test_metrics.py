"""Evaluation: sample-weighted means and client percentiles, whole or thinned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from conftest import population
from fedmom.metrics import Evaluator, _cap, _Plan

SIZES, TESTS = [4, 30, 1500], [2, 10, 0]


def by_hand(model, params, data, split):
    losses, hits, counts = [], [], []
    for start, size in zip(*data.split(split), strict=True):
        if size:
            x, y = data.read(data.arrays, jnp.arange(start, start + size))
            logits = model.apply(params, x, None)
            losses.append(float(model.loss(logits, y).mean()))
            hits.append(float((logits.argmax(axis=1) == y).mean()))
            counts.append(int(size))
    return losses, hits, counts


@pytest.mark.parametrize("split", ["train", "test"])
def test_means_weigh_samples_and_percentiles_weigh_clients(split):
    data = population(SIZES, test_sizes=TESTS)
    model = fedmom.build_model("mlp:hidden=5,layers=1", data.features)
    params = model.init(jax.random.key(0))
    losses, hits, counts = by_hand(model, params, data, split)
    metrics = Evaluator(model, data)(params, split)
    assert metrics.loss == pytest.approx(np.average(losses, weights=counts), rel=1e-5)
    assert metrics.accuracy == pytest.approx(np.average(hits, weights=counts), rel=1e-6)
    for p in (10, 50, 90):
        assert getattr(metrics, f"accuracy_p{p}") == pytest.approx(np.percentile(hits, p))


def test_a_budget_thins_the_largest_clients_and_keeps_their_weight():
    data = population(SIZES, test_sizes=TESTS)
    model = fedmom.build_model("logreg", data.features)
    evaluator = Evaluator(model, data, budget=100)
    assert evaluator.coverage("train") == (100, 1534)
    assert evaluator.coverage("test") == (12, 12)
    params = model.init(jax.random.key(0))
    left = 100 - 4 - 30  # of the budget, for the large client: evenly spaced samples of it
    rows = data.train.start[2] + np.arange(left) * 1500 // left
    x, y = data.read(data.arrays, jnp.asarray(rows))
    thinned = float(model.loss(model.apply(params, x, None), y).mean())
    losses, _, counts = by_hand(model, params, data, "train")
    expected = np.average([*losses[:2], thinned], weights=counts)
    assert evaluator(params, "train").loss == pytest.approx(expected, rel=1e-5)


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=30), budget=st.integers(1, 5000))
def test_thinning_keeps_to_the_budget_and_every_client(sizes, budget):
    sizes = np.array(sizes)
    taken = np.minimum(sizes, _cap(sizes, budget))
    assert (taken >= 1).all()
    assert taken.sum() <= max(budget, len(sizes))
    if sizes.sum() <= budget:
        assert (taken == sizes).all()
    plan = _Plan(fedmom.data.Split(np.cumsum(sizes) - sizes, sizes), budget)
    assert len(set(plan.positions.tolist())) == taken.sum()


def test_an_empty_test_split_is_left_out():
    data = population([5, 5])
    assert Evaluator(fedmom.build_model("logreg", data.features), data).splits == ["train"]
