"""The examples of own methods and runtimes, against independent versions in NumPy."""

import runpy

import jax
import numpy as np
import pytest

import fedmom
from tests.conftest import ROOT, population

K, M, ROUNDS, LR, STEPS = 6, 3, 8, 0.2, 4


def softmax_gradient(w, b, x, y):
    """The mean gradient of softmax regression, in doubles, and the mean loss."""
    logits = x @ w + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    p[np.arange(len(y)), y] -= 1
    return x.T @ p / len(y), p.mean(0), loss


def samples_of(data, k):
    rows = slice(data.train.start[k], data.train.start[k] + data.train.size[k])
    return data.arrays["x"][rows].astype(float), data.arrays["y"][rows]


def numpy_scaffold(data, w, b, cohorts):
    """Karimireddy et al.'s Algorithm 1, option II, on full local gradients; global step 1."""
    mine = {k: (np.zeros_like(w), np.zeros_like(b)) for k in range(K)}
    c = np.zeros_like(w), np.zeros_like(b)
    for cohort in cohorts:
        moved, changes = [], []
        for k in cohort:
            x, y = samples_of(data, k)
            u, v = w, b
            for _ in range(STEPS):
                gw, gb, _ = softmax_gradient(u, v, x, y)
                u = u - LR * (gw - mine[k][0] + c[0])
                v = v - LR * (gb - mine[k][1] + c[1])
            new = tuple(
                own - mean + (a - z) / (STEPS * LR)
                for own, mean, a, z in zip(mine[k], c, (w, b), (u, v), strict=True)
            )
            moved.append((u - w, v - b))
            changes.append(tuple(n - o for n, o in zip(new, mine[k], strict=True)))
            mine[k] = new
        w, b = (part + np.mean([m[i] for m in moved], 0) for i, part in enumerate((w, b)))
        c = tuple(
            part + len(cohort) / K * np.mean([d[i] for d in changes], 0) for i, part in enumerate(c)
        )
    return w, b, mine


def test_scaffold_outside_the_package_is_scaffold():
    source = ROOT / "examples" / "own_method.py"
    assert len(source.read_text().splitlines()) <= 55
    scaffold = runpy.run_path(str(source))["scaffold"]
    data = population([5, 9, 3, 14, 7, 6])
    model = fedmom.build_model("logreg", data.features)
    work = fedmom.LocalWork(lr=LR, steps=STEPS, batch_size=None)
    workload = fedmom.Workload(data, model, scaffold(share=M / K)._replace(work=work))
    runtime = fedmom.LocalRuntime(workload)
    start = fedmom.start(workload)
    rounds = list(fedmom.train(runtime, pace=fedmom.synchronous(M), rounds=ROUNDS))
    assert all(record.metrics["client/correction"] >= 0 for _, record in rounds)
    w, b = (np.asarray(start.params[0][n], float) for n in ("w", "b"))
    w, b, mine = numpy_scaffold(data, w, b, [record.cohort for _, record in rounds])
    last = rounds[-1][0].params[0]
    np.testing.assert_allclose(last["w"], w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last["b"], b, rtol=1e-4, atol=1e-5)
    tensors = runtime.snapshot().tensors
    seen = sorted({k for _, record in rounds for k in record.cohort})
    assert tensors["states/clients"].tolist() == seen
    for row, k in enumerate(seen):
        leaves = [tensors["states/0"][row], tensors["states/1"][row]]  # b before w
        np.testing.assert_allclose(leaves[1], mine[k][0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(leaves[0], mine[k][1], rtol=1e-3, atol=1e-4)


def test_pytorch_clients_train_as_numpy_does():
    pytest.importorskip("torch", reason="torch is not installed")
    runtime_of = runpy.run_path(str(ROOT / "examples" / "own_runtime.py"))["TorchRuntime"]
    data = population([5, 9, 3, 14, 7, 6], test_sizes=[2, 0, 1, 4, 3, 2])
    model = fedmom.build_model("logreg", data.features)
    work = fedmom.LocalWork(lr=LR, steps=STEPS, batch_size=2)
    method = fedmom.Algorithm(fedmom.servers.fedavg(), work, rule=fedmom.mean("cohort"))
    workload = fedmom.Workload(data, model, method, seed=5)
    runtime = runtime_of(workload)
    start = fedmom.start(workload)
    rounds = list(fedmom.train(runtime, pace=fedmom.synchronous(M), rounds=ROUNDS))
    w, b = (np.asarray(start.params[0][n], float) for n in ("w", "b"))
    for number, (_, record) in enumerate(rounds):
        ends = []
        for k in record.cohort:
            x, y = samples_of(data, k)
            u, v = w, b
            rng = np.random.default_rng((5, number, k))
            for _ in range(STEPS):
                rows = rng.integers(0, len(y), 2)
                gw, gb, _ = softmax_gradient(u, v, x[rows], y[rows])
                u, v = u - LR * gw, v - LR * gb
            ends.append((u, v))
        n = data.train.size[record.cohort]
        w, b = (np.average([end[i] for end in ends], 0, weights=n) for i in range(2))
    np.testing.assert_allclose(rounds[-1][0].params[0]["w"], w, rtol=1e-4, atol=1e-5)
    ours = fedmom.evaluate(runtime, rounds[-1][0].params, "test")
    jax_runtime = fedmom.LocalRuntime(workload)
    same = fedmom.evaluate(jax_runtime, jax.device_put(rounds[-1][0].params), "test")
    assert ours.loss == pytest.approx(same.loss, rel=1e-5)
    assert ours.accuracy == same.accuracy
