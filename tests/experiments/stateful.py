"""A method with client state, as a user's package would have it (and is made one by a test)."""

import jax
import jax.numpy as jnp
import optax

from fedmom import Algorithm, Client


def remembering(learning_rate: float = 1.0, *, keep: float = 0.5) -> Algorithm:
    """Clients add a part of what they sent the last time, and count how often they were asked."""

    def init(params):
        return {"last": jax.tree.map(jnp.zeros_like, params), "asked": jnp.zeros([], jnp.int32)}

    def run(params, state, problem, key):
        w, loss = problem.train(params, key)
        sent = jax.tree.map(lambda a, b, last: a - b + keep * last, params, w, state["last"])
        return sent, {"last": sent, "asked": state["asked"] + 1}, {"loss": loss}

    return Algorithm(optax.sgd(learning_rate), client=Client(run, init))
