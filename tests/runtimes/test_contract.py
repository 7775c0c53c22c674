"""What every runtime promises. A new runtime is one more row in ``RUNTIMES``."""

import threading
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.algorithms.forms import Form
from fedmom.core.prng import init_key
from fedmom.runtimes.base import Block
from fedmom.runtimes.cluster.runtime import RayRuntime
from fedmom.runtimes.local import LocalRuntime
from fedmom.training.admission import malformed, unusable
from tests import by_hand
from tests.conftest import population, workload_of
from tests.runtimes.ray_end import ray_ended
from tests.runtimes.scripted import Scripted

RUNTIMES = {
    "local": LocalRuntime,
    "local, vectorized": lambda workload: LocalRuntime(workload, vectorized=True),
    "scripted": Scripted,
    "scripted, backwards": lambda workload: Scripted(workload, order=lambda asked: asked[::-1]),
}
if find_spec("ray") and find_spec("flwr"):  # not where the lowest versions are tried
    from tests.runtimes import device_nodes
    from tests.runtimes.device_grid import devices

    RUNTIMES |= {"ray": lambda workload: RayRuntime(workload, actors=2), "flower": devices}
    if device_nodes.GRID is not None:  # on real nodes: tests/deploy/test_contract_on_nodes.py
        RUNTIMES = {"flower": device_nodes.devices}
if find_spec("torch"):
    from fedmom.runtimes.pytorch.runtime import TorchRuntime
    from tests.runtimes import torch_nets

    RUNTIMES |= {"torch": lambda workload: TorchRuntime(workload, workers=1)}
SHORT, LONG = fedmom.LocalWork(lr=0.1, steps=3, batch_size=2), fedmom.LocalWork(lr=0.1, epochs=2)
WORKS = {"short": SHORT, "shuffled": LONG}


@pytest.fixture(scope="module", autouse=True)
def _end_ray():
    with ray_ended():
        yield


@pytest.fixture(scope="module")
def data():
    return population([5, 9, 3, 14, 7, 6], test_sizes=[2, 0, 1, 4, 3, 2])


@pytest.fixture
def model(request, data):
    """Logistic regression; of PyTorch where it is trained there, with JAX's form of it."""
    if "make" in request.fixturenames and request.node.callspec.params["make"] == "torch":
        return torch_nets.linear(data)
    return fedmom.build_model("logreg", data.features)


@pytest.fixture
def _clients_of_jax(request):
    if request.node.callspec.params["make"] == "torch":
        pytest.skip("it refuses methods and models whose clients only JAX can run")


@pytest.fixture
def _in_this_process(request):
    """Errors reach the caller, and states are in snapshots: not so where clients are elsewhere.

    What devices do instead is tested in test_devices.py.
    """
    if request.node.callspec.params["make"] == "flower":
        pytest.skip("a device tells its errors by their name, and keeps its state")


MARKS = {"ray": pytest.mark.thorough, "torch": pytest.mark.thorough}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in RUNTIMES])
def make(request, data, model):
    """Make the runtime under test for an algorithm; all are closed at the end."""
    made = []

    def make(algorithm=None, *, work=SHORT, seed=0, data=data, model=model, attack=None):
        workload = replace(workload_of(data, model, work, algorithm, seed), attack=attack)
        runtime = RUNTIMES[request.param](workload)
        made.append(runtime)
        return runtime

    yield make
    for runtime in made:
        runtime.close()


def model_at(model, seed=0):
    return model.init(init_key(seed))


def asked(runtime, round_, clients, params):
    """Ask, and return everybody's update by client. Mostly three: every number compiles anew."""
    runtime.ask(round_, np.array(clients), params)
    return by_client(runtime.replies())


def by_client(answers):
    updates = {}
    for block in answers:
        assert isinstance(block, Block)
        assert block.members is None
        for row, client in enumerate(block.clients.tolist()):
            assert client not in updates
            updates[client] = jax.tree.map(lambda leaf, i=row: np.asarray(leaf[i]), block.update)
    return updates


def equal(a, b):
    return all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


@lru_cache  # one object: its programs are traced once
def counting():
    """A method whose clients count how often they were asked, and send so many models."""

    def run(broadcast, count, _problem, _key):
        update = jax.tree.map(lambda w: w * (1 + count), broadcast)
        return update, count + 1, {"loss": jnp.zeros(())}

    client = fedmom.Client(run, init=lambda _: jnp.zeros(()))
    return fedmom.Algorithm(fedmom.servers.fedavg(), client=client)


def test_everybody_who_is_asked_answers_once_with_a_usable_reply(make, data, model):
    runtime, params = make(), model_at(model)
    runtime.ask(3, np.array([4, 1, 0]), params)
    assert sorted(runtime.under_way()) == [(0, 3), (1, 3), (4, 3)]
    form, seen = Form.of(params), []
    for block in runtime.replies():
        assert block.version == 3
        assert malformed(block, form) == ""
        assert unusable(block, data.train.size, {0, 1, 4}) == []
        seen += block.clients.tolist()
    assert sorted(seen) == [0, 1, 4]
    assert runtime.under_way() == []
    assert list(runtime.replies()) == []


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_equal_questions_have_equal_answers(make, model, work):
    params = model_at(model)
    runtime, other = make(work=work), make(work=work)
    first = asked(runtime, 2, [0, 3, 5], params)
    assert equal(first, asked(runtime, 2, [0, 3, 5], params))
    assert equal(first, asked(other, 2, [0, 3, 5], params))


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_an_answer_depends_on_seed_round_and_client_alone(make, model, work):
    params = model_at(model)
    runtime = make(work=work)
    together = asked(runtime, 2, [0, 3, 5], params)
    close(together[0], asked(runtime, 2, [0], params)[0])
    close(together[3], asked(runtime, 2, [4, 3, 1], params)[3])
    assert not equal(together[3], asked(runtime, 1, [0, 3, 5], params)[3])
    assert not equal(together[3], asked(make(work=work, seed=1), 2, [0, 3, 5], params)[3])


def test_runtimes_agree(make, data, model):
    params = model_at(model)
    expected = asked(LocalRuntime(workload_of(data, model, SHORT, None, 0)), 1, [0, 2, 4], params)
    close(asked(make(), 1, [0, 2, 4], params), expected)


def test_two_questions_under_way_are_answered_with_their_own_models(make, model):
    old, new = model_at(model, 0), model_at(model, 1)
    runtime = make()
    runtime.ask(0, np.array([0, 1, 2]), old)
    runtime.ask(1, np.array([3, 4, 5]), new)
    versions = {}
    updates = {}
    for block in runtime.replies():
        versions |= dict.fromkeys(block.clients.tolist(), block.version)
        updates |= by_client([block])
    assert versions == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1}
    close(updates, asked(make(), 0, [0, 1, 2], old) | asked(make(), 1, [3, 4, 5], new))


def test_replies_that_are_not_waited_for_come_later_unless_cancelled(make, model):
    params = model_at(model)
    runtime = make()
    runtime.ask(0, np.array([0, 1, 2]), params)
    runtime.ask(0, np.array([3, 4, 5]), params)
    for block in runtime.replies():
        first = by_client([block])
        break
    left = {client for client, _ in runtime.under_way()}
    assert left == set(range(6)) - set(first)
    assert left
    rest = by_client(runtime.replies())
    assert set(rest) == left
    apart = asked(make(), 0, [0, 1, 2], params) | asked(make(), 0, [3, 4, 5], params)
    close(first | rest, apart)
    runtime.ask(1, np.array([0, 1]), params)
    runtime.cancel()
    assert runtime.under_way() == []
    assert list(runtime.replies()) == []


@pytest.mark.usefixtures("_in_this_process")
@pytest.mark.usefixtures("_clients_of_jax")
def test_an_error_in_a_client_reaches_the_caller_and_the_runtime_goes_on(make, model, tmp_path):
    broken = tmp_path / "broken"  # a file, which other processes see as well
    broken.touch()

    def run(broadcast, state, _problem, _key):
        if broken.exists():
            raise ZeroDivisionError("in the client")
        return jax.tree.map(lambda w: 2 * w, broadcast), state, {"loss": jnp.zeros(())}

    runtime = make(fedmom.Algorithm(fedmom.servers.fedavg(), client=fedmom.Client(run)))
    params = model_at(model)
    runtime.ask(0, np.array([0, 1]), params)
    with pytest.raises(ZeroDivisionError, match="in the client"):
        list(runtime.replies())
    runtime.cancel()
    broken.unlink()
    twice = jax.tree.map(lambda w: 2 * np.asarray(w), params)
    close(asked(runtime, 0, [0, 1], params), {0: twice, 1: twice})


@pytest.mark.usefixtures("_in_this_process")
@pytest.mark.usefixtures("_clients_of_jax")
def test_states_are_kept_for_clients_that_were_seen(make, model):
    runtime, params = make(counting()), model_at(model)
    for times in (1, 2, 3):
        sent = jax.tree.map(lambda w, t=times: t * np.asarray(w), params)
        close(asked(runtime, 0, [0, 2], params), {0: sent, 2: sent})
        runtime.commit()
    tensors = runtime.snapshot().tensors
    assert tensors["states/clients"].tolist() == [0, 2]
    assert tensors["states/0"].tolist() == [3, 3]


@pytest.mark.usefixtures("_clients_of_jax")
def test_a_snapshot_is_of_whole_rounds_and_goes_on_elsewhere(make, model):
    """In the middle of a round, a snapshot is that of the last commit."""
    params, later = model_at(model), model_at(model, 1)
    runtime = make(counting())
    asked(runtime, 0, [0, 1], params)
    runtime.ask(0, np.array([2, 3]), params)  # under way when the round ends
    runtime.commit()
    runtime.ask(1, np.array([0]), later)
    list(runtime.replies())
    snapshot = runtime.snapshot()
    fresh = make(counting())
    fresh.restore(snapshot, params)
    assert sorted(fresh.under_way()) == [(2, 0), (3, 0)]
    expected = make(counting())
    asked(expected, 0, [0, 1], params)
    expected.ask(0, np.array([2, 3]), params)
    assert equal(by_client(fresh.replies()), by_client(expected.replies()))
    again = asked(fresh, 1, [0, 4], later)
    assert equal(again, asked(expected, 1, [0, 4], later))


def test_a_snapshot_of_nothing_is_empty(make, model):
    runtime = make()
    asked(runtime, 0, [0, 1, 2], model_at(model))
    runtime.commit()
    assert runtime.snapshot().tensors == {}


def test_evaluation_sums_over_each_client_with_samples(make, data, model):
    runtime, params = make(), model_at(model, 3)
    assert list(runtime.splits) == ["train", "test"]
    for name in ("train", "test"):
        split = data.split(name)
        scores = runtime.evaluate(params, name)
        present = np.flatnonzero(split.size)
        assert scores.samples.tolist() == split.size[present].tolist()
        assert scores.evaluated.tolist() == split.size[present].tolist()
        for k, client in enumerate(present):
            rows = slice(split.start[client], split.start[client] + split.size[client])
            layers = torch_nets.layers(params) if isinstance(params, dict) else params
            losses, hits, _ = by_hand.logreg(layers, data.arrays["x"][rows], data.arrays["y"][rows])
            np.testing.assert_allclose(scores.sums["loss"][k], losses.sum(), rtol=1e-5)
            assert scores.sums["accuracy"][k] == hits.sum()
    assert runtime.evaluate(params, "train", 12).evaluated.sum() <= 12


@pytest.mark.usefixtures("_clients_of_jax")
def test_personal_models_are_evaluated_with_their_clients_state(make, model):
    def run(broadcast, bias, _problem, _key):
        return broadcast, bias + 1, {"loss": jnp.zeros(())}

    def personal(params, bias):
        return [{**params[0], "b": params[0]["b"] + jnp.array([1.0, 0, 0]) * bias}]

    client = fedmom.Client(run, init=lambda _: jnp.zeros(()), personal=personal)
    runtime = make(fedmom.Algorithm(fedmom.servers.fedavg(), client=client))
    params = model_at(model)
    plain = make().evaluate(params, "train")
    close(runtime.evaluate(params, "train").sums, plain.sums)  # nobody has been asked
    asked(runtime, 0, [1], params)
    moved = make().evaluate(personal(params, 1.0), "train")
    scores = runtime.evaluate(params, "train")
    expected = np.where(np.arange(6) == 1, moved.sums["loss"], plain.sums["loss"])
    np.testing.assert_allclose(scores.sums["loss"], expected, rtol=1e-5)


def test_training_is_the_same_on_every_runtime(make, data, model):
    def train(runtime):
        return list(fedmom.train(runtime, pace=fedmom.synchronous(3), rounds=4))

    method = fedmom.Algorithm(fedmom.servers.fedmom(2.0, 0.9), stages=(fedmom.clip(norm=0.5),))
    reference = train(LocalRuntime(workload_of(data, model, SHORT, method)))
    ours = train(make(method))
    for (state, record), (expected, other) in zip(ours, reference, strict=True):
        close(state.params, expected.params)
        assert (record.cohort, record.replies) == (other.cohort, other.replies)


ATTACKS = {
    "nobody": None,
    "sign_flip": fedmom.sign_flip(share=0.34, scale=3.0),
    "alie": fedmom.alie(share=0.34),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_mixing_and_attacks_are_the_same_on_every_runtime(make, data, model, attack, request):
    """Buckets and attackers follow from the seed and the client, not from the order of replies."""
    if attack != "nobody" and request.node.callspec.params["make"] in ("flower", "torch"):
        pytest.skip("attacks are simulated, by clients that JAX runs")
    method = fedmom.Algorithm(
        fedmom.servers.fedavg(),
        rule=fedmom.geometric_median(),
        stages=(fedmom.bucketing(size=2),),
    )
    here = replace(workload_of(data, model, SHORT, method), attack=ATTACKS[attack])
    found = [
        list(fedmom.train(runtime, pace=fedmom.synchronous(5), rounds=3))
        for runtime in (make(method, attack=ATTACKS[attack]), LocalRuntime(here))
    ]
    for (state, record), (expected, other) in zip(*found, strict=True):
        close(state.params, expected.params)
        assert record.metrics.get("attack/clients") == other.metrics.get("attack/clients")


def normed(data, state):
    """A net that subtracts a running mean of its inputs and scales them; the mean is state."""
    width = data.features.shape[0]

    def init(key):
        w = 0.1 * jax.random.normal(key, (width, data.features.classes))
        return {"w": w, "scale": jnp.ones(width)}, {"mean": jnp.zeros(width)}

    def apply(params, state, x, key):
        mean = state["mean"] if key is None else 0.9 * state["mean"] + 0.1 * x.mean(0)
        return (x - mean) * params["scale"] @ params["w"], {"mean": mean}

    return fedmom.model((init, apply), data, has_state=True, state=state)


@pytest.mark.usefixtures("_clients_of_jax")
@pytest.mark.parametrize("state", ["average", "local"])
def test_a_model_with_state_is_trained_and_evaluated_alike_on_every_runtime(make, data, state):
    net = normed(data, state)
    method = fedmom.Algorithm(
        fedmom.servers.fedmom(1.5, 0.9), rule=fedmom.mean("cohort"), stages=(fedmom.clip(norm=0.5),)
    )
    ours, reference = make(method, model=net), LocalRuntime(workload_of(data, net, SHORT, method))
    pace = fedmom.synchronous(3)
    found = [list(fedmom.train(each, pace=pace, rounds=3)) for each in (ours, reference)]
    for (after, record), (expected, other) in zip(*found, strict=True):
        close(after.params, expected.params)
        assert record.replies == other.replies == 3
        assert record.metrics == pytest.approx(other.metrics)
    model_after = found[0][-1][0].params
    scores = [each.evaluate(model_after, "train") for each in (ours, reference)]
    np.testing.assert_allclose(scores[0].sums["loss"], scores[1].sums["loss"], rtol=1e-4)


@lru_cache
def reporting():
    """A method of which every part reports: client, two stages and the server, with states."""

    def run(broadcast, state, problem, key):
        trained, loss = problem.train(broadcast, key)
        update = jax.tree.map(jnp.subtract, broadcast, trained)
        return update, state, {"loss": loss, "size": 1.0 * problem.size}

    def encode(update, state, sent, _key):
        return jax.tree.map(lambda u: u * sent, update), state, {"sent": sent}

    def after(aggregate, factor, round_):
        return aggregate, factor / 2, {"factor": factor, "replies": round_.replies}

    def step(aggregate, state, params):
        new = jax.tree.map(jnp.subtract, params, aggregate)
        return new, state + 1, {"steps": state + 1}

    halving = fedmom.Stage(
        "halving", encode, init=lambda _: jnp.ones(()), send=lambda factor: factor, after=after
    )
    server = fedmom.Server(init=lambda _: jnp.zeros(()), step=step)
    client = fedmom.Client(run, ranges=("size",))
    stages = (halving, fedmom.quantize(bits=16))
    return fedmom.Algorithm(server, client=client, rule=fedmom.mean("cohort"), stages=stages)


@pytest.mark.usefixtures("_clients_of_jax")
def test_states_and_metrics_of_every_part_are_the_same_on_every_runtime(make, data):
    pace = fedmom.synchronous(3)
    runtime = make(reporting())
    rounds = list(fedmom.train(runtime, pace=pace, rounds=3))
    n = data.train.size
    for done, (state, record) in enumerate(rounds):
        sizes = n[record.cohort]
        assert record.metrics == pytest.approx(
            {
                "client/size": (sizes @ sizes) / sizes.sum(),
                "client/size/min": sizes.min(),
                "client/size/max": sizes.max(),
                "halving/sent": 0.5**done,
                "halving/factor": 0.5**done,
                "halving/replies": 3,
                "server/steps": done + 1,
            }
        )
        assert np.asarray(state.stages[0]) == 0.5 ** (done + 1)
        assert np.asarray(state.server) == done + 1
    # From the state of any round on, the rest is the same: nothing is kept elsewhere.
    again = list(fedmom.train(make(reporting()), pace=pace, rounds=3, state=rounds[0][0]))
    for (state, record), (expected, other) in zip(again, rounds[1:], strict=True):
        close(state.params, expected.params)
        assert record.metrics == pytest.approx(other.metrics)


@pytest.mark.usefixtures("_clients_of_jax")
def test_means_of_metrics_are_the_same_where_replies_are_added_up(make, data):
    """Ray's actors send one row for all of their clients."""

    def run(broadcast, state, problem, key):
        trained, loss = problem.train(broadcast, key)
        update = jax.tree.map(jnp.subtract, broadcast, trained)
        return update, state, {"loss": loss, "size": 1.0 * problem.size}

    method = fedmom.Algorithm(
        fedmom.servers.fedavg(), client=fedmom.Client(run), stages=(fedmom.clip(norm=1e-3),)
    )
    ((_, record),) = fedmom.train(make(method), pace=fedmom.synchronous(5), rounds=1)
    sizes = data.train.size[record.cohort]
    expected = {"client/size": (sizes @ sizes) / sizes.sum(), "clip/share": 1.0}
    assert record.metrics == pytest.approx(expected)


def test_missing_and_failing_clients_are_left_out_of_the_mean(data, model):
    method = fedmom.Algorithm(fedmom.servers.fedavg(), rule=fedmom.mean("cohort"))
    workload = workload_of(data, model, SHORT, method, 0)
    runtime = Scripted(workload, lost={1}, failing={2: "battery low"})
    everybody = fedmom.synchronous(4, lambda *_: np.arange(4))
    start = fedmom.start(workload)
    ((state, record),) = fedmom.train(runtime, pace=everybody, rounds=1)
    updates = asked(Scripted(workload), 0, [0, 3], start.params)
    n = data.train.size
    share = n[0] / (n[0] + n[3])
    expected = jax.tree.map(
        lambda w, a, b: w - share * a - (1 - share) * b, start.params, updates[0], updates[3]
    )
    close(state.params, expected)
    assert record.replies == 2
    assert record.rejected == ((2, "battery low"),)
    assert record.row()["rejected"] == [[2, "battery low"]]


def test_stale_replies_count_less_and_carry_on(data, model):
    """One client answers a round late: its update, of the old model, weighs 1/sqrt(2)."""
    method = fedmom.Algorithm(fedmom.servers.fedavg(), rule=fedmom.mean("uniform"))
    slow = lambda asked: sorted(asked, key=lambda q: (q[0] == 0 and q[1] == 0, q[1]))  # noqa: E731
    runtime = Scripted(workload_of(data, model, SHORT, method, 0), order=slow)
    cohorts = {0: [0, 1], 1: [2, 3], 2: [4, 5]}
    draw = lambda _seed, round_, *_: np.array(cohorts.get(round_, [1, 3]))  # noqa: E731
    pace = fedmom.buffered(2, draw, in_flight=4)
    start = fedmom.start(runtime.workload)
    (one, first), (two, second) = fedmom.train(runtime, pace=pace, rounds=2)
    assert (first.cohort, second.cohort) == ([0, 1, 2, 3], [4, 5])
    reference = Scripted(workload_of(data, model, SHORT, method, 0))
    old = asked(reference, 0, [0, 1, 2, 3], start.params)
    expected = jax.tree.map(lambda w, a, b: w - (a + b) / 2, start.params, old[1], old[2])
    close(one.params, expected)
    # Round 1 takes client 3 (one round old) and client 4 or 0, whichever the order puts first.
    weight = 1 / np.sqrt(2)
    fresh = asked(reference, 1, [4], one.params)
    stale = jax.tree.map(lambda w, a, b: w - (weight * a + b) / 2, one.params, old[3], fresh[4])
    close(two.params, stale)


def test_threads_end_with_the_runtime(data, model):
    before = set(threading.enumerate())
    runtime = LocalRuntime(workload_of(data, model, replace(SHORT, steps=30_000), None, 0))
    runtime.ask(0, np.array([0, 1, 2]), model_at(model))
    assert next(iter(runtime.replies())).clients.tolist() == [0]
    runtime.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.usefixtures("_clients_of_jax")
def test_frozen_parameters_are_there_though_they_are_not_sent(request, make, data, model):
    """Every runtime has them from the model and the seed; replies and scores are the same."""
    if request.node.callspec.params["make"].startswith("scripted"):
        pytest.skip("it computes logistic regression by hand")
    adapted = fedmom.lora(model, rank=2)
    runtime, local = make(model=adapted), LocalRuntime(workload_of(data, adapted, SHORT, None, 0))
    params = adapted.init(init_key(0))
    close(*(asked(each, 1, [0, 2, 3], params) for each in (runtime, local)))
    scores = [r.evaluate(params, "test").sums["loss"] for r in (runtime, local)]
    np.testing.assert_allclose(*scores, rtol=1e-5)
