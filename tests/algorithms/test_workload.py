"""The one statement of a run: what it refuses, and what it puts together."""

from dataclasses import FrozenInstanceError, replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedmom
from fedmom.algorithms.client import LOCAL_TRAINING
from tests.conftest import population

WORK = fedmom.LocalWork(lr=0.1, steps=1)
DATA = population([3, 4])
MODEL = fedmom.build_model("logreg", DATA.features)
ALGORITHM = fedmom.Algorithm(fedmom.servers.fedavg(), WORK)


def stated(**parts):
    return fedmom.Workload(**({"data": DATA, "model": MODEL, "algorithm": ALGORITHM} | parts))


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"data": DATA.arrays}, r"data is of type dict, not fedmom.FederatedData.*from_arrays"),
        ({"data": MODEL}, r"data is of type Model, not fedmom.FederatedData"),
        ({"data": "synthetic"}, r"data is of type str, not fedmom.FederatedData.*load_data"),
        ({"model": "logreg"}, r"model is of type str, not fedmom.Model.*fedmom.model"),
        ({"model": lambda x: x}, r"model is of type function, not fedmom.Model"),
        ({"model": DATA}, r"model is of type FederatedData, not fedmom.Model"),
        ({"algorithm": optax.sgd(1.0)}, r"not fedmom.Algorithm.*Algorithm\(server, work\)"),
        ({"algorithm": "fedavg"}, r"algorithm is of type str, not fedmom.Algorithm"),
        ({"algorithm": WORK}, r"algorithm is of type LocalWork, not fedmom.Algorithm"),
        ({"algorithm": None}, r"algorithm is of type NoneType, not fedmom.Algorithm"),
        (
            {"algorithm": fedmom.Algorithm(optax.sgd(1.0))},
            r"does not say what clients do. Give its local work: fedmom.Algorithm\(server, fed",
        ),
        ({"algorithm": ALGORITHM._replace(client=fedmom.mean())}, "client is of type Rule, not"),
        ({"algorithm": ALGORITHM._replace(rule=fedmom.clip(norm=1))}, "rule is of type Stage, not"),
        ({"algorithm": ALGORITHM._replace(stages=(fedmom.mean(),))}, "stages is of type Rule, not"),
        ({"algorithm": ALGORITHM._replace(server=42)}, "neither a fedmom.Server nor an optax"),
        *(
            ({"algorithm": ALGORITHM._replace(stages=(fedmom.Stage(name),))}, "A stage or rule is")
            for name in ("client", "server", "a/b", "")
        ),
        *(
            ({"seed": seed}, "seed .* must be a whole number, 0 to 4,294,967,295")
            for seed in (-1, 2**32, 1.5, "1", None)
        ),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(parts, says):
    with pytest.raises(fedmom.FedMomError, match=says) as caught:
        stated(**parts)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_the_first_parameters_follow_from_the_seed(seed):
    one, two = stated(seed=seed).params(), fedmom.start(stated(seed=seed)).params
    other = stated(seed=2**31).params()
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.abs(np.asarray(one[0]["w"]) - other[0]["w"]).max() > 1e-3


def test_a_workload_does_not_change_but_others_are_made_of_it():
    run = stated()
    with pytest.raises(FrozenInstanceError):
        run.seed = 3
    assert replace(run, seed=3).seed == 3
    assert run.method is run.method


def test_what_is_left_out_is_the_papers():
    method = stated().method
    assert method.client is LOCAL_TRAINING
    assert method.rule == fedmom.mean("population")
    assert (method.is_plain, method.adds_up) == (True, True)


@pytest.mark.parametrize(
    ("parts", "plain", "adds_up"),
    [
        ({"stages": (fedmom.noise(std=1.0),)}, True, True),  # on the server only
        ({"stages": (fedmom.clip(norm=1.0),)}, False, True),
        ({"stages": (fedmom.quantize(),)}, False, False),
        ({"rule": fedmom.median()}, True, False),
        ({"client": fedmom.Client(LOCAL_TRAINING.run)}, True, True),
        ({"client": fedmom.Client(LOCAL_TRAINING.run, ranges=("loss",))}, False, False),
    ],
    ids=["noise", "clip", "quantize", "median", "client", "ranges"],
)
def test_what_a_runtime_may_do_with_a_method(parts, plain, adds_up):
    method = stated(algorithm=ALGORITHM._replace(**parts)).method
    assert (method.is_plain, method.adds_up) == (plain, adds_up)


def test_a_runtime_is_made_from_a_workload():
    with pytest.raises(fedmom.FedMomError, match=r"workload is .*\. It must be a fedmom\.Workload"):
        fedmom.LocalRuntime(DATA)


def old_stage(update, state, _sent, _key):
    return update, state


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"stages": (fedmom.Stage("old", old_stage),)}, "encode of old must return three values"),
        (
            {"stages": (fedmom.Stage("old", after=lambda a, *_: a),)},
            "after of old must return three values",
        ),
        (
            {"stages": (fedmom.Stage("rows", after=lambda a, s, _: (a, s, {"x": jnp.ones(3)})),)},
            r"after of rows reports 'x' with shape \(3,\). A metric is one number",
        ),
        (
            {"server": fedmom.Server(lambda _: (), lambda _, s, w: (w, s))},
            "the server's step must return three values",
        ),
        (
            {"rule": fedmom.Rule(np.ones_like, each=lambda rows, *_: rows)},
            "each of the rule rule must return three values",
        ),
        ({"client": fedmom.Client(lambda *_: None)}, "run of the client must return three values"),
    ],
    ids=["encode", "after", "metric", "step", "each", "run"],
)
def test_a_part_that_returns_something_else_is_named(parts, says):
    runtime = fedmom.LocalRuntime(stated(algorithm=ALGORITHM._replace(**parts)))
    with pytest.raises(fedmom.FedMomError, match=says):
        list(fedmom.train(runtime, pace=fedmom.synchronous(2), rounds=1))
