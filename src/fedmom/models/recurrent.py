"""The paper's character model: an embedding of 8, one LSTM layer of 128, a softmax."""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp

from fedmom.core.types import Params
from fedmom.core.validation import MOST, Between, check_parameters
from fedmom.data.federated import Features
from fedmom.models._lstm import lstm
from fedmom.models.base import Model, dense, linear, need


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

    @_compiled_quickly
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


def _compiled_quickly(init: Callable[[jax.Array], Params]) -> Callable[[jax.Array], Params]:
    """Compile the drawing of first parameters as one program, with little optimization.

    It runs once. (With no optimization at all, the orthogonal matrix has other numbers.)
    """
    compiled = jax.jit(init, compiler_options={"xla_backend_optimization_level": 1})

    def draw(key: jax.Array) -> Params:
        # A program inside another has no options of its own.
        return init(key) if isinstance(key, jax.core.Tracer) else compiled(key)

    return draw
