"""Evaluation: sample-weighted means and client percentiles, whole or thinned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.data.batches import reader
from fedmom.data.federated import Split
from fedmom.runtimes.scoring import _cap, _Plan
from tests.conftest import population

SIZES, TESTS = [4, 30, 1500], [2, 10, 0]


def runtime_of(data, model, algorithm=None):
    return fedmom.LocalRuntime(data, model, fedmom.LocalWork(steps=1), algorithm)


def by_hand(model, params, data, split):
    losses, hits, counts = [], [], []
    for start, size in zip(*data.split(split), strict=True):
        if size:
            x, y = reader(data.features)(data.arrays, jnp.arange(start, start + size))
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
    metrics = fedmom.evaluate(runtime_of(data, model), params, split)
    assert metrics.loss == pytest.approx(np.average(losses, weights=counts), rel=1e-5)
    assert metrics.accuracy == pytest.approx(np.average(hits, weights=counts), rel=1e-6)
    for p in (10, 50, 90):
        assert getattr(metrics, f"accuracy_p{p}") == pytest.approx(np.percentile(hits, p))


def test_a_budget_thins_the_largest_clients_and_keeps_their_weight():
    data = population(SIZES, test_sizes=TESTS)
    model = fedmom.build_model("logreg", data.features)
    params = model.init(jax.random.key(0))
    runtime = runtime_of(data, model)
    train, test = (runtime.evaluate(params, split, 100) for split in ("train", "test"))
    assert (train.evaluated.sum(), train.samples.sum()) == (100, 1534)
    assert (test.evaluated.sum(), test.samples.sum()) == (12, 12)
    left = 100 - 4 - 30  # of the budget, for the large client: evenly spaced samples of it
    rows = data.train.start[2] + np.arange(left) * 1500 // left
    x, y = reader(data.features)(data.arrays, jnp.asarray(rows))
    thinned = float(model.loss(model.apply(params, x, None), y).mean())
    losses, _, counts = by_hand(model, params, data, "train")
    expected = np.average([*losses[:2], thinned], weights=counts)
    assert fedmom.evaluate(runtime, params, "train", 100).loss == pytest.approx(expected, rel=1e-5)


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=30), budget=st.integers(1, 5000))
def test_thinning_keeps_to_the_budget_and_every_client(sizes, budget):
    sizes = np.array(sizes)
    taken = np.minimum(sizes, _cap(sizes, budget))
    assert (taken >= 1).all()
    assert taken.sum() <= max(budget, len(sizes))
    if sizes.sum() <= budget:
        assert (taken == sizes).all()
    plan = _Plan(Split(np.cumsum(sizes) - sizes, sizes), budget)
    assert len(set(plan.positions.tolist())) == taken.sum()


def test_an_empty_test_split_is_left_out():
    data = population([5, 5])
    model = fedmom.build_model("logreg", data.features)
    runtime = runtime_of(data, model)
    assert runtime.splits == ["train"]
    with pytest.raises(fedmom.FedMomError, match="has no test samples to evaluate"):
        fedmom.evaluate(runtime, model.init(jax.random.key(0)), "test")


def test_a_loss_that_is_not_finite_is_divergence():
    data = population([5, 5])
    model = fedmom.build_model("logreg", data.features)
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, model.init(jax.random.key(0)))
    with pytest.raises(fedmom.DivergedError, match="The model's loss is not finite"):
        fedmom.evaluate(runtime_of(data, model), broken, "train")


def test_clients_scores_add_up_to_the_whole():
    """What a client measures is a sum, so that a runtime may send it from anywhere."""
    data = population(SIZES, test_sizes=TESTS)
    model = fedmom.build_model("logreg", data.features)
    params = model.init(jax.random.key(0))
    scores = runtime_of(data, model).evaluate(params, "test")
    losses, hits, counts = by_hand(model, params, data, "test")
    assert scores.samples.tolist() == scores.evaluated.tolist() == counts == [2, 10]
    np.testing.assert_allclose(scores.sums["loss"], np.multiply(losses, counts), rtol=1e-5)
    np.testing.assert_allclose(scores.sums["accuracy"], np.multiply(hits, counts), rtol=1e-6)


def own_bias():
    """A client that keeps a bias of its own, which grows with its rounds, and sends nothing."""

    def run(params, bias, _problem, _key):
        update = jax.tree.map(jnp.zeros_like, params)
        return update, bias + jnp.array([1.0, -1.0, 0.5]), {"loss": jnp.zeros(())}

    def personal(params, bias):
        return [{**params[0], "b": params[0]["b"] + bias}]

    return fedmom.Client(run, init=lambda _params: jnp.zeros(3), personal=personal)


@pytest.mark.parametrize("stages", [(), (fedmom.clip(norm=1.0),)], ids=["plain", "stages"])
@pytest.mark.parametrize("budget", [None, 40])
def test_personal_models_are_evaluated_client_by_client(stages, budget):
    data = population([1100, 30, 4], test_sizes=[20, 0, 10])
    model = fedmom.build_model("logreg", data.features)
    algorithm = fedmom.Algorithm(fedmom.fedavg(), client=own_bias(), stages=stages)
    runtime = runtime_of(data, model, algorithm)
    params = model.init(jax.random.key(0))
    for round_, clients in enumerate(([0], [0, 1], [0])):
        runtime.ask(round_, np.array(clients), params)
        list(runtime.replies())
        runtime.commit()
    seen = [3, 1, 0]  # rounds that each client has trained; the last has never been asked
    for split in ("train", "test"):
        scores = runtime.evaluate(params, split, budget)
        here = [k for k in range(3) if data.split(split).size[k]]
        for place, k in enumerate(here):
            start, size = data.split(split).start[k], data.split(split).size[k]
            taken = scores.evaluated[place]
            assert scores.samples[place] == size
            rows = jnp.asarray(start + np.arange(taken) * size // taken)
            bias = params[0]["b"] + seen[k] * jnp.array([1.0, -1.0, 0.5])
            x, y = reader(data.features)(data.arrays, rows)
            logits = model.apply([{**params[0], "b": bias}], x, None)
            losses, hits = model.loss(logits, y), logits.argmax(axis=1) == y
            np.testing.assert_allclose(scores.sums["loss"][place], losses.sum(), rtol=1e-5)
            assert scores.sums["accuracy"][place] == hits.sum()
