"""The independent random streams of one seed, as JAX keys, and JAX's random bits made faster.

Everything random in a run is a function of (seed, round, client), never of the runtime, the
number of workers or the order of replies. Cohorts are drawn in ``fedmom.training.samplers``.

On a CPU, JAX computes its hash (``fedmom.core.threefry``) in a loop of many tiny kernels,
to compile quickly. A client's first step needs four hashes, which took most of the time of the
smallest clients. Written out, each is one kernel. The bits are those of ``jax.random`` with its
default keys, whatever the process has set as its default.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.fusion import kernel
from fedmom.core.threefry import hashed

IMPLEMENTATION = "threefry2x32"
_WORD = 2**32 - 1
CHUNK = 2**14  # numbers drawn at a time by NumPy: more leave the cache


def stream_key(seed: int, stream: int) -> jax.Array:
    """Return ``jax.random.fold_in(jax.random.key(seed), stream)``, without compiling a program."""
    if not 0 <= seed < 2**32:
        raise FedMomError(f"seed {seed} is not between 0 and {2**32 - 1}.")
    key, number = (np.array([[0], [n]], np.uint32) for n in (seed, stream))
    words = jax.device_put(np.concatenate(hashed(key, *number)))
    return jax.random.wrap_key_data(words, impl=IMPLEMENTATION)


# The streams, as functions of the seed. Their numbers are folded into keys.
init_key = partial(stream_key, stream=0)  # the model's first parameters
clients_key = partial(stream_key, stream=1)  # folding in the round, then the client, gives its own
hessian_key = partial(stream_key, stream=2)  # the first vector of the Hessian's power iteration
stages_key = partial(stream_key, stream=3)  # stages on the server; folding in the round


def hashed_uniform(seed: int, stream: int, x: Any, y: Any) -> NDArray[np.float64]:
    """Return uniform numbers in (0, 1) of 53 bits, a function of (seed, stream, x, y).

    Args:
        seed: The run's seed, of which 32 bits count.
        stream: Which of its streams, of 32 bits.
        x: Whole numbers, of which 32 bits count, such as the round.
        y: The same, such as the clients' numbers.

    Examples:
        >>> once = hashed_uniform(0, 7, 3, np.arange(1000))
        >>> again = hashed_uniform(0, 7, 3, np.arange(1000))
        >>> bool((once == again).all()), bool(0.45 < once.mean() < 0.55)
        (True, True)
    """
    x, y = np.broadcast_arrays(*(np.atleast_1d(np.asarray(n, np.int64)) for n in (x, y)))
    key = (np.full(1, word & _WORD, np.uint32) for word in (seed, stream))
    high, low = hashed(tuple(key), (x & _WORD).astype(np.uint32), (y & _WORD).astype(np.uint32))
    fraction = (high.astype(np.uint64) << np.uint64(21)) | (low >> np.uint32(11)).astype(np.uint64)
    return (fraction.astype(np.float64) + 0.5) * 2.0**-53


def fold_in(key: jax.Array, number: jax.Array | int) -> jax.Array:
    """Return ``jax.random.fold_in(key, number)``."""
    number = jnp.asarray(number).astype(jnp.uint32)
    words = _traced(jax.random.key_data(key), jnp.uint32(0), number)
    return jax.random.wrap_key_data(jnp.stack(words), impl=IMPLEMENTATION)


def bits(key: jax.Array, count: int) -> jax.Array:
    """Return ``jax.random.bits(key, (count,))``."""
    block = jnp.zeros(count, jnp.uint32), jnp.arange(count, dtype=jnp.uint32)
    low, high = _traced(jax.random.key_data(key), *block)
    return low ^ high


def folded_bits(key: jax.Array, number: jax.Array | int, count: int) -> jax.Array:
    """Return ``bits(fold_in(key, number), count)``, as a kernel of its own.

    Where XLA for CPUs fuses the hash with a division after it, a program takes 0.2 s longer to
    compile.
    """
    if jax.default_backend() != "cpu":
        return bits(fold_in(key, number), count)
    drawn: jax.Array = _folded_bits(jax.random.key_data(key), number, count=count)
    return drawn


@kernel
def _folded_bits(words: jax.Array, number: jax.Array, *, count: int) -> jax.Array:
    return bits(fold_in(jax.random.wrap_key_data(words, impl=IMPLEMENTATION), number), count)


def split(key: jax.Array, count: int) -> list[jax.Array]:
    """Return ``list(jax.random.split(key, count))``, without a program where the key is known."""
    if isinstance(key, jax.core.Tracer):
        return list(jax.random.split(key, count))
    block = np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32)
    words = np.stack(hashed(_words(key), *block), axis=-1)
    return [jax.random.wrap_key_data(jax.device_put(pair), impl=IMPLEMENTATION) for pair in words]


def centred_uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array | NDArray[np.float32]:
    """Return ``jax.random.uniform(key, shape, minval=-1)``, by NumPy where the key is known.

    It has the same bits, and there is nothing to compile: a second of every start, on LeNet-5.
    """
    if isinstance(key, jax.core.Tracer):
        return jax.random.uniform(key, shape, minval=-1)
    count = math.prod(shape)
    parts = [
        _centred(_words(key), np.arange(first, min(first + CHUNK, count), dtype=np.uint32))
        for first in range(0, count, CHUNK)
    ]
    return np.concatenate(parts).reshape(shape) if parts else np.zeros(shape, np.float32)


def _centred(words: NDArray[np.uint32], numbers: NDArray[np.uint32]) -> NDArray[np.float32]:
    low, high = hashed(words, np.zeros_like(numbers), numbers)
    # The upper 23 bits as the fraction of a float in [1, 2).
    drawn = (((low ^ high) >> 9) | np.uint32(0x3F800000)).view(np.float32)
    return (drawn - np.float32(1)) * np.float32(2) - np.float32(1)


def _words(key: jax.Array) -> NDArray[np.uint32]:
    return np.asarray(jax.random.key_data(key))[:, None]


# Traced once for all programs that use it, and not written out anew at every place; the compiler
# puts it in line all the same.
_traced = jax.jit(hashed)


def is_key(value: Any) -> bool:
    """Return whether an array, or what stands for one, is of random keys.

    Examples:
        >>> is_key(jax.random.key(0)), is_key(jnp.zeros(2))
        (True, False)
    """
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
