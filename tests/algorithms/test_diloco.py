"""DiLoCo against NumPy: AdamW whose moments last over rounds, Nesterov as PyTorch writes it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.core.errors import FedMomError
from fedmom.core.prng import clients_key
from tests import by_hand
from tests.conftest import population
from tests.models import nets

SIZES, SEED, ROUNDS, H, B = [12, 20], 4, 4, 3, 5
ETA, BETA, LR, WARMUP, DECAY, B1, B2 = 0.7, 0.9, 0.05, 8, 0.1, 0.9, 0.95
OPTIONS = {"steps": H, "batch_size": B, "warmup": WARMUP, "b2": B2}


def worker(theta, moments, rows_of_step, x, y):
    """H steps of AdamW; ``moments`` are m, v and the steps taken in earlier rounds."""
    m, v, done = moments
    w = theta.copy()
    for rows in rows_of_step:
        _, _, gradient = by_hand.logreg([{"w": w[:-1], "b": w[-1]}], x[rows], y[rows])
        g = np.vstack([gradient[0]["w"], gradient[0]["b"]])
        rate = LR * min(1, (done + 1) / WARMUP)
        done += 1
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
        step = m / (1 - B1**done) / (np.sqrt(v / (1 - B2**done)) + 1e-8)
        w = w - rate * (step + DECAY * w)
    return w, (m, v, done)


def test_rounds_are_the_papers():
    data = population(SIZES)
    model = fedmom.build_model("logreg", data.features)
    theta = np.random.default_rng(1).normal(size=(5, 3)) / 5
    params = [{"w": jnp.asarray(theta[:4], jnp.float32), "b": jnp.asarray(theta[4], jnp.float32)}]
    workload = fedmom.Workload(data, model, fedmom.diloco(lr=LR, **OPTIONS), SEED)
    start = fedmom.start(workload)._replace(params=params)
    runtime = fedmom.LocalRuntime(workload)
    ours = fedmom.train(runtime, pace=fedmom.synchronous(2), rounds=ROUNDS, state=start)

    momentum = np.zeros_like(theta)
    moments = {k: (np.zeros_like(theta), np.zeros_like(theta), 0) for k in (0, 1)}
    for state, record in ours:
        delta = 0
        for k, size in enumerate(SIZES):
            key = jax.random.fold_in(clients_key(SEED), record.round - 1)
            own = jax.random.fold_in(key, k)
            bits = [np.asarray(jax.random.bits(jax.random.fold_in(own, h), (B,))) for h in range(H)]
            x, y = by_hand.read(data, data.train.start[k] + np.arange(size))
            local, moments[k] = worker(theta, moments[k], [b % size for b in bits], x, y)
            delta = delta + size / sum(SIZES) * (theta - local)
        momentum = BETA * momentum + delta
        theta = theta - ETA * (delta + BETA * momentum)
        found = np.vstack([state.params[0]["w"], state.params[0]["b"]])
        np.testing.assert_allclose(found, theta, rtol=1e-4, atol=1e-5)
    assert moments[0][2] == ROUNDS * H > WARMUP  # past the warm-up


def test_a_run_by_name_says_what_it_does_and_resumes_with_its_moments(tmp_path):
    settings = {"algorithm": "diloco:steps=6,batch_size=4,warmup=10", "clients_per_round": 4}
    settings |= {"rounds": 4, "eval_every": 2, "progress": False}
    whole = fedmom.run("synthetic:clients=4", out=tmp_path / "whole", **settings)
    assert whole.settings["lr"] == 4e-4
    assert (whole.settings["server-lr"], whole.settings["momentum"]) == (0.7, 0.9)
    assert (whole.settings["local-steps"], whole.settings["batch-size"]) == (6, 4)
    assert whole.settings["weighting"] == "cohort"
    stop = [lambda event: event.round == 2]
    fedmom.run("synthetic:clients=4", out=tmp_path / "parts", callbacks=stop, **settings)
    parts = fedmom.resume(tmp_path / "parts", progress=False)
    jax.tree.map(np.testing.assert_array_equal, whole.params, parts.params)


def test_what_the_recipe_says_is_not_said_by_settings(tmp_path):
    with pytest.raises(FedMomError, match="brings its own local work: leave local-steps 5 out"):
        fedmom.run("synthetic:clients=4", algorithm="diloco", local_steps=5, out=tmp_path / "run")


def test_layers_that_stay_on_the_client_are_refused():
    data = population([8, 8], dimension=nets.INPUTS, classes=nets.OUTPUTS)
    model = fedmom.model(nets.linen_net(), data, state="local")
    workload = fedmom.Workload(data, model, fedmom.diloco(**OPTIONS))
    steps = fedmom.train(fedmom.LocalRuntime(workload), pace=fedmom.synchronous(2), rounds=1)
    with pytest.raises(FedMomError, match='state="average"'):
        next(steps)
