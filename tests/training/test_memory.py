"""What a run of a large net holds in memory, in copies of its parameters."""

import json
import subprocess
import sys

import pytest

PARAMETERS = 24_755_510
MEASURE = """
import json, pathlib, re, sys, tempfile, warnings
import fedmom, jax

warnings.simplefilter("ignore")


def peak(name="VmHWM"):
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(name + r":\\s+(\\d+)", status)[1])


data = fedmom.load_data("synthetic:clients=4")
jax.numpy.zeros(1).block_until_ready()
before, live = peak("VmRSS"), []
run = fedmom.run(
    data, "mlp:hidden=3500,layers=3", sys.argv[1], rounds=3, local_steps=1, batch_size=4, lr=0.001,
    clients_per_round=2, runtime="local:workers=2", eval_every=3, eval_samples=8,
    out=tempfile.mkdtemp(), progress=False,
    callbacks=[lambda _: live.append(sum(x.nbytes for x in jax.live_arrays())) and None],
)
size = sum(x.nbytes for x in jax.tree.leaves(run.params))
print(json.dumps([size, (peak() - before) / size, max(live) / size]))
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak")
@pytest.mark.parametrize(("algorithm", "most", "held"), [("fedavg", 8.5, 1), ("fedmom", 10, 2)])
def test_25_million_parameters_fit(algorithm, most, held):
    """The peak, and what is held between rounds: the model, and the server's velocity."""
    program = [sys.executable, "-c", MEASURE, algorithm]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    size, copies, between = json.loads(done.stdout.splitlines()[-1])
    assert size == 4 * PARAMETERS
    assert copies < most
    assert between < held + 0.1


TRANSFORMER = """
import fedmom, jax, numpy as np

text = {str(k): "the quick brown fox jumps over the lazy dog. " * 5 for k in range(2)}
data = fedmom.from_texts(text, window=40)
model = fedmom.build_model("char_gpt:layers=8,width=512,heads=8,remat=true", data.features)
work = fedmom.LocalWork(lr=0.01, steps=4, batch_size=8, accumulate=2)
method = fedmom.Algorithm(fedmom.servers.fedmom(), work, rule=fedmom.mean("cohort"))
runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, method), workers=1)
losses = [r.train_loss for _, r in fedmom.train(runtime, pace=fedmom.synchronous(2), rounds=3)]
sizes = [x.size for x in jax.tree.leaves(fedmom.start(runtime.workload).params)]
print(sum(sizes), *losses)
"""


@pytest.mark.slow
def test_a_transformer_of_25_million_parameters_trains():
    program = [sys.executable, "-c", TRANSFORMER]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    size, *losses = map(float, done.stdout.split())
    assert size > 25e6
    assert losses[-1] < losses[0] - 0.3
