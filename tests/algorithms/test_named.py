"""Algorithms by name: which settings reach which parameter, and what is refused."""

import inspect

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedmom
from fedmom.algorithms import ALGORITHMS, named
from fedmom.algorithms.base import as_server
from fedmom.algorithms.local_work import full_gradient
from fedmom.algorithms.server import fedavgm

W0 = jnp.asarray(np.linspace(-1, 1, 5, dtype=np.float32))
GRADIENTS = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)


def end(algorithm):
    """Where an algorithm's server is after some aggregates, and what it would evaluate."""
    server = as_server(algorithm.server)
    w, state = W0, server.init(W0)
    for g in GRADIENTS:
        w, state, _ = server.step(g, state, w)
    return np.asarray(w), np.asarray(server.model(w, state))


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"spec": "fedavg"}, optax.sgd(1.0)),
        ({"spec": "fedavg", "server_lr": 0.3}, optax.sgd(0.3)),
        ({"spec": "fedavg", "server_lr": "inverse:start=2"}, optax.sgd(lambda t: 2 / (1 + t))),
        ({"spec": "fedsgd", "server_lr": 0.3}, optax.sgd(0.3)),
        ({"spec": "fedmom", "server_lr": 0.3}, optax.sgd(0.3, 0.9, nesterov=True)),
        (
            {"spec": "fedmom", "server_lr": 0.3, "momentum": 0.5},
            optax.sgd(0.3, 0.5, nesterov=True),
        ),
        ({"spec": "fedavgm", "server_lr": 0.3, "momentum": 0.5}, fedavgm(0.3, 0.5)),
        (
            {"spec": "fedadam:tau=0.1,beta2=0.5", "server_lr": 0.3},
            fedmom.servers.fedadam(0.3, 0.9, beta2=0.5, tau=0.1),
        ),
    ],
)
def test_settings_reach_the_servers_parameters(settings, same):
    found, _ = end(named.algorithm(**settings))
    expected, _ = end(fedmom.Algorithm(same))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_average_trains_as_without_and_evaluates_the_mean(name):
    plain, averaged = named.algorithm(name, 0.3), named.algorithm(name, 0.3, average=0.5)
    (w, last), (same, mean) = end(plain), end(averaged)
    np.testing.assert_array_equal(w, last)
    np.testing.assert_array_equal(same, w)
    assert np.abs(mean - w).max() > 1e-3
    assert averaged.work == plain.work


def test_fedsgd_and_diloco_bring_their_own_work():
    assert [n for n in ALGORITHMS if named.algorithm(n).work is not None] == ["fedsgd", "diloco"]
    assert named.algorithm("fedsgd").work == full_gradient(0.1)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_defaults_are_those_of_the_function(name):
    parameters = inspect.signature(ALGORITHMS[name]).parameters
    assert named.default_of(name, "learning_rate") == parameters["learning_rate"].default
    momentum = parameters["momentum"].default if "momentum" in parameters else None
    assert named.default_of(f"{name}:whatever=1", "momentum") == momentum


@pytest.mark.parametrize(
    ("spec", "weighting", "stages", "rule"),
    [
        ("mean", "cohort", (), fedmom.mean("cohort")),
        ("clip:norm=2", "uniform", (fedmom.clip(norm=2.0),), fedmom.mean("uniform")),
        ("clip:norm=2+mean", "cohort", (fedmom.clip(norm=2.0),), fedmom.mean("cohort")),
        ("clip:norm=1e+3+mean", "cohort", (fedmom.clip(norm=1000.0),), fedmom.mean("cohort")),
        (
            "clip:norm=2+clip:norm=1+trimmed_mean:share=0.2",
            "uniform",
            (fedmom.clip(norm=2.0), fedmom.clip(norm=1.0)),
            fedmom.trimmed_mean("uniform", share=0.2),
        ),
        ("median", "cohort", (), fedmom.median("cohort")),
        (
            "quantize:bits=4+noise:std=0.1",
            "cohort",
            (fedmom.quantize(bits=4), fedmom.noise(std=0.1)),
            fedmom.mean("cohort"),
        ),
    ],
)
def test_stages_and_a_rule_are_joined_by_a_plus(spec, weighting, stages, rule):
    algorithm = named.algorithm("fedavg", aggregate=spec, weighting=weighting)
    assert (algorithm.stages, algorithm.rule) == (stages, rule)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"aggregate": "mean+clip:norm=1"}, r"mean is a rule, and a rule comes last"),
        ({"aggregate": "clip+mean"}, r"clip needs norm\. Write clip:norm=\.\.\."),
        ({"aggregate": "clip:norm=0"}, r"clip: norm 0.0 must be a number greater than 0"),
        ({"aggregate": "mode"}, r"There is no rule 'mode'\."),
        ({"aggregate": "squeeze+mean"}, r"There is no stage 'squeeze'\."),
        ({"aggregate": "trimmed_mean"}, r"trimmed_mean cannot use population weights"),
        ({"aggregate": "median"}, r"median cannot use population weights.* --weighting uniform"),
        ({"aggregate": "noise:std=-1"}, r"noise: std -1.0 must be a number greater than 0"),
        ({"aggregate": "quantize:bits=1"}, r"quantize: bits=1 must be from 2 to 16"),
        ({"aggregate": "mean:share=1"}, r"mean has no option 'share'"),
        (
            {"weighting": "unifrom"},
            r"weighting is 'unifrom'. It must be 'population', 'cohort' or 'uniform'",
        ),
        ({"average": 1.0}, r"average 1.0 is not between 0 and 1"),
        ({"server_lr": "cosine:start=1"}, r"cosine needs rounds"),
        ({"server_lr": "cosine:start=0,rounds=9"}, r"start=0 must be greater than 0"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, says):
    with pytest.raises(fedmom.FedMomError, match=says):
        named.algorithm("fedavg", **settings)


def test_a_method_keeps_its_own_rule_and_stages_come_after_its_own():
    own, rule = fedmom.Stage("own", lambda u, s, *_: (u, s, {})), fedmom.mean("uniform")

    def mine(learning_rate=1.0):
        """A method with a rule and a stage of its own."""
        return fedmom.Algorithm(optax.sgd(learning_rate), rule=rule, stages=(own,))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ALGORITHMS._rows, "mine", mine)
        plain = named.algorithm("mine", 0.7)
        clipped = named.algorithm(
            "mine", 0.7, aggregate="clip:norm=1+trimmed_mean", weighting="uniform"
        )
    assert plain.rule is rule
    assert clipped.rule is fedmom.trimmed_mean("uniform")
    assert clipped.stages == (own, fedmom.clip(norm=1.0))
