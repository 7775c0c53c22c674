"""JAX's own random bits, quicker on a CPU: Threefry-2x32 (Salmon et al. 2011), written out.

On a CPU, JAX computes this hash in a loop of many tiny kernels, to compile quickly. A client's
first step needs four hashes, and they took most of the time of the smallest clients. Written
out they are one kernel each. Bits are those of ``jax.random`` with its default keys, whatever
the process has set as its default.
"""

import jax
import jax.numpy as jnp

IMPLEMENTATION = "threefry2x32"
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA


def fold_in(key: jax.Array, number: jax.Array | int) -> jax.Array:
    """Return ``jax.random.fold_in(key, number)``."""
    hashed = _hash(key, jnp.uint32(0), jnp.asarray(number).astype(jnp.uint32))
    return jax.random.wrap_key_data(jnp.stack(hashed), impl=IMPLEMENTATION)


def bits(key: jax.Array, count: int) -> jax.Array:
    """Return ``jax.random.bits(key, (count,))``."""
    low, high = _hash(key, jnp.zeros(count, jnp.uint32), jnp.arange(count, dtype=jnp.uint32))
    return low ^ high


def _hash(key: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the block (x, y) after twenty rounds, with the key added in every four."""
    a, b = jax.random.key_data(key)
    schedule = a, b, a ^ b ^ jnp.uint32(_PARITY)
    x, y = x + a, y + b
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << turn | y >> (32 - turn)) ^ x
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y
