"""The strategies, with clients of somebody else's: NumPy functions behind Flower's messages."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedmom.core.errors import FedMomError
from fedmom.flower import FedAvg, FedMom, strategy
from tests.runtimes.device_grid import LoopGrid

SAMPLES = {1: 10, 2: 30, 3: 60}
TARGETS = {1: 1.0, 2: -2.0, 3: 4.0}


@pytest.fixture(autouse=True)
def _in_a_server_app(monkeypatch):
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    monkeypatch.setattr(strategy, "SECONDS_BETWEEN_LOOKS", 0.0)


def moved(w, node):
    """What a client makes of the model: half the way to its own target."""
    return w + 0.5 * (TARGETS[node] - w)


def client(node, spoil=lambda arrays, metrics: (arrays, metrics)):
    def answer(message):
        arrays = {n: a.numpy() for n, a in message.content["arrays"].items()}
        metrics = {"num-examples": SAMPLES[node], "loss": float(TARGETS[node])}
        if message.metadata.message_type == "train":
            arrays["w"] = moved(arrays["w"], node).astype(np.float32)
            arrays["steps"] = np.asarray(arrays["steps"] + 4)
            arrays, metrics = spoil(arrays, metrics)
            record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
            content = {"arrays": record, "metrics": MetricRecord(metrics)}
        else:
            content = {"metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    return answer


def grid(**spoils):
    return LoopGrid({node: client(node, *spoils.get(f"node{node}", ())) for node in SAMPLES})


def first():
    values = {"w": np.array([0.0, 1.0], np.float32), "steps": np.array(0, np.int64)}
    return ArrayRecord({name: Array(value) for name, value in values.items()})


def trained(strategy_, rounds, grid_=None):
    result = strategy_.start(grid_ or grid(), first(), num_rounds=rounds)
    return {name: array.numpy() for name, array in result.arrays.items()}, result


def by_hand(rounds, eta, beta):
    """The paper's Algorithm 3 with everybody in every round, w and v as NumPy numbers."""
    w = v = np.array([0.0, 1.0])
    n = sum(SAMPLES.values())
    for _ in range(rounds):
        g = sum(SAMPLES[k] / n * (w - moved(w, k)) for k in SAMPLES)
        new = w - eta * g
        w, v = new + beta * (new - v), new
    return w


@pytest.mark.parametrize(("beta", "rounds"), [(0.9, 1), (0.9, 5), (0.0, 4)])
def test_everybody_in_every_round_is_the_papers_algorithm(beta, rounds):
    made = FedMom(1.0, beta, clients_per_round=3, min_available_nodes=3)
    found, result = trained(made, rounds)
    np.testing.assert_allclose(found["w"], by_hand(rounds, 1.0, beta), rtol=1e-5)
    assert found["w"].dtype == np.float32
    assert found["steps"] == 4 * rounds  # whole numbers are averaged, without momentum
    mean = sum(SAMPLES[k] * TARGETS[k] for k in SAMPLES) / sum(SAMPLES.values())
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(mean)
    assert result.evaluate_metrics_clientapp[rounds]["num-examples"] == sum(SAMPLES.values())


def test_fedavg_is_fedmom_without_momentum():
    options = {"clients_per_round": 2, "min_available_nodes": 3, "seed": 3}
    a, _ = trained(FedAvg(1.0, **options), 4)
    b, _ = trained(FedMom(1.0, 0.0, **options), 4)
    np.testing.assert_allclose(a["w"], b["w"], rtol=1e-6)


def test_cohorts_are_a_function_of_the_seed():
    options = {"clients_per_round": 1, "min_available_nodes": 3}
    a, b, c = (trained(FedMom(**options, seed=seed), 4)[0]["w"].tolist() for seed in (1, 1, 2))
    assert a == b
    assert a != c


def test_it_goes_on_in_another_process_as_if_it_had_not_stopped(tmp_path):
    options = {"clients_per_round": 2, "min_available_nodes": 3, "seed": 3}
    whole, _ = trained(FedMom(**options), 6)
    trained(FedMom(**options, folder=tmp_path), 2)
    found, _ = trained(FedMom(**options, folder=tmp_path), 6)
    np.testing.assert_allclose(found["w"], whole["w"], rtol=1e-6)
    again, result = trained(FedMom(**options, folder=tmp_path), 6)  # there is nothing left to do
    assert again["w"].tolist() == found["w"].tolist()
    assert not result.train_metrics_clientapp


def to_nan(arrays, metrics):
    return {**arrays, "w": np.full(2, np.nan, np.float32)}, metrics


BAD = {
    "nan": to_nan,
    "name": lambda arrays, metrics: ({"x": arrays["w"], "steps": arrays["steps"]}, metrics),
    "shape": lambda arrays, metrics: ({**arrays, "w": arrays["w"][:1]}, metrics),
    "type": lambda arrays, metrics: ({**arrays, "w": arrays["w"].astype(np.float64)}, metrics),
    "no samples": lambda arrays, _: (arrays, {"loss": 1.0}),
    "half a sample": lambda arrays, m: (arrays, {**m, "num-examples": 0.5}),
    "more than is believed": lambda arrays, m: (arrays, {**m, "num-examples": 10**6 + 1}),
}


@pytest.mark.parametrize("spoil", BAD.values(), ids=BAD)
def test_a_bad_reply_is_left_out(spoil):
    made = FedMom(1.0, clients_per_round=3, min_available_nodes=3, weighting="cohort")
    found, _ = trained(made, 1, grid(node3=(spoil,)))
    w = np.array([0.0, 1.0])
    g = (10 * (w - moved(w, 1)) + 30 * (w - moved(w, 2))) / 40
    np.testing.assert_allclose(found["w"], w - g - 0.9 * g, rtol=1e-5)


def test_a_reply_in_anothers_name_is_left_out():
    """What a reply says of its sender is written by the sender."""

    def posing(reply):
        if reply.metadata.src_node_id == 3 and "arrays" in reply.content:
            reply.metadata.__dict__["_src_node_id"] = 1
        return reply

    made = FedMom(1.0, clients_per_round=3, min_available_nodes=3, weighting="cohort")
    nodes = grid()
    nodes._change = posing
    found, _ = trained(made, 1, nodes)
    w = np.array([0.0, 1.0])
    g = (10 * (w - moved(w, 1)) + 30 * (w - moved(w, 2))) / 40
    np.testing.assert_allclose(found["w"], w - g - 0.9 * g, rtol=1e-5)


def test_messages_end_with_the_time_that_replies_are_waited_for():
    seen = []

    def note(node):
        honest = client(node)

        def answer(message):
            seen.append(message.metadata.ttl)
            return honest(message)

        return answer

    made = FedMom(1.0, clients_per_round=3, min_available_nodes=3)
    made.start(LoopGrid({node: note(node) for node in SAMPLES}), first(), 1, timeout=45)
    assert set(seen) == {45}


def test_a_round_with_too_few_replies_is_repeated(monkeypatch):
    monkeypatch.setattr(strategy.time, "sleep", lambda _: None)
    times = iter([True, True, False])

    def at_first(arrays, metrics):
        return to_nan(arrays, metrics) if next(times, False) else (arrays, metrics)

    made = FedMom(1.0, clients_per_round=3, min_available_nodes=3, least=3)
    found, _ = trained(made, 1, grid(node2=(at_first,)))
    np.testing.assert_allclose(found["w"], by_hand(1, 1.0, 0.9), rtol=1e-5)


def test_population_weights_stay_right_while_a_node_is_offline(tmp_path):
    """n is of all nodes ever seen: a missing one makes the step smaller, not the others larger."""
    options = {"clients_per_round": 2, "min_available_nodes": 2, "folder": tmp_path}
    everybody = FedAvg(1.0, **{**options, "clients_per_round": 3, "min_available_nodes": 3})
    before, _ = trained(everybody, 1)
    nodes = grid()
    nodes.offline = {3}
    found, _ = trained(FedAvg(1.0, **options), 2, nodes)
    w = before["w"]
    g = (10 * (w - moved(w, 1)) + 30 * (w - moved(w, 2))) / 100
    np.testing.assert_allclose(found["w"], w - g, rtol=1e-5)


def test_auto_is_k_over_m():
    made = FedMom(clients_per_round=2, min_available_nodes=3)
    made.start(grid(), first(), num_rounds=1)
    assert made._rate() == pytest.approx(3 / 2)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(FedMomError, match="clients_per_round 0"):
        FedMom(clients_per_round=0)
    with pytest.raises(FedMomError, match="max_samples 0"):
        FedMom(max_samples=0)
    with pytest.raises(FedMomError, match="min_available_nodes 1"):
        FedMom(clients_per_round=2, min_available_nodes=1)
