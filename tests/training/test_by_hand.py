"""The package equals examples/by_hand.py, round by round, for the paper's three algorithms."""

import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.algorithms import build
from fedmom.algorithms.client import LocalWork, full_gradient
from fedmom.training.samplers import cohort
from tests.conftest import ROOT, population
from tests.training.scripted import begin, uniform

BY_HAND = runpy.run_path(str(ROOT / "examples" / "by_hand.py"))
SIZES = [3, 7, 20, 55, 130]  # one client is smaller than a batch
ROUNDS, M, H, B, LR, SEED = 8, 2, 6, 10, 0.2, 5


def documented_draws(round_, full):
    """The rule of docs/algorithms.md, again: keys are folds of (seed, 1, round, client, step)."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), 1), round_)
    draws = {}
    for k in cohort(SEED, round_, len(SIZES), M).tolist():
        steps = (jax.random.fold_in(jax.random.fold_in(key, k), h) for h in range(H))
        rows = [np.asarray(jax.random.bits(s, (B,))) % SIZES[k] for s in steps]
        draws[k] = [np.arange(SIZES[k])] if full else rows
    return draws


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "fedmom"])
def test_the_package_equals_the_paper_by_hand(name):
    data = population(SIZES)
    x, y = (data.arrays[name][: sum(SIZES)] for name in "xy")
    eta = len(SIZES) / M
    full = name == "fedsgd"
    server = fedmom.fedmom(eta, 0.9) if name == "fedmom" else fedmom.fedavg(eta)
    algorithm = fedmom.Algorithm(server)
    work = full_gradient(LR) if full else LocalWork(lr=LR, steps=H, batch_size=B)
    model = fedmom.build_model("logreg", data.features)
    runtime = fedmom.LocalRuntime(data, model, work, algorithm, seed=SEED)

    w0 = np.random.default_rng(1).normal(size=(5, 3)) / 5
    params = [{"w": jnp.asarray(w0[:4], jnp.float32), "b": jnp.asarray(w0[4], jnp.float32)}]
    ones = np.ones((len(x), 1))
    rows = np.split(np.arange(len(x)), np.cumsum(SIZES)[:-1])
    clients = [(np.hstack([x, ones])[r].astype(float), y[r]) for r in rows]
    by_hand = BY_HAND["server"](
        name, w0, clients, ROUNDS, lambda t: documented_draws(t, full), LR, eta, 0.9
    )

    ours = fedmom.train(
        begin(algorithm, params),
        runtime,
        algorithm,
        pace=uniform(data.train.size, M),
        samples=data.train.size,
        rounds=ROUNDS,
        seed=SEED,
    )
    for (state, _), expected in zip(ours, by_hand, strict=True):
        stacked = np.vstack([state.params[0]["w"], state.params[0]["b"]])
        np.testing.assert_allclose(stacked, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(stacked - w0).max() > 0.1  # it did go somewhere


def test_fedsgd_by_name_is_full_gradients_whatever_the_local_work_says():
    data = population(SIZES)
    model = fedmom.build_model("logreg", data.features)
    named = build.algorithm("fedsgd", 2.5)
    params = model.init(jax.random.key(0))
    found = []
    for algorithm, work in (
        (named, LocalWork(lr=LR, steps=H, batch_size=B)),
        (fedmom.Algorithm(fedmom.fedavg(2.5)), full_gradient(LR)),
    ):
        runtime = fedmom.LocalRuntime(data, model, work, algorithm, seed=SEED)
        runtime.ask(0, np.arange(5), params)
        found.append(
            [np.ravel(leaf) for b in runtime.replies() for leaf in jax.tree.leaves(b.update)]
        )
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
