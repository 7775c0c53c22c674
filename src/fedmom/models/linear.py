"""Logistic regression, and the perceptron with one hidden layer (McMahan's 2NN with two)."""

from typing import Annotated

import jax

from fedmom.core.prng import split
from fedmom.core.types import Params
from fedmom.core.validation import MOST, Between, check_parameters
from fedmom.data.federated import Features
from fedmom.models.base import Model, dense, flat_size, linear, need

MOST_LAYERS = 1000


def logreg(features: Features) -> Model:
    """Logistic regression (vectors, images)."""
    need("logreg", features, ("vector", "image"))
    numbers = (flat_size(features) + 1) * features.classes
    check_parameters(f"logreg for {features.classes:,} classes", numbers)
    return _perceptron(features, [])


def mlp(
    features: Features,
    *,
    hidden: Annotated[int, Between(1, MOST)] = 200,
    layers: Annotated[int, Between(1, MOST_LAYERS)] = 2,
) -> Model:
    """Multilayer perceptron with ReLU, McMahan's 2NN by default (vectors, images)."""
    need("mlp", features, ("vector", "image"))
    first, last = flat_size(features), features.classes
    numbers = hidden * (first + last + 1) + (layers - 1) * hidden * (hidden + 1) + last
    check_parameters(f"mlp:hidden={hidden},layers={layers}", numbers)
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
