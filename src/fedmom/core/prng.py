"""The independent random streams of one seed, as JAX keys.

Everything random in a run is a function of (seed, round, client), never of the runtime, the
number of workers or the order of replies. Cohorts are drawn in ``fedmom.training.samplers``.
"""

import jax

from fedmom.core.threefry import stream_key

# Numbers, not an enum: they are folded into keys.
_INIT, _CLIENTS, _HESSIAN, _STAGES = range(4)


def init_key(seed: int) -> jax.Array:
    """Return the key that draws the model's first parameters."""
    return stream_key(seed, _INIT)


def clients_key(seed: int) -> jax.Array:
    """Return the key of all clients; folding in the round, then the client, gives its own."""
    return stream_key(seed, _CLIENTS)


def hessian_key(seed: int) -> jax.Array:
    """Return the key that draws the first vector of the Hessian's power iteration."""
    return stream_key(seed, _HESSIAN)


def stages_key(seed: int) -> jax.Array:
    """Return the key of what stages do on the server; folding in the round gives its own."""
    return stream_key(seed, _STAGES)
