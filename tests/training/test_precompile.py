"""The server's programs are compiled while the clients compile theirs, and only then."""

import jax
import optax
import pytest

import fedmom
from fedmom.algorithms import named
from fedmom.runtimes import local
from tests.conftest import population

# Inputs of a length of their own: the sum of updates is shared with all runs of this process.
DATA = population([5, 9, 12, 4, 8, 6, 7, 5, 9, 6], dimension=11)
CLIPPED = named.algorithm("fedavg", aggregate="clip:norm=1+mean")


@pytest.mark.parametrize(
    ("asked", "short", "vectorized", "stages"),
    [
        pytest.param(2, 0, False, (), id="threads"),
        pytest.param(10, 0, False, (), id="threads, several sums"),
        pytest.param(3, float("inf"), False, (), id="in one call"),
        pytest.param(10, 0, True, CLIPPED.stages, id="vectorized, clipped"),
    ],
)
def test_sums_and_step_are_compiled_once_and_ahead(
    asked, short, vectorized, stages, monkeypatch, caplog
):
    monkeypatch.setattr(local, "SHORT", short)
    monkeypatch.setattr(local, "CALL", 0)
    model = fedmom.build_model("logreg", DATA.features)
    server = optax.sgd(0.5)  # its own, so that nothing of it is compiled yet
    work = fedmom.LocalWork(lr=0.1, steps=1)
    workload = fedmom.Workload(DATA, model, fedmom.Algorithm(server, work, stages=stages))
    runtime = fedmom.LocalRuntime(workload, vectorized=vectorized)
    state = fedmom.start(workload)
    jax.config.update("jax_log_compiles", True)  # in all threads
    try:
        list(fedmom.train(runtime, pace=fedmom.synchronous(asked), rounds=3, state=state))
    finally:
        jax.config.update("jax_log_compiles", False)
    found = {
        name: [
            r.threadName
            for r in caplog.records
            if f"XLA compilation of jit({name})" in r.getMessage()
        ]
        for name in ("step", "add")
    }
    sums = asked > 8 and not vectorized
    assert found == {"step": ["compile"], "add": ["compile"] if sums else []}
