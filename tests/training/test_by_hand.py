"""The package equals examples/by_hand.py, round by round, for the paper's three algorithms."""

import runpy

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedmom
from fedmom.algorithms import named
from fedmom.algorithms.local_work import LocalWork, full_gradient
from fedmom.training.samplers import cohort
from tests.conftest import ROOT, population
from tests.experiments import small

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
    work = LocalWork(lr=LR, steps=H, batch_size=B)
    algorithm = {
        "fedsgd": fedmom.servers.fedsgd(eta, LR),
        "fedavg": fedmom.Algorithm(fedmom.servers.fedavg(eta), work),
        "fedmom": fedmom.Algorithm(fedmom.servers.fedmom(eta, 0.9), work),
    }[name]
    model = fedmom.build_model("logreg", data.features)

    w0 = np.random.default_rng(1).normal(size=(5, 3)) / 5
    params = [{"w": jnp.asarray(w0[:4], jnp.float32), "b": jnp.asarray(w0[4], jnp.float32)}]
    model = model._replace(init=lambda _key: params)
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm, SEED))
    ones = np.ones((len(x), 1))
    rows = np.split(np.arange(len(x)), np.cumsum(SIZES)[:-1])
    clients = [(np.hstack([x, ones])[r].astype(float), y[r]) for r in rows]
    by_hand = BY_HAND["server"](
        name, w0, clients, ROUNDS, lambda t: documented_draws(t, full), LR, eta, 0.9
    )

    ours = fedmom.train(runtime, pace=fedmom.synchronous(M), rounds=ROUNDS)
    for (state, _), expected in zip(ours, by_hand, strict=True):
        stacked = np.vstack([state.params[0]["w"], state.params[0]["b"]])
        np.testing.assert_allclose(stacked, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(stacked - w0).max() > 0.1  # it did go somewhere


def test_fedsgd_by_name_by_its_function_and_put_together_by_hand_are_the_same():
    """All are one step on the gradient of a client's whole data."""
    data = population(SIZES)
    model = fedmom.build_model("logreg", data.features)
    settings = {"algorithm": "fedsgd", "server-lr": 2.5, "lr": LR, "rounds": 3}
    named_lr = small.prepared(**settings)
    assert named_lr.workload.work == full_gradient(LR)
    found = []
    for algorithm in (
        named_lr.workload.algorithm,
        named.algorithm("fedsgd", 2.5)._replace(work=full_gradient(LR)),
        fedmom.servers.fedsgd(2.5, LR),
        fedmom.Algorithm(fedmom.servers.fedavg(2.5), full_gradient(LR)),
        fedmom.Algorithm(optax.sgd(2.5), LocalWork(lr=LR, steps=1, batch_size=None)),
    ):
        runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm, SEED))
        *_, (state, _) = fedmom.train(runtime, pace=fedmom.synchronous(M), rounds=3)
        found.append([np.asarray(leaf) for leaf in jax.tree.leaves(state.params)])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)
