"""The one statement of a run: what it refuses, and what it puts together."""

from dataclasses import FrozenInstanceError, replace

import jax
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
        ({"data": DATA.arrays}, r"data is a dict, not a fedmom.FederatedData.*from_arrays"),
        ({"data": MODEL}, r"data is a Model, not a fedmom.FederatedData"),
        ({"data": "synthetic"}, r"data is a str, not a fedmom.FederatedData.*load_data"),
        ({"model": "logreg"}, r"model is a str, not a fedmom.Model.*fedmom.model"),
        ({"model": lambda x: x}, r"model is a function, not a fedmom.Model"),
        ({"model": DATA}, r"model is a FederatedData, not a fedmom.Model"),
        ({"algorithm": optax.sgd(1.0)}, r"not a fedmom.Algorithm.*Algorithm\(server, work\)"),
        ({"algorithm": "fedavg"}, r"algorithm is a str, not a fedmom.Algorithm"),
        ({"algorithm": WORK}, r"algorithm is a LocalWork, not a fedmom.Algorithm"),
        ({"algorithm": None}, r"algorithm is a NoneType, not a fedmom.Algorithm"),
        (
            {"algorithm": fedmom.Algorithm(optax.sgd(1.0))},
            r"does not say what clients do. Give its local work: fedmom.Algorithm\(server, fed",
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
    assert (method.is_plain, method.adds_up, method.decodes) == (True, True, False)


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
