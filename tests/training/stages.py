"""A client and a stage that tests of stages have in common."""

from functools import lru_cache

import jax.numpy as jnp

import fedmom


@lru_cache
def quantizer(levels=10.0):
    """Send whole numbers of 8 bits; keep what was lost, and add it to the next update."""

    def encode(update, lost, _sent, _key):
        wanted = update + lost
        sent = jnp.clip(jnp.round(wanted * levels), -127, 127).astype(jnp.int8)
        return sent, wanted - sent / levels, {}

    return fedmom.Stage(
        "whole numbers",
        encode,
        client_init=lambda update: jnp.zeros_like(update),
        decode=lambda update, form: update.astype(form.dtype) / levels,
    )


VECTOR = fedmom.Model(lambda _key: jnp.zeros(2), apply=lambda *_: None)


@lru_cache  # one object: its programs are traced once
def constant_client():
    """A client whose update is a number that depends on its size alone."""

    def run(params, state, problem, _key):
        update = jnp.full_like(params, 0.013) * problem.size
        return update, state, {"loss": jnp.ones(())}

    return fedmom.Client(run)
