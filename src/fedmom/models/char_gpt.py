"""A small transformer that reads characters and predicts the next one (Radford et al. 2019)."""

import math
from collections.abc import Iterator
from typing import Annotated

import jax
import jax.numpy as jnp

from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.core.validation import MOST, Between, check_parameters
from fedmom.data.federated import Features
from fedmom.models.base import Model, compiled_quickly, linear

MOST_LAYERS = 1000
STD = 0.02  # of first weights, as in GPT-2; less in what is added to the stream


def char_gpt(
    features: Features,
    *,
    layers: Annotated[int, Between(1, MOST_LAYERS)] = 2,
    width: Annotated[int, Between(1, MOST)] = 64,
    heads: Annotated[int, Between(1, MOST)] = 4,
    context: Annotated[int, Between(0, MOST)] = 0,
    tied: bool = True,
    remat: bool = False,
) -> Model:
    """Next-character prediction: a decoder-only transformer (text).

    Args:
        features: Those of the data. Where there is a label at every position, so are outputs.
        layers: Blocks of attention and a perceptron of four times the width.
        width: Numbers per character.
        heads: Heads of attention, which share the width.
        context: How many of the last characters are read; 0: all.
        tied: Whether the last layer is the embedding, as in GPT-2.
        remat: Compute the inside of a block again for its gradient: less memory, more time.
    """
    if features.kind != "text" or features.task not in ("classes", "sequence"):
        raise FedMomError(
            f"char_gpt reads text data, but this data is {features.kind} with labels of the kind"
            f" {features.task}. `fedmom list` shows which model reads what."
        )
    window = features.shape[0]
    what = f"char_gpt:layers={layers},width={width},heads={heads},context={context}"
    if width % heads:
        raise FedMomError(f"{what}: width must be a multiple of heads.")
    if context and (context > window or features.task == "sequence"):
        raise FedMomError(f"{what}: this data is read in windows of {window}. Leave context out.")
    read, symbols = context or window, features.classes
    matrices = width * (symbols * (1 if tied else 2) + read)
    check_parameters(what, matrices + layers * (12 * width * width + 13 * width) + 2 * width)

    @compiled_quickly
    def init(key: jax.Array) -> Params:
        keys = iter(jax.random.split(key, 3 + 6 * layers))
        params = {
            "embedding": STD * jax.random.normal(next(keys), (symbols, width)),
            "positions": STD * jax.random.normal(next(keys), (read, width)),
            "blocks": [_block(keys, width, layers) for _ in range(layers)],
            "norm": _norm(width),
        }
        if not tied:
            params["out"] = STD * jax.random.normal(next(keys), (width, symbols))
        return params

    through = _through_again if remat else _through

    def apply(params: Params, x: jax.Array, _key: jax.Array | None) -> jax.Array:
        stream = params["embedding"][x[:, -read:]] + params["positions"]
        stream = through(params["blocks"], stream, heads)
        stream = stream if features.task == "sequence" else stream[:, -1]
        out = params["embedding"].T if tied else params["out"]
        return _normalized(params["norm"], stream) @ out

    return Model(init, apply)


def _block(keys: Iterator[jax.Array], width: int, layers: int) -> Params:
    def dense(inputs: int, outputs: int, std: float = STD) -> Params:
        weights = std * jax.random.normal(next(keys), (inputs, outputs))
        return {"w": weights, "b": jnp.zeros(outputs)}

    added = STD / math.sqrt(2 * layers)
    return {
        "norm1": _norm(width),
        "query": dense(width, width),
        "key": dense(width, width),
        "value": dense(width, width),
        "out": dense(width, width, added),
        "norm2": _norm(width),
        "up": dense(width, 4 * width),
        "down": dense(4 * width, width, added),
    }


def _through(blocks: list[Params], stream: jax.Array, heads: int) -> jax.Array:
    for block in blocks:
        stream = _apply_block(block, stream, heads)
    return stream


def _through_again(blocks: list[Params], stream: jax.Array, heads: int) -> jax.Array:
    """Apply blocks whose inside is computed again for the gradient.

    As a loop: of blocks one after another, XLA for CPUs would keep the inside all the same.
    """
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)

    @jax.checkpoint
    def step(stream: jax.Array, block: Params) -> tuple[jax.Array, None]:
        return _apply_block(block, stream, heads), None

    return jax.lax.scan(step, stream, stacked)[0]


def _apply_block(block: Params, stream: jax.Array, heads: int) -> jax.Array:
    """Add attention to the stream, then a perceptron, each of the normalized stream."""
    stream = stream + _attention(block, _normalized(block["norm1"], stream), heads)
    inner = jax.nn.gelu(linear(block["up"], _normalized(block["norm2"], stream)))
    return stream + linear(block["down"], inner)


def _attention(block: Params, x: jax.Array, heads: int) -> jax.Array:
    """Mix positions with those before them."""
    rows, length, width = x.shape

    def split(name: str) -> jax.Array:
        return linear(block[name], x).reshape(rows, length, heads, width // heads)

    scores = jnp.einsum("nqhd,nkhd->nhqk", split("query"), split("key")) / math.sqrt(width // heads)
    seen = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf).astype(jnp.float32))
    mixed = jnp.einsum("nhqk,nkhd->nqhd", weights.astype(x.dtype), split("value"))
    return linear(block["out"], mixed.reshape(x.shape))


def _norm(width: int) -> Params:
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def _normalized(norm: Params, x: jax.Array) -> jax.Array:
    """Layer norm, in 32 bits."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centred = wide - wide.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    return scaled.astype(x.dtype) * norm["scale"] + norm["bias"]
