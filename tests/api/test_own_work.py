"""Algorithms that bring their own local work, as FedSGD does: settings do not override it."""

import jax
import numpy as np
import optax
import pytest

import fedmom
from fedmom.core.errors import FedMomError

WORK = fedmom.LocalWork(lr=0.05, steps=3, batch_size=4)
MINE = fedmom.Algorithm(optax.sgd(0.7), WORK, rule=fedmom.mean("cohort"))
COMMON = {"data": "synthetic:clients=4", "rounds": 2, "clients_per_round": 2, "progress": False}


def trained(algorithm, seed=0):
    """The model after two rounds of the loop itself."""
    data = fedmom.load_data(COMMON["data"])
    run = fedmom.Workload(data, fedmom.build_model("logreg", data.features), algorithm, seed)
    *_, (state, _) = fedmom.train(fedmom.LocalRuntime(run), pace=fedmom.synchronous(2), rounds=2)
    return state.params


def assert_same(run, params):
    for one, two in zip(jax.tree.leaves(run.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(one, two)


def test_an_object_with_its_own_work_is_run_as_it_is(tmp_path):
    run = fedmom.run(algorithm=MINE, out=tmp_path / "run", **COMMON)
    assert run.experiment.work == WORK
    config = run.experiment.config
    assert (config.lr, config.batch_size, config.local_steps) == (0.05, 4, WORK.steps)
    assert_same(run, trained(MINE))


def test_a_scheduled_lr_of_its_own_is_kept_too(tmp_path):
    scheduled = MINE._replace(work=fedmom.LocalWork(lr=lambda t: 0.1 / (1 + t), steps=2))
    run = fedmom.run(algorithm=scheduled, out=tmp_path / "run", **COMMON)
    assert_same(run, trained(scheduled))


def test_fedsgd_by_name_and_as_an_object_end_alike(tmp_path):
    common = {**COMMON, "weighting": "population"}
    made = fedmom.servers.fedsgd(2.0, 0.05)
    by_name = fedmom.run(algorithm="fedsgd", server_lr=2.0, lr=0.05, out=tmp_path / "a", **common)
    given = fedmom.run(algorithm=made, out=tmp_path / "b", **common)
    for run in (by_name, given):
        assert_same(run, trained(made))


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", 0.3), ("local_steps", 5), ("local_epochs", 0.5), ("batch_size", 7), ("prox", 0.1)],
)
def test_settings_of_the_work_are_refused_by_name(tmp_path, name, value):
    says = f"brings its own local work: leave {name.replace('_', '-')} {value} out"
    with pytest.raises(FedMomError, match=says):
        fedmom.run(algorithm=MINE, out=tmp_path / "run", **COMMON, **{name: value})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("local_steps", [1, 5])
def test_fedsgd_takes_lr_but_no_local_steps(tmp_path, local_steps):
    run = fedmom.run(algorithm="fedsgd", lr=0.03, out=tmp_path / "run", **COMMON)
    assert run.experiment.work == fedmom.full_gradient(0.03)
    with pytest.raises(FedMomError, match=f"leave local-steps {local_steps} out"):
        fedmom.run(algorithm="fedsgd", local_steps=local_steps, out=tmp_path / "no", **COMMON)
