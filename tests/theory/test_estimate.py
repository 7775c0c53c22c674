"""Estimates of the theory's constants, against problems where they are known."""

import json
from dataclasses import asdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom import Features, FederatedData, Model
from fedmom.data.federated import Split
from fedmom.theory.estimate import estimate, from_row, spaced
from fedmom.theory.measurement_budget import EstimateBudget
from fedmom.training.subproblem import Subproblem
from tests import by_hand
from tests.conftest import population

SIZES = [9, 5, 14]
WHOLE = EstimateBudget(clients=len(SIZES), samples=max(SIZES), models=2, pairs=300)
DIMENSION = 4


BOWLS = Model(  # of sample i the loss is -Σ x_ij w_j² / 2: gradient -x_i·w, Hessian -diag(x_i)
    init=lambda key: jax.random.normal(key, (DIMENSION,)),
    apply=lambda w, x, _key: -(x * w**2).sum(1) / 2,
    loss=lambda out, _y: out,
)


# Columns that scale apart: power iteration is slow where the largest eigenvalues are close.
APART = np.array([0.4, 0.3, 0.2, 1.0], np.float32)


def clients_of(data):
    """The inputs of every client."""
    pairs = zip(data.train.start, data.train.size, strict=True)
    return [data.arrays["x"][a : a + n] for a, n in pairs]


def models_along(count=4, seed=1):
    rng = np.random.default_rng(seed)
    return {t: jnp.asarray(rng.normal(size=DIMENSION), jnp.float32) for t in range(count)}


@pytest.fixture(scope="module")
def known():
    data = population(SIZES, DIMENSION)
    data.arrays["x"] *= APART
    models = models_along()
    return data, models, estimate(BOWLS, data, models, batch_size=3, budget=WHOLE)


def test_smoothness_is_the_largest_eigenvalue_in_size(known):
    data, _, found = known
    means = np.array([x.mean(0) for x in clients_of(data)])
    weights = data.train.size / data.train.size.sum()
    assert found.smoothness.value == pytest.approx(np.abs(means).max(), rel=0.02)
    assert found.smoothness.value <= np.abs(means).max() * 1.0001  # |Hv| never is above it
    assert found.smoothness_of_f == pytest.approx(np.abs(weights @ means).max(), rel=0.02)
    assert found.smoothness.low <= found.smoothness.value
    assert means.flat[np.abs(means).argmax()] > 0  # so it is a negative eigenvalue that counts


def test_smoothness_of_logistic_regression_is_that_of_its_hessians():
    data = population(SIZES, DIMENSION)
    model = fedmom.build_model("logreg", data.features)
    params = model.init(jax.random.key(3))
    largest = []
    for x in clients_of(data):
        out = np.asarray(model.apply(params, x, None), np.float64)
        p = np.exp(out) / np.exp(out).sum(1, keepdims=True)
        spread = np.einsum("ni,ij->nij", p, np.eye(p.shape[1])) - np.einsum("ni,nj->nij", p, p)
        inputs = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
        hessian = np.einsum("nij,nk,nl->ikjl", spread, inputs, inputs) / len(x)
        largest.append(np.linalg.eigvalsh(hessian.reshape(p.shape[1] * inputs.shape[1], -1)).max())
    budget = EstimateBudget(clients=3, samples=14, models=2, pairs=1)
    found = estimate(model, data, {0: params, 1: params}, budget=budget)
    assert found.smoothness.value == pytest.approx(max(largest), rel=0.02)
    assert found.smoothness.value <= max(largest) * 1.0001  # |Hv| never is above it


def test_variance_is_that_of_batches_drawn_with_replacement(known):
    data, models, found = known
    weights = data.train.size / data.train.size.sum()
    spreads = np.array([x.var(0) for x in clients_of(data)])
    few = [np.asarray(models[t]) for t in (0, 3)]
    truth = max(float(weights @ (spreads @ w**2)) / 3 for w in few)
    # 900 pairs in four dimensions: a standard error of 2 to 3 %.
    assert found.variance.value == pytest.approx(truth, rel=0.12)
    assert found.variance.low <= found.variance.value <= found.variance.high
    assert found.largest_variance >= found.variance.value


def test_full_gradients_have_no_variance():
    found = estimate(BOWLS, population(SIZES), models_along(2), batch_size=None, budget=WHOLE)
    assert found.variance.value == found.variance.high == 0


def test_dissimilarity_and_gap_are_those_of_the_full_computation(known):
    data, models, found = known
    means = np.array([x.mean(0) for x in clients_of(data)], np.float64)
    weights = data.train.size / data.train.size.sum()
    points = [np.asarray(w, np.float64) for w in models.values()]
    squares = np.array([np.sum((weights @ means * w) ** 2) for w in points])
    total = np.array([weights @ np.sum((means * w) ** 2, axis=1) for w in points])
    losses = [-float((weights @ means) @ w**2) / 2 for w in points]
    slope = max(1.0, np.polyfit(squares, total, 1)[0])
    assert found.similarity.value == pytest.approx(slope, rel=1e-3)
    assert found.dissimilarity.value == pytest.approx(max(0, *(total - slope * squares)), rel=1e-3)
    assert found.gap.value == pytest.approx(losses[0] - min(losses), rel=1e-4)
    assert (found.first_loss, found.lowest_loss) == pytest.approx((losses[0], min(losses)), 1e-4)


def test_every_interval_contains_its_estimate(known):
    """That of L is from the largest on: it once was the middle 90 % of the clients' values."""
    found = known[2]
    for name in ("variance", "dissimilarity", "similarity", "gap"):
        part = getattr(found, name)
        assert part.low <= part.value <= part.high, name
    assert (found.smoothness.low, found.smoothness.high) == (found.smoothness.value, None)
    low, high = found.smoothness_of_clients
    assert 0 < low < high < found.smoothness.value


def test_estimates_of_earlier_files_are_read(known):
    row = asdict(known[2])
    del row["smoothness_of_clients"]
    assert from_row(row).constants() == known[2].constants()


def pictures():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (12, 12, 12)).astype(np.uint8)
    return fedmom.from_arrays(x, rng.integers(0, 5, 12), np.repeat([0, 1], 6))


def texts():
    return FederatedData(
        name="texts",
        users=["a", "b"],
        features=Features("text", (6,), 9),
        arrays={"text": np.random.default_rng(0).integers(0, 9, 40).astype(np.uint8)},
        train=Split(np.array([0, 12]), np.array([6, 6])),
        test=Split(np.array([30, 30]), np.array([0, 0])),
    )


def flat(tree):
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize(
    ("data", "model"),
    [
        (lambda: population(SIZES), "mlp:hidden=5,layers=1"),
        # Their layers' own second derivatives have tests beside the models.
        pytest.param(pictures, "lenet5", marks=pytest.mark.slow),
        pytest.param(texts, "char_lstm:hidden=12", marks=pytest.mark.slow),
    ],
    ids=["mlp", "lenet5", "char_lstm"],
)
def test_curvature_is_the_difference_of_gradients(data, model):
    data = data()
    net = fedmom.build_model(model, data.features)
    # In double precision the step can be too small to cross a kink of the rectifiers.
    with jax.enable_x64(True):
        params = jax.tree.map(lambda p: np.asarray(p, np.float64), net.init(jax.random.key(0)))
        sample = Subproblem(net, data, clients=2, samples=6)
        rng = np.random.default_rng(1)
        vector = jax.tree.map(lambda p: rng.normal(size=p.shape), params)

        def slope(t):
            moved = jax.tree.map(lambda p, v: p + t * v, params, vector)
            return flat(sample.gradient(moved)[1])

        expected = (slope(1e-8) - slope(-1e-8)) / 2e-8
        unit, norm = sample.hessian_product(params, vector)
        error = np.linalg.norm(flat(unit) * float(norm) - expected) / np.linalg.norm(expected)
    assert error < 1e-4


def test_a_sample_of_everything_is_the_problem_itself():
    data = population(SIZES)
    model = fedmom.build_model("logreg", data.features)
    params = model.init(jax.random.key(0))
    sample = Subproblem(model, data, clients=99, samples=99)

    loss, gradient = sample.gradient(params)
    # The mean over all samples is Σ p_k f_k with p_k = n_k/n.
    losses, _, expected = by_hand.logreg(params, *by_hand.read(data, np.arange(sum(SIZES))))
    assert float(loss) == pytest.approx(losses.mean(), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradient, expected)
    parts = [sample.gradient(params, k)[1] for k in range(3)]
    total = jax.tree.map(
        lambda *leaves: sum(w * v for w, v in zip(sample.weights, leaves, strict=True)), *parts
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), total, gradient)


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 5))
def test_a_sample_keeps_to_its_size(clients, samples, seed):
    data = population([(7 * k) % 19 + 1 for k in range(25)])
    sample = Subproblem(BOWLS, data, clients=clients, samples=samples, seed=seed)
    assert len(set(sample.clients.tolist())) == min(clients, 25)
    assert (sample.taken == np.minimum(data.train.size[sample.clients], samples)).all()
    again = Subproblem(BOWLS, data, clients=clients, samples=samples, seed=seed)
    assert (again.clients == sample.clients).all()


def test_estimates_survive_json(known):
    found = known[2]
    assert from_row(json.loads(json.dumps(asdict(found)))) == found
    assert found.constants().similarity == found.similarity.value


def test_equal_seeds_give_equal_estimates_whatever_the_threads():
    data, models = population(SIZES, DIMENSION), models_along(2)
    budget = EstimateBudget(clients=3, samples=14, models=2, pairs=1)
    one, same, other = (estimate(BOWLS, data, models, budget=budget, seed=s) for s in (1, 1, 2))
    assert one == same
    assert one.smoothness != other.smoothness  # it starts elsewhere


def test_models_are_spaced_from_first_to_last():
    assert spaced(50, 3) == [0, 25, 50]
    assert spaced(2, 5) == [0, 1, 2]


@pytest.mark.parametrize("name", ["clients", "samples", "models", "pairs"])
def test_an_empty_budget_is_refused(name):
    with pytest.raises(fedmom.FedMomError, match=f"{name} 0 is too few to estimate from"):
        EstimateBudget(**{name: 0})
