"""(seed, round) -> the clients of a round, and (seed, round, client) -> their randomness."""

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom.threefry import stream_key

# The independent streams of one seed. Numbers, not an enum: they are folded into keys.
_INIT, _CLIENTS = 0, 1


def init_key(seed: int) -> jax.Array:
    """Return the key that draws the model's first parameters."""
    return stream_key(seed, _INIT)


def clients_key(seed: int) -> jax.Array:
    """Return the key of all clients; folding in the round, then the client, gives its own."""
    return stream_key(seed, _CLIENTS)


def cohort(seed: int, round_: int, clients: int, size: int) -> NDArray[np.int64]:
    """Draw ``size`` of ``clients`` uniformly without replacement, sorted.

    Floyd's algorithm: as many draws as there are clients to pick, whatever the population.
    """
    # A counter-based generator is keyed by (seed, round) as they are, at no cost of seeding.
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, round_], np.uint64)))
    chosen: set[int] = set()
    for top, draw in enumerate(
        rng.integers(0, np.arange(clients - size, clients), endpoint=True), clients - size
    ):
        chosen.add(top if int(draw) in chosen else int(draw))
    return np.array(sorted(chosen), np.int64)
