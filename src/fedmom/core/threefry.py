"""The hash Threefry-2x32 (Salmon et al. 2011), and JAX's random bits by NumPy, without JAX.

A process that trains without JAX draws the same batches with it as ``fedmom.core.prng`` does.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]  # (2, ...): the two words of one key or of several
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)


def hashed(key: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return the block (x, y) after twenty rounds, with the key added in every four.

    Numbers are 32 bits without a sign, in arrays of NumPy or of JAX.
    """
    a, b = key
    schedule = a, b, a ^ b ^ _PARITY
    x, y = x + a, y + b
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x = x + y
            y = (y << turn | y >> (32 - turn)) ^ x
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def folded(words: Words, numbers: Any) -> Words:
    """Return ``fold_in(key, number)`` for several numbers, as words of shape (2, numbers).

    Examples:
        >>> folded(np.zeros((2, 1), np.uint32), [0, 1]).shape
        (2, 2)
    """
    numbers = np.asarray(numbers, np.uint32).reshape(-1)
    return np.stack(hashed(words.reshape(2, -1), np.zeros_like(numbers), numbers))


def drawn(words: Words, count: int) -> NDArray[np.uint32]:
    """Return ``bits(key, count)`` for every key, as an array of shape (keys, count)."""
    numbers = np.arange(count, dtype=np.uint32)
    low, high = hashed(words.reshape(2, -1, 1), np.zeros_like(numbers), numbers)
    return low ^ high
