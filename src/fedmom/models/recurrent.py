"""The paper's character model: an embedding of 8, one LSTM layer of 128, a softmax."""

import jax
import jax.numpy as jnp

from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.data.federated import Features
from fedmom.models._lstm import lstm
from fedmom.models.base import Model, dense, linear, need


def char_lstm(features: Features, *, embedding: int = 8, hidden: int = 128) -> Model:
    """The next character from the last: embedding, one LSTM layer, softmax (text)."""
    need("char_lstm", features, ("text",))
    if embedding < 1 or hidden < 1:
        raise FedMomError(f"char_lstm: embedding={embedding}, hidden={hidden} must be 1 or more.")

    def init(key: jax.Array) -> Params:
        k1, k2, k3, k4 = jax.random.split(key, 4)
        cell = dense(k2, embedding, 4 * hidden)
        recurrent = jax.nn.initializers.orthogonal()(k3, (hidden, 4 * hidden), jnp.float32)
        return {
            "embedding": jax.random.normal(k1, (features.classes, embedding)),
            "input": cell,
            "recurrent": recurrent,
            "out": dense(k4, hidden, features.classes),
        }

    def apply(params: Params, x: jax.Array, _key: jax.Array | None) -> jax.Array:
        # A symbol's way into the gates is a row of one table: no product per step.
        table = linear(params["input"], params["embedding"])
        return linear(params["out"], lstm(table, params["recurrent"], x))

    return Model(init, apply)
