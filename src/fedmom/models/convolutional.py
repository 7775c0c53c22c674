"""LeNet-5, and the larger net that LEAF trains on FEMNIST."""

import jax

from fedmom.core.errors import FedMomError
from fedmom.core.prng import split
from fedmom.core.types import Params
from fedmom.core.validation import check_parameters
from fedmom.data.federated import Features
from fedmom.models._conv_pool import conv_relu_pool, linear_of_maps, linear_of_rows
from fedmom.models.base import Model, as_channels, conv, dense, dropout, need


def lenet5(features: Features) -> Model:
    """LeNet-5 with ReLU and max pooling: conv 6, conv 16, dense 120, 84 (images)."""
    height, width, channels = _image_shape("lenet5", features)
    flat = (height // 2 - 4) // 2 * ((width // 2 - 4) // 2) * 16
    numbers = 120 * (flat + 1) + 85 * features.classes
    check_parameters(f"lenet5 for {features.classes:,} classes", numbers)

    def init(key: jax.Array) -> Params:
        k1, k2, k3, k4, k5 = split(key, 5)
        return {
            "conv1": conv(k1, 5, channels, 6),
            "conv2": conv(k2, 5, 6, 16),
            "dense1": dense(k3, flat, 120),
            "dense2": dense(k4, 120, 84),
            "out": dense(k5, 84, features.classes),
        }

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
    numbers = 2048 * (flat + 1) + 2049 * features.classes
    check_parameters(f"leaf_cnn for {features.classes:,} classes", numbers)

    def init(key: jax.Array) -> Params:
        k1, k2, k3, k4 = split(key, 4)
        return {
            "conv1": conv(k1, 5, channels, 32),
            "conv2": conv(k2, 5, 32, 64),
            "dense": dense(k3, flat, 2048),
            "out": dense(k4, 2048, features.classes),
        }

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        x = conv_relu_pool(params["conv1"], as_channels(x), "SAME")
        x = conv_relu_pool(params["conv2"], x, "SAME")
        x = jax.nn.relu(linear_of_maps(params["dense"], x))
        return linear_of_rows(params["out"], dropout(x, dropout_rate, key))

    return Model(init, apply)


def _image_shape(model: str, features: Features) -> tuple[int, int, int]:
    need(model, features, ("image",))
    height, width, *channels = features.shape
    if min(height, width) < 12:
        raise FedMomError(f"{model} needs images of 12x12 or more, not {height}x{width}.")
    return height, width, channels[0] if channels else 1
