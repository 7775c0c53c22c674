"""A user's own model is tried on the shapes of the data before a run has a folder."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

import fedmom
from fedmom.experiments.build import prepare
from fedmom.experiments.object_names import named
from fedmom.experiments.settings import parse
from fedmom.models.adapters import example
from fedmom.models.base import check

CLASSES = fedmom.Features("vector", (4,), 3)
SEQUENCE = fedmom.Features("vector", (4,), 3, task="sequence")


def product(w, x, _key):
    return x @ w


def linear(shape, apply=product, dtype=jnp.float32, **fields):
    return fedmom.Model(lambda _key: jnp.zeros(shape, dtype), apply, **fields)


@pytest.mark.parametrize("outputs", [3, 5])
def test_as_many_outputs_as_classes_or_more_are_fine(outputs):
    check(linear((4, outputs)), CLASSES, example(CLASSES))


@pytest.mark.parametrize(
    ("model", "features", "sentence"),
    [
        (linear((4, 2)), CLASSES, "3 classes, and the model's outputs have size 2"),
        (linear((4,)), CLASSES, r"array of shape \(2,\) .* must be \(2, 3\)"),
        (
            linear((5, 3)),
            CLASSES,
            r"inputs of shape \(4,\) \(float32\): .* got \(4,\) and \(5,\)\.",
        ),
        (linear((4, 3), dtype=jnp.int32), CLASSES, "is int32"),
        (linear((4, 3), loss=lambda z, _y: z.mean()), CLASSES, "one number per sample"),
        (
            fedmom.model((lambda _key: jnp.zeros((4, 3)), product), SEQUENCE),
            SEQUENCE,
            r"array of shape \(2, 3\) .* must be \(2, 4, 3\)",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused(model, features, sentence):
    with pytest.raises(fedmom.FedMomError, match=sentence):
        check(model, features, example(features))


def test_apply_takes_parameters_inputs_and_a_key():
    with pytest.raises(fedmom.FedMomError, match=r"apply is .* a function of 3 arguments"):
        linear((4, 3), lambda w, x: x @ w)


def test_parameters_that_cannot_be_traced_are_drawn():
    def init(key):
        drawn = np.random.default_rng(int(jax.random.bits(key))).normal(size=(4, 3))
        return jnp.asarray(drawn, jnp.float32)

    check(fedmom.Model(init, product), CLASSES, example(CLASSES))


def test_a_run_is_refused_before_it_has_a_folder(tmp_path):
    with pytest.raises(fedmom.FedMomError, match="outputs have size 2"):
        fedmom.run("synthetic:clients=4", model=linen.Dense(2), rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_function_of_features_may_return_a_net_and_inputs_may_be_tokens():
    x = np.arange(40).reshape(20, 2) % 5
    data = fedmom.from_arrays(x, x, np.repeat([0, 1], 10), task="sequence")

    def net(features):
        return linen.Sequential([linen.Embed(features.classes, 2), linen.Dense(features.classes)])

    model = prepare(parse(named({"data": data, "model": net}))).model
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert jax.eval_shape(lambda p: model.apply(p, x[:3], None), params).shape == (3, 2, 5)


@pytest.mark.parametrize("net", [lambda key: key.undefined, lambda _features, x: x])
def test_a_function_that_fails_is_told_how_it_is_called(net, tmp_path):
    with pytest.raises(fedmom.FedMomError, match=r"is called with data\.features"):
        fedmom.run("synthetic:clients=4", model=net, rounds=1, out=tmp_path / "run")


def test_a_built_in_model_can_have_other_metrics():
    model = fedmom.model("logreg", CLASSES, metrics=["accuracy", "top:k=2"])
    assert [metric.name for metric in model.metrics] == ["accuracy", "top2"]
    assert model.init is fedmom.build_model("logreg", CLASSES).init
    with pytest.raises(fedmom.FedMomError, match="logreg has none"):
        fedmom.model("logreg", CLASSES, state="local")


def test_an_optimizer_that_was_not_called_is_refused(tmp_path):
    with pytest.raises(fedmom.FedMomError, match=r"adam is a function that needs learning_rate"):
        fedmom.run("synthetic:clients=4", algorithm=optax.adam, rounds=1, out=tmp_path / "run")
