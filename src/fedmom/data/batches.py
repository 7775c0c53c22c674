"""Positions of samples -> batches, inside compiled programs; arrays -> JAX without a copy."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.data.federated import Features, Integers

Arrays = dict[str, jax.Array] | dict[str, NDArray[Any]]
Batch = tuple[jax.Array, jax.Array]
Reader = Callable[[Arrays, Any], Batch]


def read_rows(arrays: Arrays, positions: jax.Array) -> Batch:
    """Row i of ``x`` and ``y`` is sample i. Bytes are images and become floats in [0, 1].

    Labels are whole numbers, or floats in regression.
    """
    rows = _looked_up(arrays, positions)
    x = jnp.asarray(arrays["x"])[rows]
    if x.dtype == jnp.uint8:
        x = x.astype(jnp.float32) / 255
    y = jnp.asarray(arrays["y"])[rows]
    return x, y if jnp.issubdtype(y.dtype, jnp.floating) else y.astype(jnp.int32)


def read_windows(arrays: Arrays, positions: jax.Array, length: int) -> Batch:
    """Sample i is the ``length`` symbols from i on; its label is the symbol after them."""
    begin = _looked_up(arrays, positions)
    window = jnp.asarray(arrays["text"])[begin[:, None] + jnp.arange(length + 1)]
    window = window.astype(jnp.int32)
    return window[:, :-1], window[:, -1]


@lru_cache(maxsize=64)  # equal features have one reader, so that runs share compiled programs
def reader(features: Features) -> Reader:
    """Return the function that turns positions into a batch, for data with these features."""
    if features.kind == "text":
        return partial(read_windows, length=features.shape[0])
    return read_rows


def read_at(
    features: Features, arrays: Arrays, positions: Integers
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the inputs and labels of some samples, as NumPy's arrays.

    One compiled call, filled up to a power of two, so that few numbers of samples are compiled.

    Args:
        features: Those of the data.
        arrays: The data, as ``place`` returns it.
        positions: One or more.
    """
    count = len(positions)
    room = 1 << (count - 1).bit_length()
    padded = np.pad(positions, (0, room - count), mode="edge")
    batch = _compiled(reader(features))(arrays, padded)
    x, y = (np.asarray(part)[:count] for part in batch)
    return x, y


@lru_cache(maxsize=64)
def _compiled(read: Reader) -> Reader:
    return jax.jit(read)


def place(arrays: Mapping[str, NDArray[Any]]) -> dict[str, jax.Array]:
    """Hand arrays to JAX: on a CPU without a copy, so a mapped file is read only where used.

    Arrays that are not aligned (``fedmom.data.federated.aligned``) are copied. All are
    committed to their device: the compilation cache tells programs with committed arguments
    from others, so a mix would miss it.
    """
    device = jax.devices()[0]
    return {n: jax.device_put(np.asarray(a), device, may_alias=True) for n, a in arrays.items()}


def _looked_up(arrays: Arrays, positions: jax.Array) -> jax.Array:
    """Go through the table ``at``, where a partition has put samples in an order of its own."""
    return jnp.asarray(arrays["at"])[positions] if "at" in arrays else positions


def thinned(size: int, taken: int, client: int, seed: int) -> Integers:
    """Draw ``taken`` of the places 0 … size - 1 without replacement, sorted.

    The draw depends on the arguments alone: two runs, or two runtimes, thin a client to the
    same samples. The order of samples within a client is not random in most datasets, so evenly
    spaced ones would not do.

    Args:
        size: How many places there are.
        taken: How many to draw; ``size`` gives all of them.
        client: Whose places they are.
        seed: The seed of the draw.

    Examples:
        >>> thinned(4, 4, client=0, seed=0).tolist()
        [0, 1, 2, 3]
        >>> len(thinned(100, 3, client=0, seed=0))
        3
    """
    if taken == size:
        return np.arange(size)
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, client], np.uint64)))
    return np.sort(rng.choice(size, taken, replace=False, shuffle=False))
