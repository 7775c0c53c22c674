"""Clients that remember: who has a state, what a checkpoint holds, and what bad rounds change."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.runtimes import local
from tests.conftest import population

SIZES = [3, 5, 8, 4, 6, 7]
WAYS = {"one": (0, False), "few": (float("inf"), False), "many": (0, True)}


@lru_cache  # one object: its programs are traced once
def counting(broken=lambda _problem, _rounds: False, metrics=("loss",)):
    """A client that counts its rounds and trains on what it has counted.

    Where ``broken`` says so, its update is NaN; ``metrics`` says what it tells of itself.
    """

    def run(params, state, problem, key):
        rounds = state["rounds"] + 1
        noise = jax.random.normal(key, params.shape)
        bad = jnp.where(broken(problem, rounds), jnp.nan, 0.0)
        update = 0.1 * rounds * params + 0.01 * noise + problem.size * 0.01 + bad
        told = {"loss": jnp.float32(rounds), "norm": jnp.linalg.norm(update)}
        after = {"rounds": rounds, "last": update}
        return update, after, {name: told[name] for name in metrics}

    def init(params):
        return {"rounds": jnp.zeros((), jnp.int32), "last": jnp.zeros_like(params)}

    return fedmom.Client(run, init)


MODEL = fedmom.Model(lambda _key: jnp.arange(1.0, 4.0), apply=lambda *_: None)


class Run:
    """A method whose clients count, over a population of six."""

    vectorized = False

    def __init__(self, client=None, m=2, stages=(), data=None, work=None):
        algorithm = fedmom.Algorithm(
            fedmom.servers.fedavg(0.5),
            work or fedmom.LocalWork(steps=1),
            client or counting(),
            fedmom.mean("uniform"),
            stages,
        )
        self.workload = fedmom.Workload(data or population(SIZES), MODEL, algorithm)
        self.pace = fedmom.synchronous(m)
        self.runtime = self.fresh()
        self.state = fedmom.start(self.workload)

    def fresh(self):
        return fedmom.LocalRuntime(self.workload, workers=2, vectorized=self.vectorized)

    def train(self, rounds, **options):
        for state, record in fedmom.train(
            self.runtime, pace=self.pace, rounds=rounds, state=self.state, **options
        ):
            self.state = state
            yield record

    def counts(self, runtime=None):
        """Rounds by client, as the checkpoint has them."""
        tensors = (runtime or self.runtime).snapshot().tensors
        if "states/clients" not in tensors:
            return {}
        # Leaves of a state come in the order of their names: last, rounds.
        pairs = zip(tensors["states/clients"].tolist(), tensors["states/1"].tolist(), strict=True)
        return dict(pairs)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Clients on threads, a few in one call, or vectorized."""
    short, vectorized = WAYS[request.param]
    monkeypatch.setattr(local, "SHORT", short)
    monkeypatch.setattr(local, "CALL", 0)
    monkeypatch.setattr(Run, "vectorized", vectorized)
    return request.param


def counted(records):
    found = {}
    for record in records:
        for k in record.cohort:
            found[k] = found.get(k, 0) + 1
    return found


@pytest.mark.usefixtures("way")
def test_only_clients_that_have_been_asked_have_a_state():
    run = Run()
    records = []
    assert run.counts() == {}
    for record in run.train(5):
        records.append(record)
        assert run.counts() == counted(records)
    assert len(run.counts()) < len(SIZES)
    assert max(run.counts().values()) > 1


def test_the_caller_may_say_when_a_round_counts():
    """One that keeps rounds elsewhere commits once it has kept them."""
    run, whole = Run(), Run()
    records = []
    for record in run.train(3, commit=False):
        assert run.counts() == counted(records)  # those that were committed
        run.runtime.commit()
        records.append(record)
        assert run.counts() == counted(records)
    list(whole.train(3))
    np.testing.assert_array_equal(run.state.params, whole.state.params)


@pytest.mark.usefixtures("way")
def test_clients_train_with_what_they_remember():
    run = Run()
    w, seen = np.arange(1.0, 4.0), {}
    for t, record in enumerate(run.train(5)):
        updates = []
        for k in record.cohort:
            seen[k] = seen.get(k, 0) + 1
            key = jax.random.fold_in(jax.random.key(0), 1)
            key = jax.random.fold_in(jax.random.fold_in(key, t), k)
            noise = np.asarray(jax.random.normal(key, (3,)))
            updates.append(0.1 * seen[k] * w + 0.01 * noise + SIZES[k] * 0.01)
        w = w - 0.5 * np.mean(updates, axis=0)
        np.testing.assert_allclose(run.state.params, w, rtol=1e-4)
        assert record.train_loss == pytest.approx(np.mean([seen[k] for k in record.cohort]))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("after", [1, 3])
def test_a_run_goes_on_from_a_snapshot_to_the_same_bits(after):
    whole, part = Run(), Run()
    list(whole.train(6))
    list(part.train(after))
    kept = part.runtime.snapshot()
    part.runtime = part.fresh()
    part.runtime.restore(kept, part.state.params)
    list(part.train(6))
    np.testing.assert_array_equal(part.state.params, whole.state.params)
    assert part.counts() == whole.counts()
    tensors, expected = (r.runtime.snapshot().tensors for r in (part, whole))
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(tensors[name], tensor)


def test_a_snapshot_is_of_its_moment():
    """Rounds that follow do not change it."""
    run = Run()
    list(run.train(2))
    kept = run.runtime.snapshot()
    before = {name: tensor.copy() for name, tensor in kept.tensors.items()}
    list(run.train(6))
    for name, tensor in before.items():
        np.testing.assert_array_equal(kept.tensors[name], tensor)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("replies", [0, 1, 2])
def test_a_round_that_is_interrupted_changes_no_snapshot(replies):
    """Whoever has answered in it; and with the snapshot the round is played again."""
    run, whole = Run(), Run()
    list(whole.train(4))
    list(run.train(2))
    before = run.counts()
    cohort = run.pace.ask(0, 2, np.array(SIZES), set())
    run.runtime.ask(2, cohort, run.state.params)
    answers = run.runtime.replies()
    seen = 0
    while seen < replies:
        seen += len(next(answers).clients)
    answers.close()  # Ctrl-C
    assert run.counts() == before
    run.runtime.restore(run.runtime.snapshot(), run.state.params)
    list(run.train(4))
    np.testing.assert_array_equal(run.state.params, whole.state.params)
    assert run.counts() == whole.counts()


def test_a_round_that_diverges_changes_no_snapshot():
    run = Run(counting(lambda _problem, rounds: rounds == 2), m=6)
    list(run.train(1))
    before = run.counts()
    with pytest.raises(fedmom.DivergedError, match=r"Round 2: client \d sent back"):
        list(run.train(2))
    assert run.counts() == before == dict.fromkeys(range(6), 1)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("metrics", [("loss",), ("loss", "norm")])
def test_the_state_of_a_client_whose_update_is_not_finite_stays(metrics):
    """Also where the client itself does not notice."""
    sick = counting(lambda problem, _rounds: problem.size == SIZES[2], metrics)
    run = Run(sick, m=6)
    for record in run.train(3, bad_replies="skip"):
        assert record.rejected == ((2, "its update is not finite"),)
    assert run.counts() == {0: 3, 1: 3, 2: 0, 3: 3, 4: 3, 5: 3}
    assert all(np.isfinite(tensor).all() for tensor in run.runtime.snapshot().tensors.values())


def test_a_client_recovers_with_the_state_it_had():
    sick = counting(lambda problem, _: (problem.size == SIZES[2]) & (problem.lr < 1))
    run = Run(sick, m=6, work=fedmom.LocalWork(lr=lambda t: 0.5 if t == 1 else 2.0, steps=1))
    rejected = [len(r.rejected) for r in run.train(3, bad_replies="skip")]
    assert rejected == [0, 1, 0]
    assert run.counts() == {0: 3, 1: 3, 2: 2, 3: 3, 4: 3, 5: 3}


def test_clients_without_state_leave_nothing_to_save():
    run = Run(fedmom.Client(lambda w, state, _p, _k: (0 * w, state, {"loss": jnp.ones(())})))
    list(run.train(3))
    assert run.runtime.snapshot().tensors == {}


def test_memory_grows_with_the_clients_seen_not_with_the_population():
    data = population([1] * 500, classes=1)
    run = Run(data=data)
    list(run.train(3))
    tensors = run.runtime.snapshot().tensors
    assert len(tensors["states/clients"]) <= 6
    assert sum(t.size for t in tensors.values()) <= 6 * (1 + 1 + 3)


def test_states_of_a_method_with_stages_are_saved_with_those_of_its_clients():
    doubled = fedmom.Stage(
        "count",
        lambda update, total, _sent, _key: (update, total + 1, {}),
        client_init=lambda _: jnp.zeros(()),
    )
    run, whole = Run(stages=(doubled,)), Run(stages=(doubled,))
    list(whole.train(5))
    list(run.train(2))
    kept = run.runtime.snapshot()
    run.runtime = run.fresh()
    run.runtime.restore(kept, run.state.params)
    list(run.train(5))
    np.testing.assert_array_equal(run.state.params, whole.state.params)
    own, stages = (run.runtime.snapshot().tensors[f"states/{i}"] for i in (1, 2))
    np.testing.assert_array_equal(own, stages)  # both have counted the rounds
