"""Evaluation: sample-weighted means and client percentiles, whole or thinned."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.data.batches import thinned
from fedmom.data.federated import Split
from fedmom.runtimes.base import Scores
from fedmom.runtimes.scoring import DRAW, _Plan
from fedmom.training.evaluation import identical_percentile, summarize
from tests import by_hand
from tests.conftest import population

SIZES, TESTS = [4, 30, 1500], [2, 10, 0]


def runtime_of(data, model, algorithm=None):
    algorithm = algorithm or fedmom.Algorithm(fedmom.servers.fedavg())
    algorithm = algorithm._replace(work=fedmom.LocalWork(steps=1))
    return fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))


def scores_by_hand(params, data, split):
    """Mean loss, share of hits and number of samples of every client that has any."""
    losses, hits, counts = [], [], []
    for start, size in zip(*data.split(split), strict=True):
        if size:
            loss, hit, _ = by_hand.logreg(params, *by_hand.read(data, start + np.arange(size)))
            losses.append(loss.mean())
            hits.append(hit.mean())
            counts.append(int(size))
    return losses, hits, counts


@pytest.mark.parametrize("split", ["train", "test"])
def test_means_weigh_samples_and_percentiles_weigh_clients(split):
    data = population(SIZES, test_sizes=TESTS)
    model = fedmom.build_model("logreg", data.features)
    params = model.init(jax.random.key(0))
    losses, hits, counts = scores_by_hand(params, data, split)
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
    left = 100 - 4 - 30  # of the budget, for the large client
    rows = data.train.start[2] + thinned(1500, left, client=2, seed=DRAW)
    loss = by_hand.logreg(params, *by_hand.read(data, rows))[0].mean()
    losses, _, counts = scores_by_hand(params, data, "train")
    expected = np.average([*losses[:2], loss], weights=counts)
    assert fedmom.evaluate(runtime, params, "train", 100).loss == pytest.approx(expected, rel=1e-5)


SOME_SIZES = st.lists(st.integers(0, 1000), min_size=1, max_size=30).filter(any)


@given(sizes=SOME_SIZES, budget=st.integers(1, 5000))
def test_a_budget_is_kept_and_used(sizes, budget):
    sizes = np.array(sizes)
    start = np.cumsum(sizes) - sizes
    plan = _Plan(Split(start, sizes), budget)
    assert len(set(plan.positions.tolist())) == plan.taken.sum() <= budget  # no sample twice
    assert (plan.taken >= 1).all()
    owners = plan.clients[plan.owner]
    assert (start[owners] <= plan.positions).all()
    assert (plan.positions < start[owners] + sizes[owners]).all()
    if sizes.sum() <= budget:
        assert plan.taken.sum() == sizes.sum()
    elif budget >= np.count_nonzero(sizes):  # every client has its part: no room for one more each
        assert plan.clients.tolist() == np.flatnonzero(sizes).tolist()
        assert plan.taken.sum() + np.count_nonzero(plan.taken < plan.samples) > budget
    else:
        assert plan.taken.sum() == budget


@pytest.mark.parametrize("budget", [2, 5, 20, 60])
def test_the_expectation_over_draws_is_the_full_evaluation(budget):
    """Losses that depend on the place within a client, as in LEAF's files: digits come later."""
    sizes = np.array([3, 0, 40, 1, 90, 7])
    start = np.cumsum(sizes) - sizes
    losses = np.concatenate([np.arange(n) / n for n in sizes if n])
    means = []
    for seed in range(4000):
        plan = _Plan(Split(start, sizes), budget, seed)
        scores = plan.scores(losses[plan.positions], losses[plan.positions])
        means.append(np.average(scores.sums["loss"] / scores.evaluated, weights=scores.samples))
    error = np.std(means) / np.sqrt(len(means))
    assert np.mean(means) == pytest.approx(losses.mean(), abs=4 * error)
    assert error < 0.01


def test_all_runs_are_evaluated_on_the_same_samples():
    sizes = np.array([30, 40])
    one, two = (_Plan(Split(np.array([0, 30]), sizes), 20) for _ in range(2))
    assert one.positions.tolist() == two.positions.tolist()
    assert one.positions.tolist() != list(range(10)) + list(range(30, 40))


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
    losses, hits, counts = scores_by_hand(params, data, "test")
    assert scores.samples.tolist() == scores.evaluated.tolist() == counts == [2, 10]
    np.testing.assert_allclose(scores.sums["loss"], np.multiply(losses, counts), rtol=1e-5)
    np.testing.assert_allclose(scores.sums["accuracy"], np.multiply(hits, counts), rtol=1e-6)


@lru_cache  # one object: its programs are traced once
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
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), client=own_bias(), stages=stages)
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
            rows = start + thinned(int(size), int(taken), client=k, seed=DRAW)
            bias = params[0]["b"] + seen[k] * np.array([1.0, -1.0, 0.5])
            own = [{**params[0], "b": bias}]
            losses, hits, _ = by_hand.logreg(own, *by_hand.read(data, rows))
            np.testing.assert_allclose(scores.sums["loss"][place], losses.sum(), rtol=1e-5)
            assert scores.sums["accuracy"][place] == hits.sum()


def test_small_clients_with_models_of_their_own_are_not_filled_up_to_a_large_call(monkeypatch):
    """Earlier, each of them was evaluated on 1,024 samples, most of them the same."""
    sizes = [3, 5, 16, 17, 40, 90, 600, 1500]
    data = population(sizes)
    model = fedmom.build_model("logreg", data.features)
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), client=own_bias())
    runtime = runtime_of(data, model, algorithm)
    computed, score = [], runtime._scorer._score

    def counted(params, arrays, positions):
        computed.append(len(positions))
        return score(params, arrays, positions)

    monkeypatch.setattr(runtime._scorer, "_score", counted)
    params = model.init(jax.random.key(0))
    scores = runtime.evaluate(params, "train")
    assert sum(computed) < sum(max(2 * size, 17) for size in sizes)
    assert len(set(computed)) <= 4  # each is compiled
    losses, hits, counts = scores_by_hand(params, data, "train")
    assert scores.evaluated.tolist() == counts == sizes
    np.testing.assert_allclose(scores.sums["loss"], np.multiply(losses, counts), rtol=1e-5)
    np.testing.assert_allclose(scores.sums["accuracy"], np.multiply(hits, counts), rtol=1e-6)


def test_the_area_of_clients_with_one_class_each_is_that_of_all_their_samples():
    """No client has an area of its own, so there are no percentiles of them."""
    labels = np.arange(400) % 2
    x = (np.random.default_rng(0).normal(size=(400, 5)) + labels[:, None]).astype(np.float32)
    clients = labels * 4 + np.arange(400) // 2 % 4
    data = fedmom.from_arrays(x, labels, client_ids=clients, test_fraction=0.25)
    functions = lambda _key: 0.1 * jnp.arange(10.0).reshape(5, 2), lambda w, x, _key: x @ w
    model = fedmom.model(functions, data, metrics=["auc"])
    metrics = fedmom.evaluate(runtime_of(data, model), model.init(None), "train")
    rows = np.concatenate([s + np.arange(n) for s, n in zip(*data.train, strict=True)])
    x, y = by_hand.read(data, rows)
    apart = x @ np.full(5, 0.1)
    pairs = apart[y == 1][:, None] - apart[y == 0]
    assert metrics.auc == pytest.approx(np.mean(pairs > 0) + np.mean(pairs == 0) / 2, abs=1e-3)
    assert list(metrics.values) == ["auc"]


class TestIdenticalClients:
    """What percentiles would be if clients differed in nothing but luck."""

    @pytest.mark.parametrize("percent", [10, 50, 90])
    @pytest.mark.parametrize("accuracy", [0.05, 0.3, 0.8, 1.0])
    @pytest.mark.parametrize("sizes", [(21,), (5, 12, 300)])
    def test_it_is_what_many_binomial_clients_show(self, percent, accuracy, sizes):
        samples = np.repeat(sizes, 40_000)
        shown = np.random.default_rng(0).binomial(samples, accuracy) / samples
        expected = np.percentile(shown, percent)
        found = identical_percentile(samples, accuracy, percent)
        # One step of the commonest accuracies: a percentile may fall on either side of a jump.
        assert found == pytest.approx(expected, abs=1 / max(sizes) + 1e-9)

    def test_of_one_size_it_is_the_binomials_own(self):
        samples = np.full(7, 40)
        for percent in (1, 10, 25, 50, 75, 90, 99):
            expected = scipy.stats.binom.ppf(percent / 100, 40, 0.37) / 40
            assert identical_percentile(samples, 0.37, percent) == pytest.approx(expected)

    def test_it_is_logged_beside_the_real_one(self):
        """Two kinds of clients, always right and always wrong: identical ones would not be."""
        scores = Scores(np.full(10, 20), np.full(10, 20), _sums(np.repeat([0.0, 20.0], 5)))
        metrics = summarize(scores)
        assert (metrics.accuracy_p10, metrics.accuracy_p90) == (0, 1)
        assert (metrics.accuracy_p10_identical, metrics.accuracy_p90_identical) == (0.35, 0.65)
        assert (metrics.clients, metrics.samples) == (10, 200)


def _sums(hits):
    return {"loss": hits * 0 + 1, "accuracy": hits}
