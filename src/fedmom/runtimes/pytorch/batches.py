"""Which samples a client's batches have: those of ``fedmom.algorithms.client``, by NumPy."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.threefry import Words, drawn, folded

CHUNK = 32  # samples in a part of a full gradient
AT_ONCE = 256  # steps whose batches are drawn in one go


class Part(NamedTuple):
    """Samples of one product, by their places among the client's.

    Rows beyond the real ones fill a batch up, for batch norm, and have no loss.
    """

    rows: NDArray[np.int64]
    real: int


class Batches(NamedTuple):
    """How batches are drawn.

    Args:
        size: Samples in one; None takes the client's whole data.
        shuffled: Whether they are shuffled epochs.
        parts: In how many parts the gradient of one is computed.
        filled: Whether the last batch of an epoch is filled up.
    """

    size: int | None
    shuffled: bool
    parts: int
    filled: bool

    def of(self, words: Words, samples: int, steps: int) -> Iterator[list[Part]]:
        """Yield the batch of every step, in its parts.

        Args:
            words: The client's key in the round.
            samples: n_k.
            steps: H.
        """
        if self.size is None:
            every = np.arange(samples)
            cuts = [every[first : first + CHUNK] for first in range(0, samples, CHUNK)]
            yield from [[Part(rows, len(rows)) for rows in cuts]] * steps
            return
        batches = self._shuffled if self.shuffled else self._random
        for rows, real in batches(words, samples, steps):
            each = self.size // self.parts
            starts = range(0, real, each)
            yield [Part(rows[at : at + each], min(each, real - at)) for at in starts]

    def _random(self, words: Words, samples: int, steps: int) -> Iterator[Part]:
        """Draw every batch with replacement."""
        assert self.size is not None
        for first in range(0, steps, AT_ONCE):
            keys = folded(words, np.arange(first, min(first + AT_ONCE, steps)))
            places = drawn(keys, self.size) % np.uint32(samples)
            yield from (Part(rows, self.size) for rows in places.astype(np.int64))

    def _shuffled(self, words: Words, samples: int, steps: int) -> Iterator[Part]:
        """Go through the data in a new order each epoch; the last batch may be smaller."""
        assert self.size is not None
        per_epoch = -(-samples // self.size)
        for step in range(steps):
            epoch, batch = divmod(step, per_epoch)
            if batch == 0:
                ranks = drawn(folded(words, [epoch]), samples)[0] >> np.uint32(1)
                order = np.argsort(ranks, kind="stable")
            first = batch * self.size
            real = min(self.size, samples - first)
            places = np.arange(first, first + (self.size if self.filled else real))
            yield Part(order[places % samples], real)
