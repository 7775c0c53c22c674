"""Clients on several accelerators: four of the CPU's, in a process of its own."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import jax, numpy as np
import fedmom
from tests.conftest import population

assert len(jax.local_devices()) == 4
data = population([5, 9, 30, 12, 7, 3, 21, 8, 4], test_sizes=[3] * 9)
model = fedmom.build_model("mlp:hidden=8", data.features)
work = fedmom.LocalWork(lr=0.1, epochs=2, batch_size=4)
plain = fedmom.Algorithm(fedmom.servers.fedmom(), work, rule=fedmom.mean("cohort"))
methods = {
    "plain": (plain, model),
    "with states": (fedmom.diloco(steps=3, batch_size=4, warmup=5), model),
    "frozen": (plain, fedmom.lora(model, rank=2)),
}
for name, (method, net) in methods.items():
    for cohort in (3, 9) if name == "plain" else (8,):  # fewer than devices; one more than 8
        ends = []
        for vectorized in (True, False):
            runtime = fedmom.LocalRuntime(
                fedmom.Workload(data, net, method, seed=1), vectorized=vectorized
            )
            for state, record in fedmom.train(runtime, pace=fedmom.synchronous(cohort), rounds=3):
                assert record.replies == cohort
            ends.append((state.params, fedmom.evaluate(runtime, state.params, "test").loss))
            spread = [x for x in jax.live_arrays() if len(x.sharding.device_set) == 4]
            assert bool(spread) == vectorized, (name, vectorized)
            del runtime, spread
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *ends)
        print(name, cohort)
"""


@pytest.mark.thorough
def test_clients_on_four_devices_answer_as_on_one():
    flags = os.environ.get("XLA_FLAGS", "")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=4"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 4
