"""The one loop: weighting, missing clients, gradient descent as a special case, divergence."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.algorithms.local_work import LocalWork, full_gradient
from fedmom.data.batches import place
from fedmom.runtimes import local
from fedmom.runtimes.base import Failure
from fedmom.runtimes.client_programs import compiled
from fedmom.training.samplers import cohort
from tests import by_hand
from tests.conftest import population
from tests.training.scripted import (
    LOSSES,
    SIZES,
    UPDATES,
    Scripted,
    begin,
    block,
    fedavg,
    one_round,
    rounds,
    weights_of,
)

WEIGHTINGS = ("population", "cohort", "uniform")


def replying(order=lambda clients: clients, absent=()):
    """Single replies in some order; some clients never answer."""
    return Scripted(
        lambda round_, clients, _: [
            block([k], version=round_) for k in order(clients) if k not in absent
        ]
    )


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_weightings_are_their_formulas(size, weighting):
    chosen = cohort(0, 0, 5, size)
    n, delta = SIZES[chosen], UPDATES[chosen]
    g = {
        "population": n @ delta / SIZES.sum(),
        "cohort": n @ delta / n.sum(),
        "uniform": delta.mean(axis=0),
    }[weighting]
    state, record = one_round(Scripted(), fedavg(weighting), pace=fedmom.synchronous(size))
    np.testing.assert_allclose(state.params, -g, rtol=1e-5)
    np.testing.assert_allclose(record.update_norm, np.linalg.norm(g), rtol=1e-5)
    assert record.cohort == chosen.tolist()
    weights = np.ones(size) if weighting == "uniform" else n
    assert record.train_loss == pytest.approx(np.average(LOSSES[chosen], weights=weights))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_a_client_that_fails_does_not_count(weighting):
    state, record = one_round(replying(absent={1, 3}), fedavg(weighting))
    here = [0, 2, 4]
    expected = weights_of(weighting, here) @ UPDATES[here]
    np.testing.assert_allclose(state.params, -expected, rtol=1e-5)
    assert (record.replies, record.bytes_up, record.bytes_down) == (3, 3 * 12, 5 * 12)


@pytest.mark.parametrize("bad_replies", ["stop", "skip"])
def test_a_failure_is_written_down_and_stops_nothing(bad_replies):
    def answers(round_, clients, _):
        return [
            Failure(1, "its battery is empty", round_),
            *(block([k]) for k in clients if k != 1),
        ]

    state, record = one_round(Scripted(answers), bad_replies=bad_replies)
    here = [0, 2, 3, 4]
    np.testing.assert_allclose(
        state.params, -weights_of("population", here) @ UPDATES[here], rtol=1e-5
    )
    assert record.rejected == ((1, "its battery is empty"),)
    assert record.row()["rejected"] == [[1, "its battery is empty"]]


def test_a_late_failure_does_not_speak_for_a_later_question():
    """A client whose old work failed may be at work again."""

    def answers(round_, clients, _):
        old = [Failure(1, "it was too slow", round_ - 1)] if round_ else []
        return [*old, *(block([k], version=round_) for k in clients)]

    *_, (_, record) = rounds(Scripted(answers), count=2)
    assert record.replies == 5


def test_a_round_without_replies_leaves_the_model_alone():
    state, record = one_round(replying(absent=set(range(5))))
    np.testing.assert_array_equal(state.params, np.zeros(3))
    assert record.replies == 0
    assert record.train_loss is None
    assert record.row()["train_loss"] is None


@given(seed=st.integers(0, 1000), weighting=st.sampled_from(WEIGHTINGS))
def test_the_order_of_replies_changes_nothing_but_float_noise(seed, weighting):
    def shuffled(clients):
        return np.random.default_rng(seed).permutation(clients)

    plain, _ = one_round(replying(), fedavg(weighting))
    permuted, _ = one_round(replying(order=shuffled), fedavg(weighting))
    np.testing.assert_allclose(plain.params, permuted.params, rtol=1e-5, atol=1e-6)


# Clients whose shuffled orders take the same room, which is a part of the compiled shape.
FIVE = population([17, 25, 30, 20, 32])
WORKS = {
    "steps": LocalWork(lr=0.1, steps=7, batch_size=4),
    "epochs": LocalWork(lr=0.1, epochs=1, batch_size=4, solver=optax.adam, prox=0.1),
    "full": full_gradient(0.2),
}


def trained(data, work, rounds=5, m=None, weighting="population", lr=None, **runtime):
    model = fedmom.build_model("logreg", data.features)
    work = work if lr is None else replace(work, lr=lr)
    workload = fedmom.Workload(data, model, fedavg(weighting)._replace(work=work))
    runtime = fedmom.LocalRuntime(workload, **runtime)
    pace = fedmom.synchronous(m or data.clients)
    *_, (state, _record) = fedmom.train(runtime, pace=pace, rounds=rounds)
    runtime.close()
    return workload, state.params


def leaves(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_fedavg_with_everyone_full_data_and_one_step_is_gradient_descent():
    data, lr = population([3, 11, 40]), 0.3
    workload, w = trained(data, WORKS["full"], lr=lr)
    expected = workload.params()
    samples = by_hand.read(data, np.arange(54))
    for _ in range(5):
        _, _, gradient = by_hand.logreg(expected, *samples)
        expected = jax.tree.map(lambda p, g: p - lr * g, expected, gradient)
    np.testing.assert_allclose(leaves(w), leaves(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weighting", ["population", "cohort"])
def test_a_client_split_in_two_changes_nothing_for_full_gradients(weighting):
    whole = population([12, 30])
    parts = population([12, 10, 20])  # the same rows in the same order
    np.testing.assert_array_equal(whole.arrays["x"], parts.arrays["x"])
    one, two = (trained(d, WORKS["full"], weighting=weighting)[1] for d in (whole, parts))
    np.testing.assert_allclose(leaves(one), leaves(two), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("work", WORKS)
def test_clients_on_threads_in_one_call_and_vectorized_agree(work, monkeypatch):
    for constant in ("FEW_AT_ONCE", "CLIENTS_AT_ONCE"):
        monkeypatch.setattr(local, constant, 2)  # so that 4 clients take two calls
    found = []
    ways = ((0, 1, False), (0, 2, False), (float("inf"), 1, False), (0, 1, True))
    for short, per_call, vectorized in ways:
        monkeypatch.setattr(local, "SHORT", short)
        monkeypatch.setattr(local, "at_once", lambda *_, n=per_call: n)
        found.append(trained(FIVE, WORKS[work], rounds=3, m=4, vectorized=vectorized)[1])
    for other in found[1:]:
        np.testing.assert_allclose(leaves(found[0]), leaves(other), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("vectorized", [False, True])
def test_parts_of_a_cohort_need_not_be_equal(vectorized, monkeypatch):
    for constant in ("FEW_AT_ONCE", "CLIENTS_AT_ONCE"):
        monkeypatch.setattr(local, constant, 2)  # so that the last of 5 clients is alone
    parts = trained(FIVE, WORKS["steps"], rounds=2, vectorized=vectorized)[1]
    monkeypatch.setattr(local, "SHORT", 0)
    monkeypatch.setattr(local, "CALL", 0)
    alone = trained(FIVE, WORKS["steps"], rounds=2)[1]
    np.testing.assert_allclose(leaves(alone), leaves(parts), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("per_call", [1, 2])
def test_workers_change_no_bit(per_call, monkeypatch):
    monkeypatch.setattr(local, "SHORT", 0)  # so that clients run on threads
    monkeypatch.setattr(local, "at_once", lambda *_: per_call)
    one, four = (trained(FIVE, WORKS["epochs"], m=4, workers=w)[1] for w in (1, 4))
    np.testing.assert_array_equal(leaves(one), leaves(four))


@given(clients=st.integers(1, 2_000), product=st.integers(local.SHORT, 10**10))
def test_clients_in_one_call_are_as_many_as_pay(clients, product):
    """M/k calls and the last of k clients take M/k * c + k * w, which is least at sqrt(Mc/w)."""
    size = local.at_once(clients, product)
    assert clients % size == 0  # one program for all calls

    def taken(k):
        return clients / k * local.CALL + k * product

    assert taken(size) <= taken(1)
    possible = [k for k in (1, 2, 4, 8) if clients % k == 0]
    assert taken(size) <= 1.25 * min(map(taken, possible))


def noted_ways(monkeypatch):
    """The way in which each call of a runtime goes: "one", "few" or "many", with its clients."""
    ways, run = [], local.LocalRuntime._run

    def noted(self, broadcast, lr, part, way):
        ways.append((way, [task.client for task in part]))
        return run(self, broadcast, lr, part, way)

    monkeypatch.setattr(local.LocalRuntime, "_run", noted)
    return ways


def test_how_a_round_is_computed_does_not_depend_on_a_clock(monkeypatch):
    """The same cohort goes the same way again: counted work decides, so that bits repeat."""
    ways = noted_ways(monkeypatch)
    params = fedmom.build_model("logreg", FIVE.features).init(jax.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    monkeypatch.setattr(local, "SHORT", size * 24 + 1)  # a client of 25 samples is long
    trained(FIVE, WORKS["epochs"], rounds=6, m=1)
    expected = [
        ("one" if max(-(-FIVE.train.size[c] // 4) * 4) > 24 else "few", c.tolist())
        for c in (cohort(0, t, 5, 1) for t in range(6))
    ]
    assert ways == expected
    assert {way for way, _ in ways} == {"one", "few"}


def test_the_vectorized_way_hands_on_one_block_as_it_was_computed():
    """Earlier, every reply was cut out of the stack by a dispatch of its own."""
    model = fedmom.build_model("logreg", FIVE.features)
    algorithm = fedavg()._replace(work=WORKS["steps"])
    runtime = fedmom.LocalRuntime(fedmom.Workload(FIVE, model, algorithm), vectorized=True)
    answers, program = [], runtime._programs["many"]

    def noted(*args, **options):
        answers.append(program(*args, **options))
        return answers[-1]

    runtime._programs["many"] = noted
    runtime.ask(0, np.array([2, 3]), model.init(jax.random.key(0)))
    (reply,) = runtime.replies()
    ((update, _states, metrics),) = answers
    assert reply.clients.tolist() == [2, 3]
    assert reply.samples.tolist() == [30, 20]
    for got, computed in zip(
        jax.tree.leaves((reply.update, dict(reply.metrics))),
        jax.tree.leaves((update, metrics)),
        strict=True,
    ):
        assert got is computed
        assert len(got) == 2


@pytest.mark.parametrize("size", [8, 17, 24])
def test_large_cohorts_add_up_in_parts(size):
    rng = np.random.default_rng(1)
    deltas = rng.normal(size=(size, 3)).astype(np.float32)
    samples = rng.integers(1, 50, size)

    def answers(_round, clients, _broadcast):
        return [block([k], deltas[[k]], samples[[k]], np.array([k], np.float32)) for k in clients]

    state, record = one_round(Scripted(answers), fedavg("cohort"), samples=samples)
    np.testing.assert_allclose(
        state.params, -samples @ deltas / samples.sum(), rtol=1e-4, atol=1e-5
    )
    assert record.train_loss == pytest.approx(samples @ np.arange(size) / samples.sum(), rel=1e-5)


def test_runs_that_differ_in_numbers_only_share_one_program():
    data = population([5, 9])
    model = fedmom.build_model("logreg", data.features)
    works = [LocalWork(lr=0.1, steps=3), LocalWork(lr=0.2, steps=lambda t: 5 + t)]

    def program(work):
        algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), work)
        return compiled(fedmom.Workload(data, model, algorithm), "few")

    one, two = map(program, works)
    assert one is two
    assert program(LocalWork(lr=0.1, epochs=1)) is not one


def test_divergence_is_a_sentence_that_names_the_client():
    with pytest.raises(fedmom.DivergedError, match=r"client \d sent back .* not finite"):
        trained(FIVE, WORKS["steps"], lr=1e38, m=2, rounds=20)


@pytest.mark.parametrize("rate", [1e37, 3e38])
@pytest.mark.parametrize(
    "server", [fedmom.servers.fedavg, fedmom.servers.fedmom, fedmom.servers.fedavgm]
)
def test_a_server_step_beyond_the_numbers_is_divergence_of_the_server(server, rate):
    """Earlier, such a model was handed on, evaluated and saved as if nothing had happened."""
    good = fedmom.Algorithm(server(1.0))
    first, _ = one_round(Scripted(), good)
    huge = fedmom.Algorithm(server(rate))
    loud = Scripted(lambda *_: [block([4], 100 * jnp.asarray(UPDATES[[4]]), version=1)])
    with pytest.raises(fedmom.DivergedError, match=r"Round 2: the server's step made a model or"):
        rounds(loud, huge, state=first)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(first))
    again, _ = one_round(Scripted(), good, state=first)
    *_, (expected, _) = rounds(Scripted(), good, 2)
    np.testing.assert_array_equal(again.params, expected.params)


@pytest.mark.parametrize(
    ("m", "says"), [(0, "must be a whole number of at least 1"), (6, "is not between 1 and the 5")]
)
def test_an_impossible_cohort_is_refused(m, says):
    with pytest.raises(fedmom.FedMomError, match=f"clients-per-round {m} {says}"):
        one_round(Scripted(), pace=fedmom.synchronous(m))


def test_what_to_do_with_bad_replies_is_checked():
    with pytest.raises(
        fedmom.FedMomError, match=r"bad_replies is 'ignore'. It must be 'stop' or 'skip'"
    ):
        one_round(Scripted(), bad_replies="ignore")


def test_data_is_shared_with_jax_not_copied():
    data = population([5, 9, 30])
    placed = place(data.arrays)
    for name in ("x", "y"):
        assert placed[name].unsafe_buffer_pointer() == data.arrays[name].ctypes.data


class TestInterrupted:
    """A loop that was left in the middle of a round, and another one over the same runtime."""

    def test_the_round_is_played_anew(self):
        model = fedmom.build_model("logreg", FIVE.features)
        workload = fedmom.Workload(FIVE, model, fedavg()._replace(work=WORKS["steps"]))
        options = {"pace": fedmom.synchronous(2), "rounds": 3}
        *_, (expected, _) = fedmom.train(fedmom.LocalRuntime(workload), **options)
        runtime = fedmom.LocalRuntime(workload)
        state, _ = next(fedmom.train(runtime, **options))
        runtime.ask(state.round, np.array([0, 1, 2]), state.params)  # and then, Ctrl-C
        *_, (again, _) = fedmom.train(runtime, state=state, **options)
        np.testing.assert_array_equal(leaves(again.params), leaves(expected.params))

    def test_the_state_before_is_as_it_was(self):
        first, _ = one_round(Scripted())
        before = np.array(first.params)

        def answers(round_, clients, _):
            return [block([clients[0]], version=round_), KeyboardInterrupt()]

        with pytest.raises(KeyboardInterrupt):
            rounds(Scripted(answers), state=first)
        np.testing.assert_array_equal(first.params, before)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_first_parameters_that_are_not_finite_are_the_models_fault(value):
    with pytest.raises(fedmom.FedMomError, match="first parameters are not finite"):
        begin(fedavg(), jnp.array([0.0, value, 1.0]))
