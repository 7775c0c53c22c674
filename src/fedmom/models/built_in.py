"""The built-in models: linear and perceptron, LeNet-5 and LEAF's CNN, the paper's LSTM."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated

import jax
import jax.numpy as jnp

from fedmom.core.errors import FedMomError
from fedmom.core.prng import split
from fedmom.core.types import Params
from fedmom.core.validation import MOST, Between, check_parameters
from fedmom.data.federated import Features
from fedmom.models.base import Model, as_channels, compiled_quickly, drawn, dropout, linear, need
from fedmom.models.kernels import conv_relu_pool, linear_of_maps, linear_of_rows
from fedmom.models.kernels.lstm import lstm

MOST_LAYERS = 1000


def logreg(features: Features) -> Model:
    """Logistic regression (vectors, images)."""
    need("logreg", features, ("vector", "image"))
    return _perceptron(f"logreg for {features.classes:,} classes", features, [])


def mlp(
    features: Features,
    *,
    hidden: Annotated[int, Between(1, MOST)] = 200,
    layers: Annotated[int, Between(1, MOST_LAYERS)] = 2,
) -> Model:
    """Multilayer perceptron with ReLU, McMahan's 2NN by default (vectors, images)."""
    need("mlp", features, ("vector", "image"))
    return _perceptron(f"mlp:hidden={hidden},layers={layers}", features, [hidden] * layers)


def _perceptron(what: str, features: Features, hidden: list[int]) -> Model:
    sizes = [math.prod(features.shape), *hidden, features.classes]
    check_parameters(what, sum((a + 1) * b for a, b in pairwise(sizes)))

    def init(key: jax.Array) -> Params:
        keys = split(key, len(sizes) - 1)
        return [drawn(k, a, b) for k, a, b in zip(keys, sizes, sizes[1:], strict=False)]

    def apply(params: Params, x: jax.Array, _key: jax.Array | None) -> jax.Array:
        x = x.reshape(len(x), -1)
        for layer in params[:-1]:
            x = jax.nn.relu(linear(layer, x))
        return linear(params[-1], x)

    return Model(init, apply)


def lenet5(features: Features) -> Model:
    """LeNet-5 with ReLU and max pooling: conv 6, conv 16, dense 120, 84 (images)."""
    height, width, channels = _image_shape("lenet5", features)
    flat = (height // 2 - 4) // 2 * ((width // 2 - 4) // 2) * 16
    init = _layers(
        f"lenet5 for {features.classes:,} classes",
        conv1=(5, 5, channels, 6),
        conv2=(5, 5, 6, 16),
        dense1=(flat, 120),
        dense2=(120, 84),
        out=(84, features.classes),
    )

    def apply(params: Params, x: jax.Array, _key: jax.Array | None) -> jax.Array:
        x = conv_relu_pool(params["conv1"], as_channels(x), "SAME")
        x = conv_relu_pool(params["conv2"], x, "VALID")
        x = jax.nn.relu(linear_of_maps(params["dense1"], x))
        return linear_of_rows(params["out"], jax.nn.relu(linear_of_rows(params["dense2"], x)))

    return Model(init, apply)


def leaf_cnn(features: Features, *, dropout_rate: float = 0.5) -> Model:
    """LEAF's net: conv 32, conv 64, dense 2048, dropout (images)."""
    height, width, channels = _image_shape("leaf_cnn", features)
    if not 0 <= dropout_rate < 1:
        raise FedMomError(f"leaf_cnn: dropout_rate={dropout_rate} is not in [0, 1).")
    flat = (height // 4) * (width // 4) * 64
    init = _layers(
        f"leaf_cnn for {features.classes:,} classes",
        conv1=(5, 5, channels, 32),
        conv2=(5, 5, 32, 64),
        dense=(flat, 2048),
        out=(2048, features.classes),
    )

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        x = conv_relu_pool(params["conv1"], as_channels(x), "SAME")
        x = conv_relu_pool(params["conv2"], x, "SAME")
        x = jax.nn.relu(linear_of_maps(params["dense"], x))
        return linear_of_rows(params["out"], dropout(x, dropout_rate, key))

    return Model(init, apply)


def _layers(what: str, **shapes: tuple[int, ...]) -> Callable[[jax.Array], Params]:
    """Return what draws layers of these shapes, each with a key of its own."""
    check_parameters(what, sum(math.prod(shape) + shape[-1] for shape in shapes.values()))

    def init(key: jax.Array) -> Params:
        keys = split(key, len(shapes))
        return {name: drawn(k, *shapes[name]) for k, name in zip(keys, shapes, strict=True)}

    return init


def _image_shape(model: str, features: Features) -> tuple[int, int, int]:
    need(model, features, ("image",))
    height, width, *channels = features.shape
    if min(height, width) < 12:
        raise FedMomError(f"{model} needs images of at least 12x12, not {height}x{width}.")
    return height, width, channels[0] if channels else 1


def char_lstm(
    features: Features,
    *,
    embedding: Annotated[int, Between(1, MOST)] = 8,
    hidden: Annotated[int, Between(1, MOST)] = 128,
) -> Model:
    """Next-character prediction: embedding, one LSTM layer, softmax (text)."""
    need("char_lstm", features, ("text",))
    numbers = 4 * hidden * (embedding + hidden + 1) + features.classes * (embedding + hidden + 1)
    check_parameters(f"char_lstm:embedding={embedding},hidden={hidden}", numbers)

    @compiled_quickly
    def init(key: jax.Array) -> Params:
        k1, k2, k3, k4 = jax.random.split(key, 4)
        orthogonal = jax.nn.initializers.orthogonal()
        return {
            "embedding": jax.random.normal(k1, (features.classes, embedding)),
            "input": drawn(k2, embedding, 4 * hidden),
            "recurrent": orthogonal(k3, (hidden, 4 * hidden), jnp.float32),
            "out": drawn(k4, hidden, features.classes),
        }

    def apply(params: Params, x: jax.Array, _key: jax.Array | None) -> jax.Array:
        # A symbol's way into the gates is a row of one table: no product per step.
        table = linear(params["input"], params["embedding"])
        return linear(params["out"], lstm(table, params["recurrent"], x))

    return Model(init, apply)
