"""Clients that train in PyTorch: the same numbers as JAX's, and what becomes of processes."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

pytest.importorskip("torch")

import torch

import fedmom
from fedmom import FedMomError
from fedmom.algorithms import solvers
from fedmom.core.prng import bits, clients_key, fold_in, init_key
from fedmom.core.threefry import drawn, folded
from fedmom.models.variables import Variables
from fedmom.runtimes.base import Failure
from fedmom.runtimes.local import LocalRuntime
from fedmom.runtimes.pytorch import setting_up
from fedmom.runtimes.pytorch.memory import mapped, opened
from fedmom.runtimes.pytorch.runtime import TorchRuntime
from fedmom.runtimes.pytorch.solvers import SOLVERS
from fedmom.runtimes.pytorch.training import TorchSamples, Trainer
from tests.conftest import population, workload_of
from tests.runtimes import torch_nets

WORK = fedmom.LocalWork(lr=0.1, steps=3, batch_size=4)
WORKS = {
    "steps": WORK,
    "one epoch": fedmom.LocalWork(lr=0.1, epochs=1, batch_size=4),
    "three epochs, momentum": fedmom.LocalWork(
        lr=lambda t: 0.1 / (1 + t), epochs=3, batch_size=4, solver=solvers.momentum
    ),
    "prox": dataclasses.replace(WORK, prox=0.3),
    "all data": fedmom.LocalWork(lr=0.1, steps=2, batch_size=None),
    "in parts": fedmom.LocalWork(lr=0.1, epochs=2, batch_size=4, accumulate=2),
    "adam": dataclasses.replace(WORK, solver=optax.adam),
}
STEPPERS = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.7, "nesterov": True}),
    ("momentum", {}),
    ("rmsprop", {"decay": 0.8}),
    ("adam", {"b1": 0.8}),
    ("adamw", {"weight_decay": 0.1}),
]


@pytest.fixture(scope="module")
def data():
    return population([5, 9, 3, 14, 7, 6], test_sizes=[2, 0, 1, 4, 3, 2])


@pytest.fixture
def start():
    """Start a runtime, which is closed at the end."""
    made = []

    def start(workload, workers=1):
        made.append(TorchRuntime(workload, workers=workers))
        return made[-1]

    yield start
    for runtime in made:
        runtime.close()


def close(found, expected, rtol=1e-4, atol=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), found, expected
    )


def trained_here(workload, params, round_, client):
    """Train a client as a worker does, in this process."""
    setup = setting_up.of(workload).setup
    trainer = Trainer(
        setup.module,
        list(setup.params),
        setup.work,
        TorchSamples(workload.data.arrays, setup.window, setup.channels),
    )
    has = {**params.trained, **params.state} if isinstance(params, Variables) else params
    setup.module.load_state_dict({n: torch.tensor(np.asarray(a)) for n, a in has.items()})
    start, size = (int(each[client]) for each in workload.data.train)
    words = folded(folded(np.asarray(jax.random.key_data(clients_key(0))), round_), client)
    work = workload.work
    lr = work.lr(round_) if callable(work.lr) else work.lr
    loss = trainer.train(words, start, size, work.count(round_, size), lr)
    return {n: b.numpy() for n, b in setup.module.state_dict().items()}, loss


def asked(runtime, round_, clients, params):
    runtime.ask(round_, np.array(clients), params)
    return list(runtime.replies())


@pytest.mark.parametrize(("name", "options"), STEPPERS)
def test_solvers_take_the_steps_of_optax(name, options):
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(3, 2)).astype("f4"), "b": rng.normal(size=2).astype("f4")}
    gradients = [jax.tree.map(lambda p: rng.normal(size=p.shape).astype("f4"), params)] * 4
    ours = [torch.tensor(p) for p in params.values()]
    step = SOLVERS[name](ours, 0.1, **options)
    solver = getattr(solvers, name)(0.1, **options)
    expected, state = params, solver.init(params)
    for gradient in gradients:
        step([torch.tensor(g) for g in gradient.values()])
        updates, state = solver.update(gradient, state, expected)
        expected = optax.apply_updates(expected, updates)
    close([p.numpy() for p in ours], list(expected.values()))


def test_random_bits_are_those_of_jax():
    key = fold_in(clients_key(3), 5)
    words = folded(np.asarray(jax.random.key_data(clients_key(3))), [5, 6])
    assert words[:, 0].tolist() == np.asarray(jax.random.key_data(key)).tolist()
    assert np.array_equal(drawn(words, 9)[0], bits(key, 9))


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_a_client_trains_as_in_jax(data, work):
    model = torch_nets.linear(data)
    workload = workload_of(data, model, work)
    params = model.init(init_key(0))
    block = asked(LocalRuntime(workload), 2, [3], params)[0]
    found, loss = trained_here(workload, params, 2, 3)
    close({n: params[n] - found[n] for n in params}, {n: u[0] for n, u in block.update.items()})
    assert loss == pytest.approx(float(block.metrics["loss"][0]), rel=1e-4)


@pytest.mark.parametrize("work", ["steps", "three epochs, momentum"])
def test_buffers_change_as_in_jax(data, work):
    """The last batch of an epoch is filled up, for batch norm."""
    model = torch_nets.normed(data)
    workload = workload_of(data, model, WORKS[work])
    params = model.init(init_key(0))
    update = asked(LocalRuntime(workload), 1, [1], params)[0].update
    found, _ = trained_here(workload, params, 1, 1)
    for name, value in params.trained.items():
        close(value - found[name], update.update[name][0])
    for name, value in update.state.items():
        close(found[name], value[0])


def test_rounds_are_those_of_jax_and_resume(data, start):
    """FedMom with momentum and epochs, on two processes; and from a snapshot in its middle."""
    model = torch_nets.linear(data)
    method = fedmom.Algorithm(fedmom.servers.fedmom(2.0, 0.9), stages=(fedmom.clip(norm=0.5),))
    workload = workload_of(data, model, WORKS["three epochs, momentum"], method)
    runtime, pace = start(workload, workers=2), fedmom.synchronous(3)
    ours = list(fedmom.train(runtime, pace=pace, rounds=4))
    reference = list(fedmom.train(LocalRuntime(workload), pace=pace, rounds=4))
    for (state, record), (expected, other) in zip(ours, reference, strict=True):
        close(state.params, expected.params)
        assert record.cohort == other.cohort
        assert record.metrics == pytest.approx(other.metrics, rel=1e-4)
    scores = [r.evaluate(ours[-1][0].params, "test") for r in (runtime, LocalRuntime(workload))]
    close(*(each.sums for each in scores))
    # What is cancelled is not waited for, nor taken for an answer to what is asked then.
    params = ours[0][0].params
    expected = asked(runtime, 7, [2], params)[0].update
    runtime.ask(6, np.arange(6), params)
    next(iter(runtime.replies()))
    runtime.cancel()
    assert runtime.under_way() == []
    jax.tree.map(np.testing.assert_array_equal, asked(runtime, 7, [2], params)[0].update, expected)
    runtime.restore(runtime.snapshot(), ours[0][0].params)
    again = list(fedmom.train(runtime, pace=pace, rounds=4, state=ours[1][0]))
    for (state, _), (expected, _) in zip(again, ours[2:], strict=True):
        jax.tree.map(np.testing.assert_array_equal, state.params, expected.params)


def moody(data):
    """Client 1's module raises, and client 2's ends its process."""
    arrays = {n: a.copy() for n, a in data.arrays.items()}
    first = data.train.start
    arrays["x"][first[1] : first[2]] = 1000
    arrays["x"][first[2] : first[3]] = -1000
    data = dataclasses.replace(data, arrays=arrays)
    module = torch_nets.Moody(data.features.shape[0], data.features.classes)
    return workload_of(data, fedmom.model(module, data, convert=False), WORK)


def test_a_worker_that_raises_or_ends_is_a_failure(data, start):
    workload = moody(data)
    runtime = start(workload)
    params, first = workload.params(), runtime.processes
    answers = asked(runtime, 0, [0, 1, 2, 3], params)
    assert [isinstance(a, Failure) for a in answers] == [False, True, True, False]
    assert answers[1].reason.startswith("ValueError: too large (")
    assert answers[2].reason == "its worker process ended twice, with SIGKILL"
    assert runtime.processes != first
    assert runtime.under_way() == []
    # Dropout is drawn by seed, round and client, also in another process.
    (again,) = asked(runtime, 0, [3], params)
    jax.tree.map(np.testing.assert_array_equal, again.update, answers[3].update)
    # A process that is killed from outside is replaced, and nothing is lost.
    os.kill(runtime.processes[0], signal.SIGKILL)
    (after,) = asked(runtime, 0, [0], params)
    jax.tree.map(np.testing.assert_array_equal, after.update, answers[0].update)
    with pytest.raises(FedMomError, match=r"All clients of round 3 failed. The last: ValueError"):
        asked(runtime, 2, [1], params)
    ended = runtime.processes
    runtime.close()
    for process in ended:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


REFUSED = {
    "own client": (
        lambda d: workload_of(
            d,
            torch_nets.linear(d),
            WORK,
            fedmom.Algorithm(fedmom.servers.fedavg(), client=fedmom.Client(lambda *a: a)),
        ),
        "client of its own",
    ),
    "solver": (
        lambda d: workload_of(
            d, torch_nets.linear(d), dataclasses.replace(WORK, solver=optax.lion)
        ),
        "The solver lion is a program of JAX",
    ),
    "loss": (
        lambda d: workload_of(
            d,
            torch_nets.twin(
                torch.nn.Linear(4, 3), d, None, loss=lambda out, y: (out.sum(-1) - y) ** 2
            ),
            WORK,
        ),
        "is a function of JAX, which PyTorch cannot train with",
    ),
    "JAX's model": (
        lambda d: workload_of(d, fedmom.build_model("logreg", d.features), WORK),
        "this model is one of JAX",
    ),
    "adapted": (
        lambda d: workload_of(
            d, fedmom.lora(fedmom.build_model("logreg", d.features), rank=2), WORK
        ),
        "this model has an adaptation",
    ),
    "batch norm of all data": (
        lambda d: workload_of(d, torch_nets.normed(d), WORKS["all data"]),
        "Give a batch-size",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_cannot_do_is_refused(data, case):
    make, message = REFUSED[case]
    with pytest.raises(FedMomError, match=message):
        TorchRuntime(make(data))


def test_modules_that_are_no_models_are_refused(data):
    refused = {
        "cannot be applied to a batch of shape": torch.nn.Linear(9, 3),
        "It must be torch.float32": torch.nn.Linear(4, 3).double(),
        "no parameters that require gradients": torch.nn.Identity(),
    }
    for message, module in refused.items():
        with pytest.raises(FedMomError, match=message):
            fedmom.model(module, data, convert=False)
    with pytest.raises(FedMomError, match=r"are for a torch.nn.Module"):
        fedmom.model((jax.random.split, jax.nn.relu), data, convert=False)


def test_only_the_runtime_trains_it(data):
    """JAX applies the module, and has no gradients of it."""
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 3)
    model = fedmom.model(module, data, convert=False)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("f4")
    params = model.init(init_key(0))
    found = jax.jit(lambda p, x: model.apply(p, x, None))(params, x)
    np.testing.assert_allclose(found, module(torch.tensor(x)).detach(), rtol=1e-5)
    with pytest.raises(FedMomError, match='Train it with runtime="torch:workers=2"'):
        asked(LocalRuntime(workload_of(data, model, WORK)), 0, [0], params)


def test_arrays_of_files_are_mapped_not_copied(tmp_path):
    whole = np.arange(24, dtype=np.int32).reshape(6, 4)
    np.save(tmp_path / "x.npy", whole)
    array = np.load(tmp_path / "x.npy", mmap_mode="r")[2:5]
    where = mapped(array)
    assert where is not None
    assert np.array_equal(opened(where), whole[2:5])
    assert mapped(whole) is None


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["fedavg", "fedmom"])
@pytest.mark.parametrize("work", ["steps", "three epochs, momentum"])
def test_lenet_trains_as_in_jax(start, algorithm, work):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (60, 28, 28), np.uint8)
    images = fedmom.from_arrays(x, np.arange(60) % 3, np.repeat(np.arange(5), 12))
    server = getattr(fedmom.servers, algorithm)(5 / 3)
    work = dataclasses.replace(WORKS[work], lr=0.02)
    workload = workload_of(images, torch_nets.lenet(images), work, fedmom.Algorithm(server))
    pace = fedmom.synchronous(3)
    runtimes = start(workload, workers=2), LocalRuntime(workload)
    (ours, _), (theirs, _) = (list(fedmom.train(r, pace=pace, rounds=4))[-1] for r in runtimes)
    close(ours.params, theirs.params, rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
def test_a_run_resumes_to_the_same_bits(tmp_path):
    settings = {"rounds": 4, "lr": 0.01, "runtime": "torch:workers=2", "progress": False}

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.dropout = torch.nn.Linear(60, 10), torch.nn.Dropout(0.3)

        def forward(self, x):
            out = self.layer(self.dropout(x))
            return out if out.sum() > 0 else 2 * out  # which cannot be exported

    torch.manual_seed(0)
    net, data = Net(), "synthetic:clients=6"
    whole = fedmom.run(data, net, out=tmp_path / "whole", **settings)
    stop = lambda event: "enough" if event.round == 2 else None  # noqa: E731
    fedmom.run(data, net, out=tmp_path / "part", callbacks=[stop], **settings)
    rest = fedmom.resume(tmp_path / "part", progress=False, model=net)
    jax.tree.map(np.testing.assert_array_equal, rest.params, whole.params)
    assert rest.predict(np.zeros((3, 60))).shape == (3,)


@pytest.mark.thorough
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_processes_end_with_the_one_that_started_them(tmp_path, sent):
    """Also those that are busy; and the script has no ``if __name__ == "__main__"``."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        parent.send_signal(sent)
        parent.wait(60)
    until = time.monotonic() + 60
    while any(map(_runs, workers)):
        assert time.monotonic() < until
        time.sleep(0.05)


def _runs(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


SCRIPT = """
import numpy as np, torch, fedmom
from fedmom.runtimes.pytorch.runtime import TorchRuntime
data = fedmom.load_data("synthetic:clients=6")
class Net(torch.nn.Linear):
    pass
model = fedmom.model(Net(60, 10), data, convert=False)
work = fedmom.LocalWork(lr=0.01, steps=10**7)
workload = fedmom.Workload(data, model, fedmom.Algorithm(fedmom.servers.fedavg(), work))
runtime = TorchRuntime(workload, workers=2)
runtime.ask(0, np.arange(6), fedmom.start(workload).params)
print(*runtime.processes, flush=True)
list(runtime.replies())
"""
