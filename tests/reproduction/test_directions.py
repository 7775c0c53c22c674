"""The inner products of FedAvg's steps with the way to a model, checked by hand."""

from itertools import pairwise

import jax
import numpy as np
import pytest
from rich.console import Console

from fedmom.core.errors import FedMomError
from fedmom.experiments.build import prepare
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import Checkpoint, RunFolder
from fedmom.experiments.settings import RunConfig
from fedmom.reproduction import directions

QUIET = Console(quiet=True)


def softmax_gradient(w, b, x, y):
    logits = x @ w + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return x.T @ p / len(y), p.mean(0)


@pytest.fixture
def trained(tmp_path):
    """FedAvg with one step on a client's whole data, which is FedSGD: done by hand below."""
    config = RunConfig(
        data="synthetic:clients=4",
        algorithm="fedavg",
        rounds=8,
        batch_size="all",
        local_steps=1,
        lr=0.02,
        eval_every=8,
        seed=3,
    )
    experiment = prepare(config)
    result = execute(RunFolder.create(tmp_path / "run", experiment.config), experiment)
    return result, experiment


def test_inner_products_by_hand(trained):
    run, experiment = trained
    data, config = experiment.data, experiment.config
    products = directions.replay(run.path, experiment, other=None, fedsgd=True, console=QUIET)
    start = experiment.start()
    leaves = {k.ndim: np.asarray(k, np.float64) for k in jax.tree.leaves(start.params)}
    w, b = leaves[2], leaves[1]
    sizes, points, gradients = data.train.size, [], []
    for row in run.rounds:
        gw, gb = np.zeros_like(w), np.zeros_like(b)
        for k in row["cohort"]:
            rows = slice(data.train.start[k], data.train.start[k] + sizes[k])
            x, y = data.arrays["x"][rows].astype(np.float64), data.arrays["y"][rows]
            dw, db = softmax_gradient(w, b, x, y)
            gw += sizes[k] / sizes.sum() * config.lr * dw
            gb += sizes[k] / sizes.sum() * config.lr * db
        points.append((w, b))
        gradients.append((gw, gb))
        w, b = w - config.server_lr * gw, b - config.server_lr * gb
    expected = [
        float(np.sum(gw * (pw - w)) + np.sum(gb * (pb - b)))
        for (gw, gb), (pw, pb) in zip(gradients, points, strict=True)
    ]
    assert len(expected) == config.rounds
    np.testing.assert_allclose(products.fedavg, expected, rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(products.fedsgd, expected, rtol=2e-3, atol=1e-6)
    assert products.elsewhere is None


def test_towards_its_own_end_the_sum_is_positive_whatever_the_steps(trained):
    """Σ<g, w - w*> = (|w₀ - w*|² + Σ|w' - w|²) / 2η, which the page says."""
    run, experiment = trained
    products = directions.replay(run.path, experiment, other=run.path, fedsgd=False, console=QUIET)
    start, runtime = experiment.start(), experiment.runtime()
    flats = [flat(start.params)]
    flats += [flat(after.params) for after, _ in experiment.train(start, runtime)]
    runtime.close()
    squares = sum(np.sum((a - b) ** 2) for a, b in pairwise(flats))
    expected = (np.sum((flats[0] - flats[-1]) ** 2) + squares) / (2 * experiment.config.server_lr)
    assert sum(products.fedavg) == pytest.approx(expected, rel=1e-6)
    assert products.elsewhere == products.fedavg  # the other run was this one
    assert products.fedsgd is None


def flat(params):
    return np.concatenate([np.asarray(p, np.float64).ravel() for p in jax.tree.leaves(params)])


def test_a_replay_that_ends_elsewhere_is_an_error(trained):
    run, experiment = trained
    folder = RunFolder.open(run.path)
    state, clients = folder.restore(experiment.start())
    moved = jax.tree.map(lambda p: p + 1, state.params)
    folder.save(Checkpoint(state._replace(params=moved), clients))
    with pytest.raises(FedMomError, match="did not end at its checkpoint"):
        directions.replay(run.path, experiment, other=None, fedsgd=False, console=QUIET)


def test_inner_products_are_kept_for_their_target_only(trained, tmp_path):
    run, experiment = trained
    kept = tmp_path / "kept"

    def made(other):
        found = directions.replay(run.path, experiment, other=other, fedsgd=False, console=QUIET)
        directions.store(kept, run.path, found)
        return found

    first = made(None)
    assert directions.stored(kept, run.path, None) == first
    assert directions.stored(kept, run.path, run.path) is None
    second = made(run.path)
    assert second.target == run.path.name
    assert directions.stored(kept, run.path, run.path) == second
    assert second.elsewhere == first.fedavg
