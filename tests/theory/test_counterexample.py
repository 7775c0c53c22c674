"""The counterexample to the paper's Theorem 1, run and drawn."""

import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.problems import Quadratics, gradient_squares, simulate

import fedmom
from fedmom.theory import CORRECTED_FEDAVG, CORRECTED_FEDMOM, THEOREM_1, lemma1
from fedmom.theory import counterexample as example

STEPS, LR = 50, 1 / 200


def end():
    """w = (qw + w + γH)/2 with q = (1-γ)^H, solved for w."""
    return LR * STEPS / (1 - (1 - LR) ** STEPS)


def gradient_square(w):
    return ((w - 1) / 2) ** 2  # f(w) = w²/4 - w/2


def test_every_assumption_is_met():
    constants, setting = example.CONSTANTS, example.SETTING
    assert (constants.smoothness, constants.variance) == (1, 0)
    assert constants.gap == pytest.approx((3**2 / 4 - 3 / 2) - (1 / 4 - 1 / 2))
    assert constants.dissimilarity == pytest.approx(1 + 1 / (constants.similarity - 2))
    assert setting.local_steps == STEPS
    assert pytest.approx(LR) == example.LR
    assert THEOREM_1.applies(constants, setting, example.LR)
    assert CORRECTED_FEDMOM.applies(constants, setting, example.LR)


def test_constants_and_path_are_those_of_the_quadratics():
    problem = Quadratics(
        np.full(2, 0.5), example.CURVATURES[:, None, None], example.SLOPES[:, None]
    )
    start = np.array([example.START])
    assert problem.constants(start, example.CONSTANTS.similarity) == example.CONSTANTS
    models = simulate(problem, example.SETTING, example.LR, 300, start)[:-1, 0]
    np.testing.assert_array_equal(example.measured(300), gradient_squares(problem, models))


def test_fedavg_ends_beside_the_minimum():
    squares = example.measured(2000)
    assert example.limit() == pytest.approx(end())
    assert squares[0] == pytest.approx(gradient_square(3.0))
    assert squares[-1] == pytest.approx(gradient_square(end()), rel=1e-9)
    assert np.all(np.diff(squares) <= 0)


def test_the_engine_ends_there_too():
    """fedmom.train itself, on one sample for each client: the curvature and the slope."""
    x = np.array([[1.0, 0.0], [0.0, -1.0]], np.float32)
    data = fedmom.from_arrays(x, np.zeros(2, int), np.arange(2))
    model = fedmom.Model(
        lambda _key: jnp.float32(3.0),
        lambda w, x, _key: x[:, 0] * w**2 / 2 + x[:, 1] * w,
        lambda out, _y: out,
    )
    work = fedmom.LocalWork(lr=LR, steps=STEPS, batch_size=1)
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(1.0), work)
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm), workers=1)
    path = [3.0]
    for state, _ in fedmom.train(runtime, pace=fedmom.synchronous(2), rounds=200):
        path.append(float(state.params))
    expected = [3.0]
    for _ in range(200):
        expected.append((expected[-1] * (1 + (1 - LR) ** STEPS) + LR * STEPS) / 2)
    np.testing.assert_allclose(path, expected, rtol=1e-5)
    squares = [gradient_square(w) for w in expected[:-1]]
    np.testing.assert_allclose(example.measured(200), squares, rtol=1e-9)


def test_the_papers_bound_falls_below_the_truth():
    found = example.compare()
    stays = gradient_square(end())
    # 2K gap/(ηMHγT) = 8/T: below what stays from here on.
    crossing = np.floor(8 / stays) + 1
    assert found.crossing == crossing
    assert 1900 < crossing < 2100
    late = found.rounds >= crossing
    assert np.all(found.paper[late] < found.measured[late])
    assert THEOREM_1.bound(example.CONSTANTS, example.SETTING, LR, 1e9) < stays / 1e5


def test_the_corrected_bound_stays_above_for_all_rounds():
    found = example.compare()
    assert np.all(found.measured <= found.corrected)
    forever = CORRECTED_FEDAVG.bound(example.CONSTANTS, example.SETTING, LR, 1e30)
    assert forever > gradient_square(end())


def test_lemma_1_contradicts_itself_at_the_end():
    """A round from the fixed point leaves f as it is; the lemma says that f falls."""
    w = end()
    path = w * (1 - LR) ** np.arange(STEPS)  # client 1; client 2's gradient is -1 everywhere
    local = np.sum(path**2) / 2 + STEPS / 2
    loss = w**2 / 4 - w / 2
    after = (w * (1 - LR) ** STEPS + w + LR * STEPS) / 2
    assert after == pytest.approx(w)
    claimed = lemma1(example.CONSTANTS, example.SETTING, LR, loss, gradient_square(w), local)
    assert claimed < loss - 1e-3


def test_the_figure_shows_the_three_curves():
    figure = example.figure()
    (chart,) = figure.charts
    assert chart.log_x
    assert chart.log_y
    measured, paper, corrected = (np.asarray(line.y) for line in chart.marks)
    assert paper[-1] < measured[-1] < corrected[-1]
    early = np.asarray(chart.marks[0].x) < 8 / gradient_square(end())
    assert np.all(measured[early] <= paper[early])
    assert f"{end():.5f}" in figure.note
