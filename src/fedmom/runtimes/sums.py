"""The replies of a round, put together as they come: a running sum, or all of them as rows."""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.core.types import Params
from fedmom.runtimes.base import Block

OWN = ("loss", "norm")  # of a block's metrics: the loop's own
AT_ONCE = 8  # rows summed in one compiled call: a large cohort takes no more memory than this


class Sum(NamedTuple):
    """A running sum: Σ a_k Δ_k and Σ a_k loss_k."""

    update: Params
    loss: jax.Array


class Rows(NamedTuple):
    """Blocks that are not in a sum yet: updates, losses and weights of each."""

    updates: tuple[Params, ...] = ()
    losses: tuple[Any, ...] = ()
    weights: tuple[NDArray[np.float32], ...] = ()

    @property
    def size(self) -> int:
        """How many rows there are."""
        return sum(map(len, self.weights))

    @property
    def single(self) -> bool:
        """Whether each block has one row."""
        return all(len(w) == 1 for w in self.weights)

    def and_one(self, update: Params, loss: Any, weights: NDArray[np.float32]) -> "Rows":
        """Return the rows with another block."""
        return Rows((*self.updates, update), (*self.losses, loss), (*self.weights, weights))

    def padded(self, count: int) -> "Rows":
        """Return blocks of one row with copies of the last, of weight 0, up to a count."""
        rows = self
        while rows.updates and rows.single and rows.size < count:
            rows = rows.and_one(rows.updates[-1], rows.losses[-1], np.zeros(1, np.float32))
        return rows


Add = Callable[[Sum | None, Rows], Sum]
Zero = Callable[[], Sum | None]


class RunningSum:
    """Adds rows up in the order they come, several in one compiled call.

    How many rows a call has, in which blocks, is part of its compiled shape, so it is the same in
    all rounds with the usual replies. In other rounds rows of weight 0 stand in for missing single
    replies, and what does not fit then is added block by block.

    Args:
        add: The compiled sum.
        usual: How many rows there usually are.
        zero: Makes an empty sum, for what is left of an unusual round; None starts a new one.
    """

    def __init__(self, add: Add, usual: int, zero: Zero = lambda: None) -> None:
        self._add, self._usual, self._zero = add, usual, zero
        # At most AT_ONCE, evenly dealt.
        self._group = math.ceil(usual / math.ceil(usual / AT_ONCE))
        self._total: Sum | None = None
        self._rows, self._taken = Rows(), 0

    def take(self, update: Params, loss: Any, weights: NDArray[np.float32]) -> None:
        """Take a block of rows."""
        if self._rows.size >= self._group:
            self._total, self._rows = self._add(self._total, self._rows), Rows()
        self._rows = self._rows.and_one(update, loss, weights)
        self._taken += len(weights)

    def finish(self) -> tuple[Sum | None, Rows]:
        """Return the sum, and the last rows, which are not in it yet."""
        if not self._rows.updates:
            return self._total or self._zero(), self._rows
        rows = self._rows.padded(self._group)
        if self._taken == self._usual:
            return self._total, rows
        if rows.single:
            # In the usual round they are added to a sum, too, unless they are all there is.
            return self._total or (self._zero() if self._usual > self._group else None), rows
        total = self._total
        for one in zip(*rows, strict=True):
            total = self._add(total or self._zero(), Rows(*((part,) for part in one)))
        return total, Rows()


class AllRows:
    """Keeps all rows, for a rule that needs each of them.

    Args:
        usual: How many rows there usually are; other numbers are filled up to a multiple of it.
        zero: Makes what a round without replies has in their place.
    """

    def __init__(self, usual: int, zero: Zero = lambda: None) -> None:
        self._usual, self._zero, self._rows = usual, zero, Rows()

    def take(self, update: Params, loss: Any, weights: NDArray[np.float32]) -> None:
        """Take a block of rows."""
        self._rows = self._rows.and_one(update, loss, weights)

    def finish(self) -> tuple[Sum | None, Rows]:
        """Return nothing, and the rows; an empty sum if there are none."""
        if not self._rows.updates:
            return self._zero(), self._rows
        rows, taken = self._rows.padded(self._usual), self._rows.size
        if taken == self._usual or (rows.single and rows.size == self._usual):
            return None, rows
        return None, _filled_up(rows, -taken % self._usual)


def added(total: Sum | None, rows: Rows) -> Sum | None:
    """Add rows to a sum, one after another; called inside compiled programs."""
    for update, loss, weights in zip(*rows, strict=True):
        for i in range(len(weights)):
            row = jax.tree.map(lambda d: d[i] * weights[i], Sum(update, jnp.asarray(loss)))  # noqa: B023
            total = row if total is None else jax.tree.map(jnp.add, total, row)
    return total


@lru_cache(maxsize=32)
def compiled_add(decode: Callable[[Rows], Rows]) -> Add:
    """Return the compiled sum of rows that are decoded first."""

    @jax.jit
    def add(total: Sum | None, rows: Rows) -> Sum:
        found = added(total, decode(rows))
        assert found is not None
        return found

    return add


def joined(rows: Rows) -> tuple[Params, jax.Array, jax.Array]:
    """Return updates, losses and weights of all rows, stacked; called inside compiled programs."""
    updates = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows.updates)
    losses = jnp.concatenate([jnp.asarray(loss) for loss in rows.losses])
    return updates, losses, jnp.concatenate(rows.weights)


@jax.jit
def zeroed(rows: Any, keep: jax.Array) -> Any:
    """Return stacked rows with zeros where they do not count."""

    def zeroed(leaf: Any) -> jax.Array:
        return jnp.where(keep.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, 0)

    return jax.tree.map(zeroed, rows)


@jax.jit
def norms(rows: Params) -> jax.Array:
    """Return the norm of every row of stacked updates."""

    def squares(leaf: jax.Array) -> jax.Array:
        # The square of an encoded number of 8 bits may not be one itself.
        real = jnp.issubdtype(leaf.dtype, jnp.inexact)
        flat = (leaf if real else leaf.astype(jnp.float32)).reshape(len(leaf), -1)
        return jnp.sum(jnp.square(flat), 1)

    return jnp.sqrt(sum(map(squares, jax.tree.leaves(rows)), jnp.zeros(())))


def norms_of(block: Block) -> Any:
    """Return the norm of every row, as the runtime measured it or measured here."""
    measured = block.metrics.get("norm")
    return norms(block.update) if measured is None else measured


def finite_rows(loss: Any, norm: Any) -> NDArray[np.bool_]:
    """Return which rows have finite losses and norms."""
    return np.isfinite(np.asarray(loss)) & np.isfinite(np.asarray(norm))


@partial(jax.jit, static_argnums=1)
def _filled_up(rows: Rows, more: int) -> Rows:
    """Return rows as one block, with rows of weight 0 behind them."""

    def filled(*leaves: Any) -> jax.Array:
        whole = jnp.concatenate([jnp.asarray(leaf) for leaf in leaves])
        return jnp.concatenate([whole, jnp.zeros((more, *whole.shape[1:]), whole.dtype)])

    whole = (jax.tree.map(filled, *parts) for parts in rows)
    return Rows(*((each,) for each in whole))
