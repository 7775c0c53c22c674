"""Problems with known constants: are the constants right, and is the simulation our engine?"""

import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.problems import (
    Quadratics,
    Waves,
    gradient_squares,
    random_quadratics,
    random_waves,
    simulate,
)
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.algorithms import schedules
from fedmom.theory import CORRECTED_FEDMOM, Setting
from fedmom.training.samplers import cohort

seeds = st.integers(0, 2**32 - 1)


@st.composite
def problems(draw):
    """A problem, and points near and far."""
    rng = np.random.default_rng(draw(seeds))
    clients, dimension = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    points = rng.normal(size=(50, dimension)) * rng.choice([0.1, 1, 10], size=(50, 1))
    if draw(st.booleans()):
        return random_waves(rng, clients, dimension), points
    same = draw(st.booleans())
    return random_quadratics(rng, clients, dimension, same_curvature=same), points


def all_gradients(problem, w):
    clients = np.arange(len(problem.weights))
    return problem.client_gradients(np.tile(w, (len(clients), 1)), clients)


@given(problems())
def test_gradients_are_derivatives_and_add_up(case):
    problem, points = case
    for w in points[:5]:
        np.testing.assert_allclose(
            problem.weights @ all_gradients(problem, w), problem.gradient(w), atol=1e-9
        )
        step = 1e-5 * np.eye(len(w))
        slopes = (problem.value(w + step) - problem.value(w - step)) / 2e-5
        np.testing.assert_allclose(slopes, problem.gradient(w), rtol=1e-4, atol=1e-6)


@given(problems())
def test_the_constants_bound_what_they_say(case):
    problem, w = case
    constants = problem.constants(w[0])
    assert constants.gap == pytest.approx(float(problem.value(w[0])))
    assert np.all(problem.value(w) >= 0)
    for a, b in zip(w[1:], w[:-1], strict=True):
        apart = np.linalg.norm(all_gradients(problem, a) - all_gradients(problem, b), axis=1)
        assert np.all(apart <= constants.smoothness * np.linalg.norm(a - b) * (1 + 1e-9))
        squares = problem.weights @ np.sum(all_gradients(problem, a) ** 2, axis=1)
        own = np.sum(problem.gradient(a) ** 2)
        limit = constants.dissimilarity + constants.similarity * own
        assert squares <= limit * (1 + 1e-9) + 1e-9


@given(seeds, st.integers(2, 6), st.integers(1, 4), st.floats(1.1, 5))
def test_dissimilarity_of_quadratics_is_the_least(seed, clients, dimension, factor):
    """It is reached: where the derivative of Σ p_k|∇f_k|² - B²|∇f|² is 0."""
    problem = random_quadratics(np.random.default_rng(seed), clients, dimension)
    ratio = factor * problem.least_similarity
    mean = np.einsum("k,kij->ij", problem.weights, problem.matrices)
    square = np.einsum("k,kij,kjl->il", problem.weights, problem.matrices, problem.matrices)
    tilt = np.einsum("k,kij,kj->i", problem.weights, problem.matrices, problem.slopes)
    pull = ratio * mean @ (problem.weights @ problem.slopes) - tilt
    w = np.linalg.solve(ratio * mean @ mean - square, pull)
    excess = problem.weights @ np.sum(all_gradients(problem, w) ** 2, axis=1)
    excess -= ratio * np.sum(problem.gradient(w) ** 2)
    assert problem.dissimilarity(ratio) == pytest.approx(excess)


def test_dissimilarity_of_waves_is_reached_where_all_waves_rise():
    problem = random_waves(np.random.default_rng(0), 4, 3)
    at = np.zeros(3)
    squares = problem.weights @ np.sum(all_gradients(problem, at) ** 2, axis=1)
    assert np.all(problem.gradient(at) == 0)
    assert problem.constants(at).dissimilarity == pytest.approx(squares)


def test_the_same_curvature_makes_clients_differ_by_a_constant():
    problem = random_quadratics(np.random.default_rng(0), 4, 3, same_curvature=True)
    constants = problem.constants(np.zeros(3))
    for w in np.random.default_rng(1).normal(size=(5, 3)):
        squares = problem.weights @ np.sum(all_gradients(problem, w) ** 2, axis=1)
        own = np.sum(problem.gradient(w) ** 2)
        assert squares == pytest.approx(constants.dissimilarity + own)
    assert constants.similarity == 1


def test_too_small_a_ratio_is_refused():
    problem = random_quadratics(np.random.default_rng(0), 4, 3)
    with pytest.raises(fedmom.FedMomError, match="too small"):
        problem.dissimilarity(1.0)
    with pytest.raises(fedmom.FedMomError, match="cancel"):
        Waves(np.array([0.5, 0.5]), np.ones((2, 1)))


# The package's own engine on the same problems.


def as_data(problem, sizes, offsets):
    """Every sample is a quadratic: client k's matrix, and its slope plus or minus an offset."""
    rows, ids = [], []
    for k, size in enumerate(sizes):
        for i in range(size):
            slope = problem.slopes[k] + (-1) ** i * offsets[k]
            rows.append(np.append(problem.matrices[k], slope))
            ids.append(k)
    x = np.array(rows, np.float32)
    return fedmom.from_arrays(x, np.zeros(len(x), int), np.array(ids))


def as_model(start):
    d = len(start)

    def losses(w, x, _key):
        matrices, slopes = x[:, : d * d].reshape(-1, d, d), x[:, d * d :]
        return jnp.einsum("i,nij,j->n", w, matrices, w) / 2 - slopes @ w

    return fedmom.Model(lambda _key: jnp.asarray(start, jnp.float32), losses, lambda out, _y: out)


def engine(problem, setting, lr, rounds, start, sizes, offsets, seed=0):
    """The models w_0 ... w_T of a run of fedmom.train."""
    model = as_model(start)
    data = as_data(problem, sizes, offsets)
    work = fedmom.LocalWork(lr=lr, steps=setting.local_steps, batch_size=1)
    server = fedmom.servers.fedmom(setting.server_lr, setting.momentum)
    workload = fedmom.Workload(data, model, fedmom.Algorithm(server, work), seed)
    runtime = fedmom.LocalRuntime(workload, workers=1)
    models = [workload.params()]
    pace = fedmom.synchronous(setting.per_round)
    for state, _record in fedmom.train(runtime, pace=pace, rounds=rounds):
        models.append(state.params)
    return np.array(models, float)


def unequal_quadratics(variance=0.0):
    sizes = np.array([2, 4, 2, 6])
    drawn = random_quadratics(np.random.default_rng(3), len(sizes), 2, variance=variance)
    return Quadratics(sizes / sizes.sum(), drawn.matrices, drawn.slopes, variance), sizes


@pytest.mark.parametrize(
    ("momentum", "lr"), [(0.0, 0.05), (0.8, 0.05), (0.8, "inverse_sqrt:start=0.05")]
)
def test_the_simulation_is_the_engine(momentum, lr):
    problem, sizes = unequal_quadratics()
    setting = Setting(4, 2, 5, server_lr=1.7, momentum=momentum)
    start, schedule = np.array([2.0, -1.0]), schedules.parse(lr)
    lrs = np.array([schedules.at(schedule, t) for t in range(30)])
    ours = engine(problem, setting, schedule, 30, start, sizes, np.zeros((4, 2)))
    plain = simulate(problem, setting, lrs, 30, start, draw=lambda t: cohort(0, t, 4, 2)[None])
    np.testing.assert_allclose(ours, plain[:, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_bound_holds_on_the_engine_with_real_batches(momentum):
    """A batch is one of two samples, so that a client's noise is its offset, plus or minus."""
    problem, sizes = unequal_quadratics(variance=1.0)
    angles = np.linspace(0, 3, len(sizes))
    offsets = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # of length 1, so σ² = 1
    setting = Setting(4, 2, 4, 2.0, momentum, float(problem.weights.max()))
    start = problem.minimizer + 1.0
    constants = problem.constants(start)
    lr = CORRECTED_FEDMOM.max_lr(constants, setting)
    rounds = 60
    runs = [engine(problem, setting, lr, rounds, start, sizes, offsets, seed) for seed in range(4)]
    squares = gradient_squares(problem, np.stack(runs, axis=1))[:-1].mean(axis=1)
    counts = np.arange(1, rounds + 1)
    means = np.cumsum(squares) / counts
    assert np.all(means <= CORRECTED_FEDMOM.bound(constants, setting, lr, counts))
