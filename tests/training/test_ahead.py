"""The server's programs are compiled while the clients compile theirs, and only then."""

import jax
import optax
import pytest

import fedmom
from fedmom.algorithms import build
from fedmom.runtimes import local
from tests.conftest import population
from tests.training.scripted import uniform

DATA = population([5, 9, 12, 4, 8, 6, 7, 5, 9, 6])
CLIPPED = build.algorithm("fedavg", aggregate="clip:norm=1+mean")


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
    algorithm = fedmom.Algorithm(server, stages=stages)
    work = fedmom.LocalWork(lr=0.1, steps=1)
    runtime = fedmom.LocalRuntime(DATA, model, work, algorithm, vectorized=vectorized)
    state = fedmom.start(model, algorithm)
    options = {"pace": uniform(DATA.train.size, asked), "samples": DATA.train.size, "rounds": 3}
    jax.config.update("jax_log_compiles", True)  # in all threads
    try:
        list(fedmom.train(state, runtime, algorithm, **options))
    finally:
        jax.config.update("jax_log_compiles", False)
    found = {
        name: [
            r.threadName
            for r in caplog.records
            if f"XLA compilation of jit({name})" in r.getMessage()
        ]
        for name in ("step", "summed")
    }
    sums = asked > 8 and not vectorized
    assert found == {"step": ["compile"], "summed": ["compile"] if sums else []}
