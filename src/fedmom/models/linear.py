"""Logistic regression, and the perceptron with one hidden layer (McMahan's 2NN with two)."""

import jax

from fedmom.core.errors import FedMomError
from fedmom.core.threefry import split
from fedmom.core.types import Params
from fedmom.data.federated import Features
from fedmom.models.base import Model, dense, flat_size, linear, need


def logreg(features: Features) -> Model:
    """Logistic regression (vectors, images)."""
    need("logreg", features, ("vector", "image"))
    return _perceptron(features, [])


def mlp(features: Features, *, hidden: int = 200, layers: int = 2) -> Model:
    """Perceptron with rectified hidden layers, McMahan's 2NN by default (vectors, images)."""
    need("mlp", features, ("vector", "image"))
    if hidden < 1 or layers < 1:
        raise FedMomError(f"mlp: hidden={hidden} and layers={layers} must be 1 or more.")
    return _perceptron(features, [hidden] * layers)


def _perceptron(features: Features, hidden: list[int]) -> Model:
    sizes = [flat_size(features), *hidden, features.classes]

    def init(key: jax.Array) -> Params:
        keys = split(key, len(sizes) - 1)
        return [dense(k, a, b) for k, a, b in zip(keys, sizes, sizes[1:], strict=False)]

    def apply(params: Params, x: jax.Array, _key: jax.Array | None) -> jax.Array:
        x = x.reshape(len(x), -1)
        for layer in params[:-1]:
            x = jax.nn.relu(linear(layer, x))
        return linear(params[-1], x)

    return Model(init, apply)
