"""Programs are compiled once: for all rounds, for equal runs, whoever drops out or is drawn."""

import os
import subprocess
import sys

import numpy as np
import optax
import pytest

import fedmom
from fedmom.algorithms import named
from fedmom.algorithms.client import LOCAL_TRAINING
from fedmom.algorithms.forms import Form
from fedmom.algorithms.local_work import LocalWork
from fedmom.data.batches import reader
from fedmom.runtimes import local
from fedmom.runtimes.client_programs import compiled
from fedmom.runtimes.sums import AT_ONCE
from fedmom.training.aggregate import compile_programs
from fedmom.training.loop import broadcast_of
from tests.conftest import population
from tests.experiments import small
from tests.models.nets import plain_net
from tests.training.scripted import SIZES, UPDATES, Scripted, block, fedavg, rounds, workload

WORK = LocalWork(lr=0.1, steps=1)


def programs_of(run):
    """The server's compiled programs of a workload."""
    broadcast = broadcast_of(run, fedmom.start(run))
    return compile_programs(run.method, tuple(map(Form.of, run.method.forms(broadcast))))


def test_a_run_compiles_its_programs_once():
    data = population([5, 9, 30])
    model = fedmom.build_model("logreg", data.features)
    work = LocalWork(lr=0.1, steps=2, prox=0.3)  # its own, so that its program is this test's
    algorithm = fedmom.Algorithm(fedmom.servers.fedmom(1.0), work)
    for seed in (0, 1):
        run = fedmom.Workload(data, model, algorithm, seed)
        list(fedmom.train(fedmom.LocalRuntime(run), pace=fedmom.synchronous(2), rounds=4))
    assert compiled(run, "few")._cache_size() == 1
    assert programs_of(run).step._cache_size() == 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"server_lr": "cosine:start=1,rounds=9", "momentum": 0.5, "average": 0.9},
        {"aggregate": "clip:norm=1+mean", "weighting": "cohort"},
        {"aggregate": "trimmed_mean:share=0.2", "weighting": "uniform"},
        {"aggregate": "quantize:bits=4+noise:std=0.1+median", "weighting": "cohort"},
    ],
    ids=["plain", "server", "clip", "trimmed", "stages"],
)
def test_equal_settings_are_one_algorithm(settings):
    one, two = (named.algorithm("fedmom", **settings) for _ in range(2))
    assert one is two
    assert programs_of(workload(one)) is programs_of(workload(two, samples=SIZES[::-1]))


@pytest.mark.parametrize("algorithm", ["fedmom", "fedsgd", "fedavg"])
@pytest.mark.parametrize("aggregate", ["mean", "clip:norm=1+quantize:bits=4"])
def test_a_sweep_over_lr_compiles_the_servers_step_once(algorithm, aggregate):
    """What clients do is no part of the server's programs, nor is what a seed draws."""
    eta = 0.3 + len(algorithm) / 100 + len(aggregate) / 1000  # its own, as its programs are
    values = {"algorithm": algorithm, "aggregate": aggregate, "server-lr": eta}
    found = []
    for seed, lr in enumerate([0.01, 0.02, "cosine:start=0.03,rounds=3"]):
        experiment = small.prepared(**values, lr=lr, seed=seed)
        runtime = experiment.runtime()
        list(experiment.train(experiment.start(), runtime, rounds=3))
        found.append((programs_of(experiment.workload), runtime._programs))
        runtime.close()
    assert all(pair == found[0] for pair in found)
    assert found[0][0].step._cache_size() == 1


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "batch norm"])
def test_runs_with_equal_parts_share_programs(stateful):
    """Also where an algorithm is put together anew from them, on other data with other work."""
    server, client = optax.sgd(0.1), fedmom.Client(LOCAL_TRAINING.run)
    stages = (fedmom.clip(norm=1.0), fedmom.quantize(bits=4))
    found = []
    for seed, sizes in enumerate([[5, 9, 30], [7, 8]]):
        work = LocalWork(lr=0.1 * (1 + seed), steps=1 + seed)
        algorithm = fedmom.Algorithm(server, work, client, fedmom.mean("cohort"), stages)
        data = population(sizes)
        if stateful:
            model = fedmom.model(plain_net(), data, has_state=True)
        else:
            model = fedmom.build_model("logreg", data.features)
        run = fedmom.Workload(data, model, algorithm, seed)
        found.append((run.method, programs_of(run)))
    (one, programs), (two, others) = found
    assert one == two
    assert programs is others
    other = fedmom.Algorithm(server, work, client, fedmom.mean("uniform"), stages)
    assert programs_of(fedmom.Workload(data, model, other)) is not programs


def test_the_servers_step_is_traced_once_for_equal_settings(monkeypatch):
    """Earlier, each run built an optimizer of its own and compiled the step again."""
    traces = []

    def noisy(learning_rate=1.0):
        """SGD that counts how often it is traced."""

        def update(g, state, params=None):
            traces.append(1)
            return optax.sgd(learning_rate).update(g, state, params)

        return optax.GradientTransformation(optax.sgd(learning_rate).init, update)

    monkeypatch.setitem(fedmom.ALGORITHMS._rows, "noisy", noisy)  # registered, for this test
    for _ in range(2):
        algorithm = named.algorithm("noisy", 0.5)
        rounds(Scripted(), algorithm, 3)
    assert len(traces) == 1


def test_equal_rules_are_one():
    assert fedmom.mean() == fedmom.mean("population") == fedmom.mean(weighting="population")
    assert fedmom.trimmed_mean(share=0.2) is fedmom.trimmed_mean(share=0.2)
    assert fedmom.clip(norm=1.0) is fedmom.clip(norm=1.0)


def test_texts_loaded_twice_share_programs():
    """Earlier, a text had a reader of its own each time it was loaded."""
    specs = "shakespeare:roles=2,samples=900"
    one, two = (fedmom.load_data(specs) for _ in range(2))
    assert one is not two
    assert reader(one.features) is reader(two.features)
    runtimes = [
        fedmom.LocalRuntime(
            fedmom.Workload(
                data, fedmom.build_model("char_lstm", data.features), fedavg()._replace(work=WORK)
            )
        )
        for data in (one, two)
    ]
    assert runtimes[0]._programs == runtimes[1]._programs
    assert runtimes[0]._scorer._score is runtimes[1]._scorer._score


@pytest.mark.parametrize("size", [3, 5, 8, AT_ONCE + 3, 2 * AT_ONCE + 1])
def test_drop_outs_compile_nothing_new(size):
    """Earlier, every number of replies was a program of its own."""
    samples = np.arange(1, size + 1)

    def answers(round_, clients, _):
        there = clients[: 1 + round_ % size]
        return [block([k], samples=[samples[k]], version=round_) for k in there]

    server = optax.sgd(0.1)  # its own, so that its programs are this test's alone
    algorithm = fedmom.Algorithm(server)
    programs = programs_of(workload(algorithm))
    programs.add.clear_cache()  # other methods share it
    found = rounds(Scripted(answers), algorithm, size + 1, samples=samples)
    assert [r.replies for _, r in found] == [*range(1, size + 1), 1]
    assert programs.step._cache_size() <= 2
    assert programs.add._cache_size() <= 2


def test_drop_outs_compile_nothing_new_for_a_rule_that_needs_each_reply():
    def answers(round_, clients, _):
        return [block([k], version=round_) for k in clients[: 1 + round_ % 5]]

    algorithm = fedmom.Algorithm(optax.sgd(0.1), rule=fedmom.trimmed_mean(share=0.2))
    rounds(Scripted(answers), algorithm, 6)
    assert programs_of(workload(algorithm)).step._cache_size() == 1


@pytest.mark.parametrize(("way", "sizes"), [("few", 2), ("many", 3), ("threads", 1)])
def test_cohorts_of_any_size_compile_few_programs(way, sizes, monkeypatch):
    """Earlier, every size of a Poisson cohort was compiled by itself, and every sum of blocks."""
    if way == "threads":  # two clients in a call, and single ones in a program of their own
        monkeypatch.setattr(local, "SHORT", 0)
        monkeypatch.setattr(local, "CALL", 10**9)
    data = population([9] * 30)
    model = fedmom.build_model("logreg", data.features)
    work = LocalWork(lr=0.1, steps=2, prox=0.4 + sizes)  # its own, and so are its programs
    run = fedmom.Workload(data, model, fedmom.Algorithm(optax.sgd(0.2), work))
    programs = programs_of(run)
    programs.add.clear_cache()  # other methods share it
    pace = fedmom.synchronous(10, fedmom.poisson)
    runtime = fedmom.LocalRuntime(run, vectorized=way == "many")
    found = list(fedmom.train(runtime, pace=pace, rounds=25))
    assert len({record.replies for _, record in found}) > 8
    kind = "many" if way == "many" else "few"
    assert compiled(run, kind)._cache_size() == sizes
    assert programs.add._cache_size() + programs.step._cache_size() <= 8


@pytest.mark.parametrize(
    "rule", [fedmom.mean("cohort"), fedmom.trimmed_mean(share=0.2)], ids=["mean", "trimmed"]
)
@pytest.mark.parametrize("blocks", [[3, 1], [2, 2, 2], [1] * 7, [4, 4, 1, 1], [5, 5, 3], [12]])
def test_unusual_blocks_add_up_to_the_same(rule, blocks):
    """Whatever the number of replies is, and however they are put together."""
    size = sum(blocks)
    names = np.arange(size) % len(SIZES)
    ends = np.cumsum(blocks)

    def answers(round_, clients, _):
        parts = zip(ends - blocks, ends, strict=True)
        return [block(clients[a:b], version=round_) for a, b in parts]

    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), rule=rule)
    pace = fedmom.synchronous(10, lambda *_: np.arange(size))
    samples = np.tile(SIZES, 3)
    ((state, record),) = rounds(Scripted(answers), algorithm, pace=pace, samples=samples)
    assert record.replies == size
    if rule.needs == "sum":
        aggregate = SIZES[names] @ UPDATES[names] / SIZES[names].sum()
    else:
        cut = int(0.2 * size)
        aggregate = np.sort(UPDATES[names], axis=0)[cut : size - cut].mean(axis=0)
    np.testing.assert_allclose(state.params, -aggregate, rtol=1e-5, atol=1e-6)


FIRST_ROUND = """
import sys
import numpy as np
import fedmom
keep = np.empty(int(sys.argv[1]), np.uint8)  # so that arrays lie elsewhere
data = fedmom.from_arrays(np.ones((8, 3)), np.arange(8) % 2, np.arange(8) // 4)
data.arrays["x"] = np.ones(25, np.float32)[int(sys.argv[1]) % 2:][:24].reshape(8, 3)
model = fedmom.build_model("logreg", data.features)
algorithm = fedmom.Algorithm(fedmom.servers.fedmom(1.0), fedmom.LocalWork(steps=1))
runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
for state, _ in fedmom.train(runtime, pace=fedmom.synchronous(2), rounds=1):
    fedmom.evaluate(runtime, state.params, "train")
print([name for name in ("pydantic", "rich") if name in sys.modules])
"""


def test_a_warm_start_finds_every_program_wherever_memory_lies(tmp_path):
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    found = []
    for size in ("0", "4097"):
        command = [sys.executable, "-c", FIRST_ROUND, size]
        done = subprocess.run(
            command, env=os.environ | settings, capture_output=True, text=True, check=True
        )
        assert done.stdout == "[]\n"  # slow to load, and not needed for data in memory
        found.append({file.name for file in tmp_path.glob("*-cache")})
    assert found[0] == found[1]
    assert {name.partition("-")[0] for name in found[0]} >= {"jit_program", "jit_step", "jit_score"}
