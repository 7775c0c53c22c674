"""Deterministic subsampling of a client's samples."""

import numpy as np
from numpy.typing import NDArray


def thinned(size: int, taken: int, client: int, seed: int) -> NDArray[np.int64]:
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
