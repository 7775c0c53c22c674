"""Intervals of the estimated constants: they contain their estimate, and mostly the truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmom.theory import estimate
from fedmom.theory.estimate import LEVEL, Measured, fit, summarize

NAMES = ("σ²", "G²", "B²", "gap")


@st.composite
def measurements(draw):
    """What can be seen: one client or many, equal or not, no noise, clients that agree."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    clients, models = draw(st.integers(1, 25)), draw(st.integers(2, 13))
    spread = draw(st.sampled_from([0.0, 0.1, 1.0, 30.0]))
    gradients = rng.normal(size=(models, 1, 3)) * rng.uniform(0.01, 3, (models, 1, 1))
    gradients = gradients + spread * rng.normal(size=(1, clients, 3)) ** 3
    weights = rng.uniform(0.1, 1, clients) ** draw(st.sampled_from([0, 1, 8]))
    noise = draw(st.sampled_from([0.0, 1.0]))
    return Measured(
        losses=rng.normal(size=(models, clients)) ** 2 + np.linspace(1, 0, models)[:, None],
        products=np.einsum("mid,mjd->mij", gradients, gradients),
        variances=noise * rng.exponential(size=(2, clients)) ** 3,
        weights=weights / weights.sum(),
        share=draw(st.sampled_from([1.0, 0.5, 0.01])),
    )


@given(measurements(), st.integers(0, 5))
def test_every_interval_contains_its_estimate(seen, seed):
    for name, found, least in zip(NAMES, summarize(seen, seed), (0, 0, 1, 0), strict=True):
        assert least <= found.low <= found.value <= found.high < np.inf, name


def test_percentiles_of_the_bootstrap_would_not_contain_them():
    """Why intervals are not made of them: of two clients, half of all samples have only one."""
    gradients = np.array([[[1.0, 1.0], [1.0, -1.0]], [[2.0, 1.0], [2.0, -1.0]]])
    products = np.einsum("mid,mjd->mij", gradients, gradients)
    halves = np.full(2, 0.5)
    seen = Measured(np.zeros((2, 2)), products, np.zeros((1, 2)), halves, share=0.01)
    found = summarize(seen, 0)[1]
    samples = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    draws = estimate._values(seen, samples, share=1.0)[1]
    assert draws.max() < found.value
    assert found.low < found.value < found.high


def test_a_mean_over_few_clients_is_too_long_and_over_all_is_not():
    """E|mean of n|² = |mean|² + variance/n; G² is what is left of Σ p_k|∇f_k|²."""
    rng = np.random.default_rng(0)
    clients, models = 4, 3
    centre = np.linspace(2, 1, models)[:, None, None]
    few, all_ = [], []
    for _ in range(2000):
        gradients = centre + rng.normal(size=(1, clients, 1))
        products = np.einsum("mid,mjd->mij", gradients, gradients)
        weights = np.full(clients, 1 / clients)
        for share, found in ((1e-9, few), (1.0, all_)):
            seen = Measured(np.zeros((models, clients)), products, np.zeros((1, clients)), weights)
            squares = estimate._values(seen, weights[None], share)
            found.append(squares[1][0])
    # With B² = 1 at all models G² is the variance, 1; of the clients themselves, 3/4 of it.
    assert np.mean(few) == pytest.approx(1, rel=0.1)
    assert np.mean(all_) == pytest.approx(3 / 4, rel=0.05)


# Coverage, on a population where the truth is known.

MODELS, DIMENSION = 6, 10
SLOPES = np.linspace(3, 0.5, MODELS)  # |∇f| at each model
SPREAD, NOISE = 1.5, (1.0, 0.8)  # of clients' gradients; σ² at two models
TRUTH = {"σ²": NOISE[0], "G²": SPREAD**2, "gap": 1.0}


def drawn(rng, clients):
    """Clients whose sizes do not depend on the rest: then σ² = 1, G² = SPREAD², B² = 1, gap = 1."""
    sizes = np.exp(0.4 * rng.normal(size=clients))
    away = rng.normal(size=(clients, DIMENSION)) * SPREAD / np.sqrt(DIMENSION)
    gradients = SLOPES[:, None, None] / np.sqrt(DIMENSION) + away
    variances = np.array(NOISE)[:, None] * rng.gamma(4, 1 / 4, clients)
    losses = np.linspace(2, 1, MODELS)[:, None] * (1 + 0.3 * rng.normal(size=clients))
    products = np.einsum("mid,mjd->mij", gradients, gradients)
    return Measured(losses, products, variances, sizes / sizes.sum(), share=1e-6)


def coverage(clients, repeats, seed=0):
    rng = np.random.default_rng(seed)
    hits = dict.fromkeys(TRUTH, 0)
    for _ in range(repeats):
        found = dict(zip(NAMES, summarize(drawn(rng, clients), 0), strict=True))
        for name, truth in TRUTH.items():
            hits[name] += found[name].low <= truth <= found[name].high
    return {name: count / repeats for name, count in hits.items()}


def test_intervals_contain_the_truth_about_as_often_as_they_say():
    """200 repeats have a standard error of 2 %."""
    for name, share in coverage(clients=20, repeats=200).items():
        assert share == pytest.approx(LEVEL, abs=0.06), name


@pytest.mark.slow
@pytest.mark.parametrize("clients", [5, 20, 40])
def test_intervals_contain_the_truth_for_few_and_many_clients(clients):
    """600 repeats have a standard error of 1.2 %; of five clients G²'s are too wide."""
    found = coverage(clients, repeats=600, seed=1)
    if clients == 5:
        assert LEVEL < found.pop("G²") < 1
    for name, share in found.items():
        assert share == pytest.approx(LEVEL, abs=0.04), name


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=2, max_size=8))
def test_the_fit_covers_every_point_and_no_smaller_one_does(pairs):
    x = np.array([a for a, _ in pairs])
    y = np.array([a + b for a, b in pairs])  # Σ p_k|∇f_k|² ≥ |∇f|²
    dissimilarity, similarity = fit(x, y)
    room = dissimilarity + similarity * x - y
    assert similarity >= 1
    assert room.min() >= -1e-9
    assert dissimilarity == 0 or room.min() <= 1e-9
