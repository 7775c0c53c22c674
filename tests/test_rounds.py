"""The one loop: weighting, missing clients, gradient descent as a special case, divergence."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from conftest import population
from fedmom.clients import LocalWork, compile_client, compile_few, full_gradient
from fedmom.data.federated import place
from fedmom.rounds import Reply, State
from fedmom.runtimes import local

SIZES = np.array([10, 20, 30, 40, 100])


class Scripted:
    """A runtime whose clients send given vectors, in a given order; some never answer."""

    def __init__(self, deltas, order=None, absent=()):
        self.deltas, self.order, self.absent = deltas, order, absent

    def replies(self, _params, _round, clients):
        for k in self.order(clients) if self.order else clients:
            if k not in self.absent:
                delta = jnp.asarray(self.deltas[k])
                yield Reply(int(k), delta, loss=float(k), norm=float(jnp.linalg.norm(delta)))


def one_round(runtime, weighting="population", clients_per_round=5, server=None):
    server = server or fedmom.fedavg(1.0)
    w = jnp.zeros(3)
    loop = fedmom.train(
        State(0, w, server.init(w)),
        runtime,
        server,
        samples=SIZES,
        rounds=1,
        clients_per_round=clients_per_round,
        weighting=weighting,
    )
    return next(loop)


DELTAS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


@pytest.mark.parametrize("size", [2, 5])
def test_weightings_are_their_formulas(size):
    chosen = fedmom.cohort(0, 0, 5, size)
    n, delta = SIZES[chosen], DELTAS[chosen]
    expected = {
        "population": n @ delta / SIZES.sum(),
        "cohort": n @ delta / n.sum(),
        "uniform": delta.mean(axis=0),
    }
    for weighting, g in expected.items():
        state, record = one_round(Scripted(DELTAS), weighting, size)
        np.testing.assert_allclose(state.params, -g, rtol=1e-5)
        np.testing.assert_allclose(record.update_norm, np.linalg.norm(g), rtol=1e-5)


@pytest.mark.parametrize("weighting", ["population", "cohort", "uniform"])
def test_a_client_that_fails_does_not_count(weighting):
    state, record = one_round(Scripted(DELTAS, absent={1, 3}), weighting)
    here = [0, 2, 4]
    total = {"population": SIZES.sum(), "cohort": SIZES[here].sum(), "uniform": 3}[weighting]
    weights = np.ones(3) if weighting == "uniform" else SIZES[here]
    np.testing.assert_allclose(state.params, -(weights @ DELTAS[here]) / total, rtol=1e-5)
    assert (record.replies, record.bytes_up, record.bytes_down) == (3, 3 * 12, 5 * 12)


def test_a_round_without_replies_leaves_the_model_alone():
    state, record = one_round(Scripted(DELTAS, absent=set(range(5))))
    np.testing.assert_array_equal(state.params, np.zeros(3))
    assert record.replies == 0
    assert record.train_loss is None


@given(seed=st.integers(0, 1000), weighting=st.sampled_from(["population", "cohort", "uniform"]))
def test_the_order_of_replies_changes_nothing_but_float_noise(seed, weighting):
    shuffled = np.random.default_rng(seed).permutation
    plain, _ = one_round(Scripted(DELTAS), weighting)
    permuted, _ = one_round(Scripted(DELTAS, order=shuffled), weighting)
    np.testing.assert_allclose(plain.params, permuted.params, rtol=1e-5, atol=1e-6)


def trained(data, work, rounds=5, m=None, weighting="population", eta=1.0, seed=0, **runtime):
    model = fedmom.build_model("logreg", data.features)
    server = fedmom.fedavg(eta)
    runtime = fedmom.LocalRuntime(data, model, work, seed=seed, **runtime)
    *_, (state, _record) = fedmom.train(
        fedmom.start(model, server, seed),
        runtime,
        server,
        samples=data.train.size,
        rounds=rounds,
        clients_per_round=m or data.clients,
        weighting=weighting,
        seed=seed,
    )
    return model, state.params


def leaves(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_fedavg_with_everyone_full_data_and_one_step_is_gradient_descent():
    data, lr = population([3, 11, 40]), 0.3
    model, w = trained(data, LocalWork(lr=lr, steps=1, batch_size=None))

    def f(w):
        x, y = data.read(data.arrays, jnp.arange(54))
        return model.loss(model.apply(w, x, None), y).mean()

    expected = fedmom.start(model, fedmom.fedavg(1.0), 0).params
    for _ in range(5):
        expected = jax.tree.map(lambda p, g: p - lr * g, expected, jax.grad(f)(expected))
    np.testing.assert_allclose(leaves(w), leaves(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weighting", ["population", "cohort"])
def test_a_client_split_in_two_changes_nothing_for_full_gradients(weighting):
    whole = population([12, 30])
    parts = population([12, 10, 20])  # the same rows in the same order
    np.testing.assert_array_equal(whole.arrays["x"], parts.arrays["x"])
    one, two = (trained(d, full_gradient(0.2), weighting=weighting)[1] for d in (whole, parts))
    np.testing.assert_allclose(leaves(one), leaves(two), rtol=1e-4, atol=1e-6)


def test_workers_change_no_bit():
    data = population([5, 9, 30, 2, 17])
    work = LocalWork(lr=0.1, epochs=2, batch_size=4)
    one, four = (trained(data, work, m=3, workers=w)[1] for w in (1, 4))
    np.testing.assert_array_equal(leaves(one), leaves(four))


@pytest.mark.parametrize(
    "work",
    [
        LocalWork(lr=0.1, steps=7, batch_size=4),
        LocalWork(lr=0.1, epochs=2, batch_size=4),
        LocalWork(lr=0.1, epochs=1, batch_size=4, solver=optax.adam, prox=0.1),
        full_gradient(0.2),
    ],
    ids=["steps", "epochs", "adam", "full"],
)
def test_a_vectorized_cohort_equals_one_client_after_another(work, monkeypatch):
    monkeypatch.setattr(local, "CLIENTS_AT_ONCE", 2)  # so that 5 clients take three calls
    data = population([5, 9, 30, 2, 17])
    one, many = (trained(data, work, rounds=3, vectorized=v)[1] for v in (False, True))
    np.testing.assert_allclose(leaves(one), leaves(many), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "work",
    [LocalWork(lr=0.1, steps=3), LocalWork(lr=0.1, epochs=2, batch_size=4), full_gradient(0.2)],
    ids=["steps", "epochs", "full"],
)
def test_a_few_short_clients_in_one_call_equal_clients_on_threads(work, monkeypatch):
    monkeypatch.setattr(local, "FEW_AT_ONCE", 2)  # so that 3 clients take two calls
    data = population([5, 9, 30, 2, 17])
    found = []
    for short in (0, float("inf")):
        monkeypatch.setattr(local, "SHORT", short)
        found.append(leaves(trained(data, work, m=3)[1]))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-7)


def test_how_a_round_is_computed_does_not_depend_on_a_clock(monkeypatch):
    """The same cohort goes the same way again: counted work decides, so that bits repeat."""
    ways = []
    for name in ("_few_at_once", "_threaded"):
        way = getattr(local.LocalRuntime, name)

        def noted(*args, way=way, name=name):
            ways.append(name)
            return way(*args)

        monkeypatch.setattr(local.LocalRuntime, name, noted)
    data, work = population([5, 9, 30, 2, 17]), LocalWork(lr=0.1, epochs=1, batch_size=4)
    longest = fedmom.build_model("logreg", data.features).init(jax.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(longest))
    monkeypatch.setattr(local, "SHORT", size * 16 + 1)  # a client of 17 samples is long
    trained(data, work, rounds=6, m=1)
    expected = [
        "_threaded" if max(-(-data.train.size[c] // 4) * 4) > 16 else "_few_at_once"
        for c in (fedmom.cohort(0, t, 5, 1) for t in range(6))
    ]
    assert ways == expected
    assert set(ways) == {"_few_at_once", "_threaded"}


@pytest.mark.parametrize("size", [8, 17, 24])
def test_large_cohorts_add_up_in_parts(size):
    rng = np.random.default_rng(1)
    deltas = rng.normal(size=(size, 3)).astype(np.float32)
    samples = rng.integers(1, 50, size)
    w, server = jnp.zeros(3), fedmom.fedavg(1.0)
    state, record = next(
        fedmom.train(
            State(0, w, server.init(w)),
            Scripted(deltas),
            server,
            samples=samples,
            rounds=1,
            clients_per_round=size,
            weighting="cohort",
        )
    )
    np.testing.assert_allclose(
        state.params, -samples @ deltas / samples.sum(), rtol=1e-4, atol=1e-5
    )
    assert record.train_loss == pytest.approx(samples @ np.arange(size) / samples.sum(), rel=1e-5)


def test_runs_that_differ_in_numbers_only_share_one_program():
    data = population([5, 9])
    model = fedmom.build_model("logreg", data.features)
    works = [LocalWork(lr=0.1, steps=3), LocalWork(lr=0.2, steps=lambda t: 5 + t)]
    one, two = (compile_client(model, data.read, w) for w in works)
    assert one is two
    assert compile_client(model, data.read, LocalWork(lr=0.1, epochs=1)) is not one


def test_divergence_is_a_sentence_that_names_the_client():
    data = population([20, 20])
    with pytest.raises(fedmom.FedMomError, match=r"client \d sent back .* not finite"):
        trained(data, LocalWork(lr=1e38, steps=20), rounds=20)


@pytest.mark.parametrize("m", [0, 6])
def test_an_impossible_cohort_is_refused(m):
    with pytest.raises(fedmom.FedMomError, match=f"clients-per-round {m} is not between 1 and"):
        one_round(Scripted(DELTAS), clients_per_round=m)


def test_a_run_compiles_its_programs_once():
    data = population([5, 9, 30])
    model = fedmom.build_model("mlp:hidden=7", data.features)
    work = LocalWork(lr=0.1, steps=2)
    runtime, server = fedmom.LocalRuntime(data, model, work), fedmom.fedmom(1.0)
    for seed in (0, 1):
        state = fedmom.start(model, server, seed)
        list(
            fedmom.train(
                state, runtime, server, samples=data.train.size, rounds=4, clients_per_round=2
            )
        )
    assert compile_few(model, data.read, work)._cache_size() == 1


def test_data_is_shared_with_jax_not_copied():
    data = population([5, 9, 30])
    placed = place(data.arrays)
    for name in ("x", "y"):
        assert placed[name].unsafe_buffer_pointer() == data.arrays[name].ctypes.data
