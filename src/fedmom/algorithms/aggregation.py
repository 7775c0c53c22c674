"""Rules that combine updates, and stages that change them on their way."""

import math
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from fedmom.algorithms.base import Rule, Stage
from fedmom.core.errors import FedMomError
from fedmom.core.types import WEIGHTINGS, Params, Weighting


def mean(weighting: Weighting = "population") -> Rule:
    """The weighted mean of the updates.

    Args:
        weighting: ``population``: n_k over the samples of all clients, the paper's p_k, which do
            not add up to one over a cohort. ``cohort``: n_k over the cohort's samples.
            ``uniform``: one over the number of replies.

    Returns:
        A rule that needs a running sum only.

    Examples:
        >>> rule = mean("cohort")
        >>> rule.needs, rule.scale(20.0, 1000)
        ('sum', 0.05)
    """
    if weighting not in WEIGHTINGS:
        raise FedMomError(f"weighting {weighting!r} is none of {', '.join(WEIGHTINGS)}.")
    weigh = _alike if weighting == "uniform" else _by_samples
    return Rule(weigh, _over_population if weighting == "population" else _over_replies)


@lru_cache  # equal rules are one object, so that runs share compiled programs
def trimmed_mean(weighting: Weighting = "uniform", *, share: float = 0.1) -> Rule:
    """The mean of each coordinate without its largest and smallest values (Yin et al. 2018).

    Args:
        weighting: Must be ``uniform``: a client that claims many samples must not count more.
        share: How much is left out at either end, in [0, 0.5).

    Returns:
        A rule that needs every reply.

    Examples:
        >>> rule = trimmed_mean(share=0.25)
        >>> rows = {"w": jnp.array([[1.0], [2.0], [3.0], [100.0]])}
        >>> rule.each(rows, jnp.ones(4, bool))["w"].tolist()
        [2.5]
    """
    if weighting != "uniform":
        raise FedMomError(
            f"trimmed_mean weighs all clients alike, not by {weighting} weights."
            " Add --weighting uniform."
        )
    if not 0 <= share < 0.5:
        raise FedMomError(f"trimmed_mean: share={share} is not in [0, 0.5).")

    def each(rows: Params, counted: jax.Array) -> Params:
        present = jnp.sum(counted)
        # As a table: 0.3 of 10 is 3, which a product in 32 bits need not be.
        cut = jnp.asarray(np.floor(share * np.arange(len(counted) + 1) + 1e-9), int)[present]
        ranks = jnp.arange(len(counted))
        kept = (ranks >= cut) & (ranks < present - cut)
        # One sort for all leaves: each would take half a second to compile.
        _, whole = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], rows))
        flat = jax.vmap(lambda row: ravel_pytree(row)[0])(rows)
        # Rows that do not count are sorted behind all others.
        ordered = jnp.sort(jnp.where(counted[:, None], flat, jnp.inf), axis=0)
        total = jnp.sum(jnp.where(kept[:, None], ordered, 0), axis=0)
        return whole(total / jnp.maximum(present - 2 * cut, 1))

    return Rule(_alike, _over_replies, each)


def _by_samples(samples: NDArray[np.int64]) -> NDArray[np.float64]:
    return samples.astype(np.float64)


def _alike(samples: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.ones(len(samples))


def _over_population(_weight: float, population: int) -> float:
    return 1.0 / population


def _over_replies(weight: float, _population: int) -> float:
    return 1.0 / (weight or 1.0)


@lru_cache
def clip(*, norm: float) -> Stage:
    """Scale updates down to a norm, where theirs is larger.

    Args:
        norm: The largest norm that an update keeps, greater than 0.

    Returns:
        A stage that runs on the client.

    Examples:
        >>> update, _ = clip(norm=1.0).encode({"w": jnp.array([3.0, 4.0])}, (), None)
        >>> [round(x, 3) for x in update["w"].tolist()]
        [0.6, 0.8]
    """
    if not 0 < norm < math.inf:
        raise FedMomError(f"clip: norm={norm} is not a number greater than 0.")

    def encode(update: Params, state: Any, _key: jax.Array) -> tuple[Params, Any]:
        length = optax.tree.norm(update)
        factor = jnp.where(length > norm, norm / length, 1.0)
        return jax.tree.map(lambda u: u * factor.astype(u.dtype), update), state

    return Stage(encode)
