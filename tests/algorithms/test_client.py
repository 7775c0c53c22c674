"""The local solver: exact batches, every solver's contract, FedProx, schedules."""

import math
from dataclasses import replace
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmom
from fedmom.algorithms import SOLVERS, named
from fedmom.algorithms.client import LOCAL_TRAINING, LocalProblem
from fedmom.algorithms.local_work import LocalWork, capacity, full_gradient
from fedmom.core.errors import FedMomError
from fedmom.data.batches import reader
from fedmom.models.base import Model
from tests import by_hand
from tests.conftest import population


def problem_of(data, model, work, client=0, round_=0, steps=None, size=None, room=None):
    start, size = int(data.train.start[client]), size or int(data.train.size[client])
    return LocalProblem(
        model,
        reader(data.features),
        work,
        data.arrays,
        start=jnp.int32(start),
        size=jnp.int32(size),
        steps=jnp.int32(steps or work.count(round_, size)),
        lr=work.lr(round_) if callable(work.lr) else work.lr,
        capacity=capacity(work, size) if room is None else room,
    )


@lru_cache
def compiled(model, read, work, room):
    @jax.jit
    def answer(params, key, *numbers):
        problem = LocalProblem(model, read, work, *numbers, room)
        return LOCAL_TRAINING.run(params, (), problem, key)

    return answer


def run_client(data, model, work, seed=0, params=None, **which):
    """One client's reply, compiled: its update, loss and norm."""
    params = model.init(jax.random.key(seed)) if params is None else params
    model, read, work, *numbers, room, _, _, _ = problem_of(data, model, work, **which)
    # Numbers that are handed over are no part of the program: works that differ in them share it.
    batches = "shuffled" if work.shuffled else "random"
    work = replace(work, lr=1.0, steps=1, epochs=None, batches=batches)
    answer = compiled(model, read, work, room)
    update, state, metrics = answer(params, jax.random.key(seed), *numbers)
    assert state == ()
    return update, metrics["loss"], metrics["norm"]


@lru_cache  # one model: its programs are traced once
def counting(samples):
    """A model whose update counts samples: the loss of sample i is w_i, its gradient e_i."""
    x = np.arange(samples, dtype=np.float32)[:, None]
    data = fedmom.from_arrays(x, np.zeros(samples, int), np.zeros(samples, int))
    model = Model(
        init=lambda _key: jnp.zeros(samples),
        apply=lambda w, x, _key: w[x[:, 0].astype(int)],
        loss=lambda logits, _y: logits,
    )
    return data, model


# Few batch sizes: each one compiles.
@given(samples=st.integers(1, 60), batch=st.sampled_from([1, 7]), epochs=st.integers(1, 3))
def test_an_epoch_uses_every_sample_once_and_none_twice(samples, batch, epochs):
    data, model = counting(60)
    work = LocalWork(lr=1.0, epochs=epochs, batch_size=batch)
    delta, _, _ = run_client(data, model, work, size=samples, room=64)
    assert not np.asarray(delta)[samples:].any()  # nobody else's samples
    delta = np.asarray(delta)[:samples]
    # A sample in a batch of size b moves its own weight by 1/b; all batches but the last are full.
    rest = samples % batch
    shares = np.full((epochs, samples), 1 / min(batch, samples))
    full = samples - rest
    expected_sum = epochs * (full / batch + (1 if rest else 0))
    np.testing.assert_allclose(np.sum(delta), expected_sum, rtol=1e-5)
    if rest == 0:
        np.testing.assert_allclose(delta, shares.sum(axis=0), rtol=1e-5)
    elif epochs == 1:
        values = np.sort(np.asarray(delta))
        expected = np.sort(np.r_[np.full(full, 1 / batch), np.full(rest, 1 / rest)])
        np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_epochs_come_in_different_orders():
    data, model = counting(20)
    first = [
        run_client(data, model, LocalWork(lr=1.0, steps=h, batch_size=5, batches="shuffled"))[0]
        for h in (1, 4, 5)
    ]
    in_first_batch = np.flatnonzero(np.asarray(first[0]))
    fifth_batch = np.flatnonzero(np.asarray(first[2]) - np.asarray(first[1]) > 1e-6)
    assert len(in_first_batch) == len(fifth_batch) == 5
    assert set(in_first_batch) != set(fifth_batch)


def test_a_part_of_an_epoch_is_the_epochs_beginning():
    data, model = counting(20)
    half = run_client(data, model, LocalWork(lr=1.0, epochs=0.5, batch_size=5))[0]
    steps = run_client(data, model, LocalWork(lr=1.0, steps=2, batch_size=5, batches="shuffled"))[0]
    np.testing.assert_array_equal(half, steps)
    assert np.count_nonzero(half) == 10


def test_random_batches_are_the_documented_draws():
    data, model = counting(7)
    delta, _, _ = run_client(data, model, LocalWork(lr=1.0, steps=5, batch_size=4), seed=3)
    keys = [jax.random.fold_in(jax.random.key(3), h) for h in range(5)]
    rows = np.concatenate([np.asarray(jax.random.bits(k, (4,))) % 7 for k in keys])
    np.testing.assert_allclose(delta, np.bincount(rows, minlength=7) / 4, rtol=1e-6)


def test_the_room_for_the_order_does_not_change_it():
    data, model = counting(20)
    work = LocalWork(lr=1.0, epochs=1, batch_size=8)
    small, large = (run_client(data, model, work, steps=1, room=c)[0] for c in (32, 256))
    np.testing.assert_array_equal(small, large)


SIZES = [1, 5, 128, 300]  # of clients


@pytest.mark.parametrize("client", range(len(SIZES)), ids=SIZES)
def test_the_full_gradient_is_the_gradient_of_the_mean_loss(client):
    data = population(SIZES)
    model = fedmom.build_model("logreg", data.features)
    params = model.init(jax.random.key(1))
    delta, loss, norm = run_client(data, model, full_gradient(0.5), params=params, client=client)
    rows = data.train.start[client] + np.arange(SIZES[client])
    losses, _, gradient = by_hand.logreg(params, *by_hand.read(data, rows))
    for got, want in zip(jax.tree.leaves(delta), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(got, 0.5 * want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(loss, losses.mean(), rtol=1e-5)
    squares = sum(np.sum(np.square(d)) for d in jax.tree.leaves(delta))
    np.testing.assert_allclose(norm, math.sqrt(squares), rtol=1e-5)


def test_fedprox_pulls_towards_the_servers_model():
    data, model = counting(1)
    mu, lr, steps = 0.5, 0.1, 4
    delta, _, _ = run_client(data, model, LocalWork(lr=lr, steps=steps, batch_size=1, prox=mu))
    w = 0.0
    for _ in range(steps):
        w -= lr * (1 + mu * (w - 0.0))
    np.testing.assert_allclose(delta, [-w], rtol=1e-5)


# What each solver is in optax's own words.
OPTAX = {
    "sgd": ("sgd", {}),
    "momentum": ("sgd", {"momentum": 0.9}),
    "rmsprop": ("rmsprop", {}),
    "adam": ("adam", {}),
    "adamw": ("adamw", {}),
    "sgd:momentum=0.8,nesterov=true": ("sgd", {"momentum": 0.8, "nesterov": True}),
    "rmsprop:decay=0.5,eps=1e-4": ("rmsprop", {"decay": 0.5, "eps": 1e-4}),
    "adam:b1=0.5,b2=0.9,eps=0.01": ("adam", {"b1": 0.5, "b2": 0.9, "eps": 0.01}),
    "adamw:weight_decay=0.3": ("adamw", {"weight_decay": 0.3}),
}


def test_every_solver_is_tested_here():
    assert {name.partition(":")[0] for name in OPTAX} == set(SOLVERS)


def test_equal_solvers_are_one():
    assert named.solver("adam:b1=0.5") is named.solver("adam:b1=0.5")


@pytest.mark.parametrize("name", OPTAX)
class TestSolverContract:
    """What every local solver must do; one program for all of it."""

    DATA = population([30, 40, 1])

    def run(self, name, **options):
        """A model before, the model that a client makes of it, and its reply."""
        model = fedmom.build_model("logreg", self.DATA.features)
        params = model.init(jax.random.key(0))
        work = LocalWork(lr=0.05, steps=6, batch_size=8, solver=named.solver(name))
        delta, loss, _ = run_client(self.DATA, model, work, params=params, seed=2, **options)
        before, delta = (jax.tree.map(np.asarray, tree) for tree in (params, delta))
        return before, jax.tree.map(np.subtract, before, delta), loss

    def test_it_is_the_optax_solver_run_by_hand(self, name):
        params, trained, _ = self.run(name)
        solver = getattr(optax, OPTAX[name][0])(0.05, **OPTAX[name][1])
        w, state = params, solver.init(params)
        for h in range(6):
            rows = jax.random.bits(jax.random.fold_in(jax.random.key(2), h), (8,)) % 30
            _, _, gradient = by_hand.logreg(w, *by_hand.read(self.DATA, np.asarray(rows)))
            gradient = jax.tree.map(np.float32, gradient)
            updates, state = solver.update(gradient, state, w)
            w = optax.apply_updates(w, updates)
        for got, want in zip(jax.tree.leaves(trained), jax.tree.leaves(w), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-5)

    def test_it_lowers_the_loss_of_its_client(self, name):
        before, after, _ = self.run(name, client=1, steps=60)
        rows = self.DATA.train.start[1] + np.arange(40)
        samples = by_hand.read(self.DATA, rows)
        losses = [by_hand.logreg(w, *samples)[0].mean() for w in (before, after)]
        assert losses[1] < losses[0]

    def test_one_sample_is_enough(self, name):
        before, after, loss = self.run(name, client=2)
        assert np.isfinite(loss)
        sample = by_hand.read(self.DATA, self.DATA.train.start[2:])
        assert by_hand.logreg(after, *sample)[0] < by_hand.logreg(before, *sample)[0]


def test_any_optax_optimizer_is_a_solver():
    data, model = counting(3)
    ready = optax.chain(optax.clip(0.01), optax.sgd(1.0))
    delta, _, _ = run_client(data, model, LocalWork(steps=1, batch_size=None, solver=ready))
    np.testing.assert_allclose(delta, np.full(3, 0.01), rtol=1e-6)


def test_schedules_of_step_size_and_work_follow_the_round():
    work = LocalWork(lr=lambda t: 1.0 / (1 + t), steps=lambda t: 5 - t)
    assert [work.count(t, 100) for t in range(4)] == [5, 4, 3, 2]
    epochs = LocalWork(lr=0.1, epochs=lambda t: 1 + t, batch_size=10)
    assert [epochs.count(t, 25) for t in range(3)] == [3, 6, 9]
    data, model = counting(1)
    for t in range(3):
        delta, _, _ = run_client(
            data, model, LocalWork(lr=lambda t: 1.0 / (1 + t), steps=1, batch_size=1), round_=t
        )
        np.testing.assert_allclose(delta, [1 / (1 + t)], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": 5, "epochs": 1}, "either in steps or in epochs"),
        ({}, "either in steps or in epochs"),
        ({"steps": 0}, "steps 0"),
        ({"steps": 1, "lr": -1.0}, "lr -1.0"),
        ({"steps": 1, "lr": math.nan}, "lr nan"),
        ({"steps": 1, "batch_size": 0}, "batch-size 0"),
        ({"steps": 1, "batches": "sorted"}, "sorted"),
        ({"steps": 1, "prox": -1.0}, "prox -1.0"),
    ],
)
def test_senseless_work_is_refused(options, says):
    with pytest.raises(fedmom.FedMomError, match=says):
        LocalWork(**options)


def test_a_correction_changes_the_gradient_of_every_step():
    """As SCAFFOLD's c - c_k does; here the gradient is 1, and the correction 0.5 + 0.3 w."""
    data, model = counting(1)
    problem = problem_of(data, model, LocalWork(lr=0.1, steps=4, batch_size=1))

    @jax.jit
    def end(by):
        return problem.train(jnp.zeros(1), jax.random.key(0), lambda g, w: g + by + 0.3 * w)[0]

    w = 0.0
    for _ in range(4):
        w -= 0.1 * (1 + 0.5 + 0.3 * w)
    np.testing.assert_allclose(end(0.5), [w], rtol=1e-5)


def test_training_reports_the_mean_loss_over_its_steps():
    """With the gradient 1 and the loss w, step h is at -lr h."""
    data, model = counting(1)
    _, loss, norm = run_client(data, model, LocalWork(lr=0.1, steps=5, batch_size=1))
    np.testing.assert_allclose(loss, -0.1 * np.mean(range(5)), rtol=1e-5)
    np.testing.assert_allclose(norm, 0.5, rtol=1e-5)


@pytest.mark.parametrize("batches", ["random", "shuffled"])
def test_a_batch_in_parts_is_the_batch(batches):
    """Also where the last batch of an epoch has fewer samples than a part."""
    data = population([21])
    model = fedmom.build_model("logreg", data.features)
    found = []
    for accumulate in (1, 4):
        work = LocalWork(
            lr=0.3, steps=7, batch_size=8, batches=batches, accumulate=accumulate, prox=0.1
        )
        found.append(run_client(data, model, work))
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, *found)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 10, "accumulate": 3}, "accumulate 3 cannot divide batch-size 10 into"),
        ({"batch_size": None, "accumulate": 2}, "accumulate 2 cannot divide batch-size all"),
        ({"accumulate": 0}, "accumulate 0 must be a whole number of at least 1"),
    ],
)
def test_parts_are_equal(options, says):
    with pytest.raises(FedMomError, match=says):
        LocalWork(lr=0.1, steps=1, **options)
