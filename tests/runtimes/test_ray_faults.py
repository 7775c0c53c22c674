"""Actors, machines and drivers that die in the middle of a run, as real processes.

The cluster is Ray's own for tests: several nodes on one machine. The records are read to show
that no client is lost and none is counted twice.
"""

import json
import os
import signal
import sys
import time
import warnings
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.core.errors import FedMomError
from fedmom.runtimes.cluster import actors, connect
from fedmom.runtimes.cluster.runtime import RayRuntime
from fedmom.runtimes.local import LocalRuntime
from tests.conftest import population, workload_of
from tests.runtimes.ray_end import below, is_alive, ray_ended, started
from tests.runtimes.scripted import Scripted

pytestmark = pytest.mark.thorough
WORK = fedmom.LocalWork(lr=0.1, steps=3, batch_size=2)
CLIENTS = 10


def wait_for(true, seconds=120):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.2)


RUN = [
    *("run", "--data", "synthetic:clients=20", "--rounds", "60", "--clients-per-round", "6"),
    *("--lr", "0.01", "--eval-every", "30"),
]


def fedmom_command(*words):
    return started([sys.executable, "-c", "from fedmom.cli.main import main; main()", *words])


def ends_well(*words):
    with fedmom_command(*words) as process:
        return process.wait(300) == 0


@pytest.fixture(scope="session")
def orphans():
    """Processes whose driver was killed: at the end of the session they have ended, all of them."""
    processes = []
    yield processes
    wait_for(lambda: not any(map(is_alive, processes)))


def test_a_killed_driver_goes_on_from_its_checkpoint(tmp_path, orphans):
    """Killed at a moment of the machine's choice; its Ray goes with it, within about a minute."""
    folder, log = tmp_path / "run", tmp_path / "run" / "rounds.jsonl"
    with fedmom_command(*RUN, "--runtime", "ray", "--out", str(folder)) as driver:
        wait_for(lambda: log.exists() and len(log.read_bytes().splitlines()) > 10)
        orphans += below(driver.pid)
        driver.kill()
        driver.wait()
        before = log.read_bytes().splitlines()
    assert orphans  # Ray's processes, among them the actors
    assert len(before) < 60
    assert ends_well("resume", str(folder))
    assert ends_well(*RUN, "--out", str(tmp_path / "local"))
    ours, theirs = (
        [json.loads(line) for line in (tmp_path / name / "rounds.jsonl").read_text().splitlines()]
        for name in ("run", "local")
    )
    assert [row["round"] for row in ours] == list(range(1, 61))
    for row, other in zip(ours, theirs, strict=True):
        assert (row["cohort"], row["replies"]) == (other["cohort"], 6)
        np.testing.assert_allclose(row["train_loss"], other["train_loss"], rtol=1e-3)


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one CPU each, and this process as the driver."""
    from ray.cluster_utils import Cluster

    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    before = signal.getsignal(signal.SIGTERM)  # which Ray's cluster for tests changes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False},
        )
        made.add_node(num_cpus=1)
    try:
        with ray_ended():
            connect.connect(made.address)
            yield made
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.shutdown()
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def data():
    return population([5, 9, 3, 14, 7, 6, 8, 4, 11, 6])


@pytest.fixture(scope="module")
def model(data):
    return fedmom.build_model("logreg", data.features)


def deadly(calls, at, times=1):
    """A method whose clients count how often they were asked; some of their calls are deadly.

    ``calls`` is a file with a byte for every client that was at work. The ``at``-th call, and
    so on ``times`` times, kills the process it happens in.
    """

    def called(count):
        with calls.open("ab") as file:
            file.write(b".")
        if at <= calls.stat().st_size < at + times:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros_like(count)

    def run(broadcast, count, problem, key):
        zero = jax.pure_callback(called, jax.ShapeDtypeStruct((), jnp.float32), count)
        w, loss = problem.train(broadcast, key)
        update = jax.tree.map(lambda a, b: (a - b) * (1 + count) + zero, broadcast, w)
        return update, count + 1, {"loss": loss}

    client = fedmom.Client(run, init=lambda _: jnp.zeros(()))
    return fedmom.Algorithm(fedmom.servers.fedavg(), client=client, rule=fedmom.mean("cohort"))


def everybody(rounds=3):
    return {"pace": fedmom.synchronous(CLIENTS, lambda *_: np.arange(CLIENTS)), "rounds": rounds}


def close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), a, b)


def states(runtime):
    return runtime.snapshot().tensors["states/0"].tolist()


@pytest.mark.usefixtures("cluster")
def test_an_actor_must_fit_one_machine(data, model):
    """Two machines of one CPU have no room for an actor of two."""
    workload = workload_of(data, model, WORK, fedmom.Algorithm(fedmom.servers.fedavg()))
    with pytest.raises(FedMomError, match=r"No actor of 2 CPUs .* largest machine has 1"):
        RayRuntime(workload, cpus=2)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    "sums", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["summed", "each"]
)
def test_the_clients_of_a_killed_actor_are_asked_again_once(data, model, tmp_path, sums):
    """Killed in the second of three rounds, with some of its clients done."""
    workload = workload_of(data, model, WORK, deadly(tmp_path / "calls", at=CLIENTS + 4))
    options = everybody()
    runtime = RayRuntime(workload, actors=2, sums=sums)
    ours = list(fedmom.train(runtime, **options))
    done = states(runtime)
    runtime.close()
    here = LocalRuntime(workload_of(data, model, WORK, deadly(tmp_path / "other", at=1_000)))
    theirs = list(fedmom.train(here, **options))
    for (state, record), (expected, other) in zip(ours, theirs, strict=True):
        assert record.replies == CLIENTS
        assert record.rejected == ()
        np.testing.assert_allclose(record.train_loss, other.train_loss, rtol=1e-5)
        close(state.params, expected.params)
    assert done == [3.0] * CLIENTS == states(here)  # each counted once in each round
    assert (tmp_path / "calls").stat().st_size > 3 * CLIENTS  # some were at work twice


@pytest.mark.usefixtures("cluster")
def test_the_clients_of_a_killed_actor_are_dropped_if_that_is_asked_for(data, model, tmp_path):
    workload = workload_of(data, model, WORK, deadly(tmp_path / "calls", at=4))
    options = everybody(1)
    runtime = RayRuntime(workload, actors=2, sums=True, on_loss="drop")
    ((state, record),) = fedmom.train(runtime, **options)
    runtime.close()
    dropped = {client for client, _ in record.rejected}
    assert {reason for _, reason in record.rejected} == {"its actor was lost"}
    assert len(record.rejected) == len(dropped) == CLIENTS - record.replies > 0
    there = workload_of(data, model, WORK, deadly(tmp_path / "other", at=1_000))
    reference = Scripted(there, lost=dropped)
    ((expected, other),) = fedmom.train(reference, **options)
    assert other.replies == record.replies
    close(state.params, expected.params)


@pytest.mark.usefixtures("cluster")
def test_clients_that_are_lost_again_are_dropped(data, model, tmp_path):
    """A client that kills whoever works for it does not hold up the run."""
    workload = workload_of(data, model, WORK, deadly(tmp_path / "calls", at=1, times=1_000))
    options = everybody(1)
    runtime = RayRuntime(workload, actors=1, sums=True)
    ((_, record),) = fedmom.train(runtime, **options)
    runtime.close()
    assert record.replies == 0
    assert Counter(record.rejected) == Counter(
        (client, "its actor was lost again") for client in range(CLIENTS)
    )


def test_machines_leave_and_join_during_a_run(cluster, data, model, tmp_path, monkeypatch):
    monkeypatch.setattr(actors, "LOOK_EVERY", 0.0)
    workload = workload_of(data, model, WORK, deadly(tmp_path / "calls", at=1_000))
    options = everybody(5)
    runtime = RayRuntime(workload, sums=True)
    rounds = []
    for state, record in fedmom.train(runtime, **options):
        rounds.append((state, record))
        if record.round == 1:
            assert len(runtime.actors()) == 2
            other = next(n for n in cluster.list_all_nodes() if n is not cluster.head_node)
            cluster.remove_node(other, allow_graceful=False)
        if record.round == 2:  # its clients were asked again
            assert len(runtime.actors()) == 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cluster.add_node(num_cpus=1)
            wait_for(lambda: len(runtime.actors()) == 2)
    nodes = {node for node, _ in runtime.actors()}
    done = states(runtime)
    runtime.close()
    assert len(nodes) == 2
    here = LocalRuntime(workload)
    theirs = list(fedmom.train(here, **options))
    for (state, record), (expected, _) in zip(rounds, theirs, strict=True):
        assert (record.replies, record.rejected) == (CLIENTS, ())
        close(state.params, expected.params)
    assert done == [5.0] * CLIENTS
