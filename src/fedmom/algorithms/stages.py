"""Stages that change updates on their way: clipping, noise, compression."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from fedmom.algorithms.base import Reported, Round, Stage
from fedmom.algorithms.local_work import check_positive
from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.prng import bits as bits_of
from fedmom.core.types import Params

SLACK = 1e-3  # of a norm that has been rounded


@checked
@lru_cache
def clip(*, norm: float) -> Stage:
    """Scale updates down to a norm, where theirs is larger.

    Args:
        norm: The largest norm that an update keeps, greater than 0.

    Returns:
        A stage that runs on the client, which reports the share of updates that were scaled down,
        and on the server, where it holds for clients that have not done so.

    Examples:
        >>> update, _, metrics = clip(norm=1.0).encode({"w": jnp.array([3.0, 4.0])}, (), (), None)
        >>> [round(x, 3) for x in update["w"].tolist()], float(metrics["share"])
        ([0.6, 0.8], 1.0)
    """
    check_positive("clip: norm", norm)

    def encode(update: Params, state: Any, _sent: Any, _key: Any) -> tuple[Params, Any, Reported]:
        length = optax.tree.norm(update)
        factor = jnp.where(length > norm, norm / length, 1.0)
        clipped = jax.tree.map(lambda u: u * factor.astype(u.dtype), update)
        return clipped, state, {"share": jnp.asarray(length > norm, jnp.float32)}

    def enforce(update: Params) -> Params:
        length = optax.tree.norm(update)
        # Of a client that has clipped, the norm is right up to rounding, and its bits are kept.
        factor = jnp.where(length > norm * (1 + SLACK), norm / length, 1.0)
        return jax.tree.map(lambda u: u * factor.astype(u.dtype), update)

    return Stage("clip", encode, enforce=enforce)


@checked
@lru_cache
def noise(*, std: float) -> Stage:
    """Add Gaussian noise to the aggregate, on the server.

    Args:
        std: The standard deviation in each coordinate, greater than 0.

    Returns:
        A stage that runs on the server.

    Examples:
        >>> zero = {"w": jnp.zeros(10_000)}
        >>> here = Round(0, jax.random.key(0), replies=2, weight=2.0, scale=0.5)
        >>> noisy, _, _ = noise(std=0.5).after(zero, (), here)
        >>> round(float(noisy["w"].std()), 1)
        0.5
    """
    check_positive("noise: std", std)

    def after(aggregate: Params, state: Any, round_: Round) -> tuple[Params, Any, Reported]:
        flat, whole = ravel_pytree(aggregate)  # one draw for all leaves: each would compile anew
        noisy = flat + std * jax.random.normal(round_.key, flat.shape, flat.dtype)
        return whole(noisy), state, {"std": jnp.asarray(std)}

    return Stage("noise", after=after)


@checked
@lru_cache
def quantize(*, bits: int = 8) -> Stage:
    """Round updates at random to few levels, without bias (Alistarh et al. 2017).

    Of each array, the largest absolute value is sent as it is, and the others as whole multiples
    of a fraction of it, up or down with the probability that makes their mean right.

    Args:
        bits: Of each number with its sign, 2 to 16; up to 8 a number takes one byte, above two.

    Returns:
        A stage that encodes on the client and decodes on the server.

    Examples:
        >>> stage, update = quantize(bits=2), {"w": jnp.array([0.3, -1.0])}
        >>> sent, _, _ = stage.encode(update, (), (), jax.random.key(0))
        >>> sent[0]["w"].dtype.name, stage.decode(sent, update)["w"][1].item()
        ('int8', -1.0)
    """
    if not 2 <= bits <= 16:
        raise FedMomError(f"quantize: bits={bits} must be from 2 to 16.")
    levels, whole = 2 ** (bits - 1) - 1, jnp.int8 if bits <= 8 else jnp.int16

    def encode(update: Params, state: Any, _sent: Any, key: Any) -> tuple[Params, Any, Reported]:
        largest = jax.tree.map(lambda u: jnp.max(jnp.abs(u), initial=0), update)
        flat, whole_of = ravel_pytree(update)
        # Uniform in [0, 1), from 24 bits each; one draw for all leaves compiles once.
        up = whole_of((bits_of(key, flat.size) >> 8).astype(flat.dtype) * 2.0**-24)

        def rounded(u: jax.Array, top: jax.Array, r: jax.Array) -> jax.Array:
            multiple = jnp.floor(u * (levels / jnp.where(top > 0, top, 1)) + r)
            return jnp.clip(multiple, -levels, levels).astype(whole)

        return (jax.tree.map(rounded, update, largest, up), largest), state, {}

    def decode(encoded: Params, form: Params) -> Params:
        return jax.tree.map(lambda q, top, f: (q * (top / levels)).astype(f.dtype), *encoded, form)

    return Stage("quantize", encode, decode=decode)
