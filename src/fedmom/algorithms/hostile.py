"""Puts an attack into a method: which clients are hostile, and what they do instead."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedmom.algorithms.base import Attack, Client, reported
from fedmom.core.types import Params
from fedmom.data.federated import Features

STREAM = 4  # of the seed, next to those of fedmom.core.prng
FORGING = 2**32 - 2  # folded into a client's key: neither a step's number nor the stages'

Collusion = Callable[[Params, jax.Array, jax.Array], Params]


@lru_cache(maxsize=16)
def hostile_clients(seed: int, clients: int, share: float) -> NDArray[np.bool_]:
    """Return which clients are hostile: a share of all, at least one, drawn by the seed.

    Examples:
        >>> int(hostile_clients(0, 50, 0.1).sum()), int(hostile_clients(0, 3, 0.1).sum())
        (5, 1)
    """
    number = max(1, round(share * clients))
    found = np.zeros(clients, bool)
    found[np.random.default_rng([seed, STREAM]).permutation(clients)[:number]] = True
    found.flags.writeable = False
    return found


@lru_cache(maxsize=64)
def attacked(client: Client, attack: Attack, seed: int, clients: int, features: Features) -> Client:
    """Return a client that attacks where it is hostile, and else does as before."""
    poison, forge = attack.poison, attack.forge
    if poison is None and forge is None:
        return client
    is_hostile = hostile_clients(seed, clients, attack.share)

    def run(broadcast: Any, state: Any, problem: Any, key: jax.Array) -> Any:
        hostile = jnp.asarray(is_hostile)[problem.client]

        def choose(bad: Any, good: Any) -> Any:
            return jax.tree.map(lambda b, g: jnp.where(hostile, b, g).astype(g.dtype), bad, good)

        def read(arrays: Any, rows: Any) -> Any:
            batch = problem.read(arrays, rows)
            x, y = batch
            return choose(tuple(poison(x, y, features)), batch)  # type: ignore[misc]

        trains = problem._replace(read=read) if poison else problem
        update, state, metrics = reported(client.run(broadcast, state, trains, key), "run")
        if forge:
            update = choose(forge(update, jax.random.fold_in(key, FORGING)), update)
            if "norm" in metrics:
                metrics = {**metrics, "norm": optax.tree.norm(update)}
        return update, state, metrics

    return client._replace(run=run)


@lru_cache(maxsize=64)
def collusion(attack: Attack, seed: int, clients: int) -> Collusion | None:
    """Return ``replaced(rows, weights, clients of the rows) -> rows``, if the attack colludes.

    Without an honest reply in the round, rows stay as they are.
    """
    collude = attack.collude
    if collude is None:
        return None
    is_hostile = hostile_clients(seed, clients, attack.share)

    def replaced(rows: Params, weights: jax.Array, numbers: jax.Array) -> Params:
        hostile = jnp.asarray(is_hostile)[numbers] & (weights > 0)
        honest = (weights > 0) & ~hostile
        count = jnp.sum(honest)

        def over_honest(values: jax.Array, count: jax.Array) -> jax.Array:
            return jnp.sum(jnp.where(_as_column(honest, values), values, 0), 0) / jnp.maximum(
                count, 1
            )

        mean = jax.tree.map(lambda leaf: over_honest(leaf, count), rows)
        deviation = jax.tree.map(
            lambda leaf, m: jnp.sqrt(over_honest(jnp.square(leaf - m), count - 1)), rows, mean
        )
        bad, takes = collude(mean, deviation), hostile & (count > 0)

        def chosen(b: jax.Array, leaf: jax.Array) -> jax.Array:
            return jnp.where(_as_column(takes, leaf), b, leaf).astype(leaf.dtype)

        return jax.tree.map(chosen, bad, rows)

    return replaced


def _as_column(values: jax.Array, rows: jax.Array) -> jax.Array:
    return values.reshape((-1,) + (1,) * (rows.ndim - 1))
