"""The package equals examples/by_hand.py, round by round, for the paper's three algorithms."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from conftest import population
from fedmom.clients import LocalWork, full_gradient
from fedmom.rounds import State

BY_HAND = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "by_hand.py"))
SIZES = [3, 7, 20, 55, 130]  # one client is smaller than a batch
ROUNDS, M, H, B, LR, SEED = 8, 2, 6, 10, 0.2, 5


def documented_draws(round_, full):
    """The rule of docs/algorithms.md, again: keys are folds of (seed, 1, round, client, step)."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), 1), round_)
    draws = {}
    for k in fedmom.cohort(SEED, round_, len(SIZES), M).tolist():
        steps = (jax.random.fold_in(jax.random.fold_in(key, k), h) for h in range(H))
        rows = [np.asarray(jax.random.bits(s, (B,))) % SIZES[k] for s in steps]
        draws[k] = [np.arange(SIZES[k])] if full else rows
    return draws


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg", "fedmom"])
def test_the_package_equals_the_paper_by_hand(algorithm):
    data = population(SIZES)
    x, y = data.arrays["x"], data.arrays["y"]
    eta = len(SIZES) / M
    full = algorithm == "fedsgd"
    server = fedmom.fedmom(eta, 0.9) if algorithm == "fedmom" else fedmom.fedavg(eta)
    work = full_gradient(LR) if full else LocalWork(lr=LR, steps=H, batch_size=B)
    model = fedmom.build_model("logreg", data.features)
    runtime = fedmom.LocalRuntime(data, model, work, seed=SEED)

    w0 = np.random.default_rng(1).normal(size=(5, 3)) / 5
    params = [{"w": jnp.asarray(w0[:4], jnp.float32), "b": jnp.asarray(w0[4], jnp.float32)}]
    ones = np.ones((len(x), 1))
    rows = np.split(np.arange(len(x)), np.cumsum(SIZES)[:-1])
    clients = [(np.hstack([x, ones])[r].astype(float), y[r]) for r in rows]
    by_hand = BY_HAND["server"](
        algorithm, w0, clients, ROUNDS, lambda t: documented_draws(t, full), LR, eta, 0.9
    )

    ours = fedmom.train(
        State(0, params, server.init(params)),
        runtime,
        server,
        samples=data.train.size,
        rounds=ROUNDS,
        clients_per_round=M,
        seed=SEED,
    )
    for (state, _), expected in zip(ours, by_hand, strict=True):
        stacked = np.vstack([state.params[0]["w"], state.params[0]["b"]])
        np.testing.assert_allclose(stacked, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(stacked - w0).max() > 0.1  # it did go somewhere
