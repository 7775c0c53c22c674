"""A real task as quadratic clients: Lanczos' method, what is measured, the match, the command."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedmom
from fedmom.cli import theory as commands
from fedmom.experiments import build, settings
from fedmom.theory.expected_loss import Recursion
from fedmom.theory.measurement_budget import SpectrumBudget
from fedmom.theory.momentum_prediction import (
    ShortRun,
    map_of_task,
    match_task,
    plan_of,
    predict,
    thinned_sizes,
    ticks,
)
from fedmom.theory.spectrum import lanczos, measure
from fedmom.training.subproblem import Subproblem
from tests.cli.command import invoke

TASK = {"data": "synthetic:clients=8", "algorithm": "fedavg", "lr": 0.01, "rounds": 20}
LOOK = SpectrumBudget(
    clients=4, samples=32, hessian_samples=16, gradient_steps=4, steps=3, vectors=2
)


def task(**more):
    given = {name.replace("_", "-"): value for name, value in more.items()}
    return build.prepare(settings.parse({**TASK, **given}))


def test_lanczos_finds_all_of_a_small_spectrum():
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    values = np.array([-1.0, 0.1, 0.5, 2.0, 3.0, 10.0])
    start = rng.normal(size=6)
    found, steepest = lanczos(lambda v: turn @ (values * (turn.T @ v)), start, 20)
    np.testing.assert_allclose(found.curvature, values, atol=1e-8)
    np.testing.assert_allclose(found.energy, (turn.T @ start) ** 2, atol=1e-8)
    assert abs(steepest @ turn[:, -1]) == pytest.approx(1)


def test_a_quadrature_keeps_the_first_moments():
    """Fewer products than curvatures: Σ energy, and Σ energy x curvature, are still exact."""
    values = np.geomspace(1, 100, 40)
    start = np.random.default_rng(0).normal(size=40)
    found, _ = lanczos(lambda v: values * v, start, 5)
    assert len(found.energy) == 5
    for power in range(8):
        exact = start**2 @ values**power
        assert found.energy @ found.curvature**power == pytest.approx(exact, rel=1e-9)


def test_no_gradient_is_no_spectrum():
    with pytest.raises(fedmom.FedMomError, match="length 0"):
        lanczos(lambda v: v, np.zeros(3), 2)


def test_energies_add_up_to_what_is_measured():
    experiment = task()
    params = experiment.start().params
    seen = []
    found = measure(experiment, params, LOOK, lambda: seen.append(1))
    sample = Subproblem(experiment.model, experiment.data, clients=4, samples=32)
    loss, slope = sample.gradient(params)
    flat = [jax.flatten_util.ravel_pytree(sample.gradient(params, k)[1])[0] for k in range(4)]
    mean = jax.flatten_util.ravel_pytree(slope)[0]
    squares = np.array([float(np.sum((np.asarray(row) - mean) ** 2)) for row in flat])
    assert found.loss == pytest.approx(float(loss))
    assert found.gradient.energy.sum() == pytest.approx(float(mean @ mean), rel=1e-4)
    assert found.difference.energy.sum() == pytest.approx(
        sample.weights @ squares * 4 / 3, rel=1e-4
    )
    assert found.noise.energy.sum() > 0
    assert found.sharpness_spread > 0
    assert len(seen) <= LOOK.products


def test_the_match_has_the_tasks_loss_and_ends_where_the_short_run_did():
    experiment = task(weighting="cohort", clients_per_round=3)
    spectrum = measure(experiment, experiment.start().params, LOOK)
    run = ShortRun(lr=0.01, rounds=10, first=spectrum.loss, last=0.7 * spectrum.loss)
    match = match_task(experiment, spectrum, run, lowest_loss=0.1)
    assert match.clients.excess(match.clients.start) == pytest.approx(run.first - 0.1, rel=1e-6)
    end = Recursion(match.clients, match.plan).after(0.01, 10)[0]
    assert end == pytest.approx(run.last - 0.1, rel=0.01)
    assert match.floor < match.steepest
    with pytest.raises(fedmom.FedMomError, match="lowest loss"):
        match_task(experiment, spectrum, run, lowest_loss=99.0)


def test_the_plan_is_that_of_the_run():
    sizes = np.array([5, 15, 25, 200])
    epochs = plan_of(task(local_epochs=2, weighting="cohort", average=0.9), sizes, groups=9)
    assert epochs.steps.tolist() == [2, 4, 6, 40]
    assert (epochs.epochs, epochs.weighting, epochs.average) == (2, "cohort", 0.9)
    few = plan_of(task(local_epochs=1), sizes, groups=2)
    assert few.steps.tolist() == [2, 2, 12, 12]
    assert few.eta(550) == 275  # K/M of the population at hand
    cosine = plan_of(task(lr="cosine:start=0.1,rounds=20", local_steps=3), sizes)
    assert (cosine.decay, cosine.steps.tolist()) == ("cosine", [3] * 4)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"lr": "linear:start=1,end=0.1,rounds=9"}, "cosine"),
        ({"solver": "adam"}, "plain SGD"),
        ({"pace": "over_selected:extra=0.3"}, "synchronous"),
    ],
)
def test_what_the_recursion_does_not_cover_is_refused(more, says):
    with pytest.raises(fedmom.FedMomError, match=says):
        plan_of(task(**more), np.array([1, 2]))


def test_large_populations_are_thinned_by_size():
    sizes = np.arange(1, 10_001)
    few = thinned_sizes(sizes)
    assert len(few) == 600
    assert few.mean() == pytest.approx(sizes.mean(), rel=0.01)


def test_a_task_is_predicted_and_marked_on_its_map():
    experiment = task(clients_per_round=3)
    seen = []
    first, second = predict(experiment, short_run=5, budget=LOOK, tick=lambda: seen.append(1))
    assert (first.round_, second.round_) == (0, 5)
    assert first.run.last == second.run.first
    assert len(seen) <= ticks(5, LOOK)
    found, (row, column) = map_of_task(second.matched, 20)
    assert (found.rows[row], found.rounds[column]) == ("3", 20)
    assert found.duels[row][column].ratio == pytest.approx(second.duel.ratio, rel=0.01)


def test_the_command_predicts_and_draws(monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "SpectrumBudget", lambda clients: replace(LOOK, clients=clients))
    text = invoke(
        *("theory", "momentum", "--data=synthetic:clients=8", "--lr=0.01", "--rounds=20"),
        *("--short-run=5", "--clients=4", f"--out={tmp_path}"),
    )
    for part in ("Measured", "Predicted", "of round 0", "of round 5", "your task", "momentum.png"):
        assert part in text
