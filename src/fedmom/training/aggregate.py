"""The replies of a round, summed as they come, and the server's step on their aggregate."""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedmom.algorithms.base import Rule, Server, Stage, unchanged
from fedmom.core.types import Params
from fedmom.models.variables import Variables, on_trained, trained_of
from fedmom.runtimes.base import Block
from fedmom.training.admission import Admitted, culprit, finite_rows, norms_of

SMALL = 2**16  # numbers of a leaf that is checked together with others
AT_ONCE = 8  # rows summed in one compiled call: a large cohort takes no more memory than this


class Total(NamedTuple):
    """A running sum: Σ a_k Δ_k and Σ a_k loss_k."""

    update: Params
    loss: jax.Array


class Rows(NamedTuple):
    """Blocks that are not in the sum yet: updates, losses and weights of each."""

    updates: tuple[Params, ...] = ()
    losses: tuple[Any, ...] = ()
    weights: tuple[NDArray[np.float32], ...] = ()


class Programs(NamedTuple):
    """Compiled: ``add(total, rows) -> total`` and the server's ``step``."""

    add: Callable[[Total | None, Rows], Total]
    step: Callable[..., tuple[Params, Any, jax.Array]]


class _Counted(NamedTuple):
    """What is remembered of a block once its updates are summed."""

    clients: NDArray[np.int64]
    members: NDArray[np.int64]
    weights: NDArray[np.float64]  # of the rows; 0 where a row was rejected
    factor: float  # for staleness
    numbers: tuple[Any, Any]  # losses and norms


class Aggregate:
    """Adds up the replies of one round.

    They are added in the order they come, several in one compiled call. How many rows a call has,
    in which blocks, is part of its compiled shape, so it is the same in all rounds with the usual
    replies. In other rounds rows that weigh nothing stand in for single replies that are missing,
    and what does not fit then is added block by block.

    Args:
        rule: How replies are combined.
        programs: The compiled sum and step.
        rows: How many replies a round usually has.
        zero: An empty sum.
    """

    def __init__(self, rule: Rule, programs: Programs, rows: int, zero: Total) -> None:
        self._rule, self._programs, self._usual = rule, programs, rows
        self._group = group_size(rows) if rule.each is None else rows
        self._zero = zero
        self._total: Total | None = None
        self._rows = Rows()
        self._waiting = 0
        self._counted: list[_Counted] = []

    @property
    def replies(self) -> int:
        """How many clients count."""
        return sum(int(c.members[c.weights > 0].sum()) for c in self._counted)

    def add(self, block: Block, admitted: Admitted) -> None:
        """Take a block, as far as it was admitted."""
        if self._rule.each is None and self._waiting >= self._group:
            self._total = self._programs.add(self._total, self._rows)
            self._rows, self._waiting = Rows(), 0
        members, keep, factor = admitted
        weights = np.asarray(self._rule.weigh(block.samples), np.float64)
        if block.members is not None:
            weights = np.add.reduceat(weights, np.cumsum(members) - members)
        weights = weights * keep
        update, loss = block.update, block.metrics["loss"]
        numbers = (loss, norms_of(block))
        if not keep.all():  # what is left out may be anything, and 0 times NaN is NaN
            update, loss = _zeroed((update, loss), keep)
        self._counted.append(_Counted(block.clients, members, weights, factor, numbers))
        self._take(update, loss, (weights * factor).astype(np.float32))

    def step(self, params: Params, state: Any, population: int, key: Any) -> Any:
        """Let the server step on the aggregate; returns its new state, and the round's numbers."""
        while self._single and 0 < self._waiting < self._group:
            self._take(self._rows.updates[-1], self._rows.losses[-1], np.zeros(1, np.float32))
        if sum(len(c.weights) for c in self._counted) != self._usual and self._rows.updates:
            self._fit()
        total = self._total if self._rows.updates else self._total or self._zero
        scale = self._rule.scale(sum(c.weights.sum() for c in self._counted), population)
        replies = None if key is None else np.float32(self.replies)
        weight = np.float32(self._weight()) if isinstance(params, Variables) else None
        return self._programs.step(params, state, total, self._rows, scale, key, replies, weight)

    def not_finite(self) -> str | None:
        """Return who sent a reply that is not finite, if there is one."""
        for counted in self._counted:
            bad = ~finite_rows(*counted.numbers)
            if bad.any():
                first = int(np.argmax(bad))
                place = int(counted.members[:first].sum())
                return culprit(int(counted.clients[place]), int(counted.members[first]))
        return None

    def mean_loss(self, weighted: float) -> float | None:
        """Return the mean local loss, given the sum; None without replies."""
        weight = self._weight()
        return weighted / weight if weight else None

    def _weight(self) -> float:
        return float(sum(c.factor * c.weights.sum() for c in self._counted))

    @property
    def _single(self) -> bool:
        return all(len(w) == 1 for w in self._rows.weights)

    def _fit(self) -> None:
        """Bring the last rows of an unusual round into a form that is compiled once."""
        if self._rule.each is not None:
            if not (self._single and self._waiting == self._group):
                self._rows = _stacked(self._rows, -self._waiting % self._group)
        elif self._single:
            # In the usual round they are added to a sum, too, unless they are all there is.
            self._total = self._total or (self._zero if self._usual > self._group else None)
        else:
            for one in zip(*self._rows, strict=True):
                block = Rows(*((part,) for part in one))
                self._total = self._programs.add(self._total or self._zero, block)
            self._rows, self._waiting = Rows(), 0

    def _take(self, update: Params, loss: Any, weights: NDArray[np.float32]) -> None:
        new = ((update,), (loss,), (weights,))
        self._rows = Rows(*(old + more for old, more in zip(self._rows, new, strict=True)))
        self._waiting += len(weights)


def group_size(rows: int) -> int:
    """Return the rows of one call, for so many in a round: at most AT_ONCE, evenly dealt."""
    return math.ceil(rows / math.ceil(rows / AT_ONCE))


def empty(form: Params) -> Total:
    """Return an empty sum of updates in this form."""
    device = jax.devices()[0]
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form)
    return Total(*jax.device_put((zeros, np.zeros((), np.float32)), device))


@lru_cache(maxsize=32)  # runs of one process share them
def compile_programs(server: Server, rule: Rule, stages: tuple[Stage, ...]) -> Programs:
    """Compile the sum of replies, and the step: aggregate, stages' ``after``, server."""
    decodes = [stage.decode for stage in reversed(stages) if stage.decode is not unchanged]
    afters = [stage.after for stage in reversed(stages) if stage.after is not unchanged]

    def summed(total: Total | None, rows: Rows) -> Total:
        for update, loss, weights in zip(*_decoded(rows, decodes), strict=True):
            total = _added(total, update, loss, weights)
        assert total is not None
        return total

    @jax.jit
    def step(
        params: Params,
        state: Any,
        total: Total | None,
        rows: Rows,
        scale: float,
        key: Any,
        replies: jax.Array | None,
        weight: jax.Array | None,
    ) -> tuple[Params, Any, jax.Array]:
        if rule.each is not None and rows.updates:
            whole = _combined(rule.each, _decoded(rows, decodes))
            aggregate = whole.update
        else:  # without replies the sum is empty: w^k = w for all
            whole = summed(total, rows)
            aggregate = jax.tree.map(lambda d: d * scale, whole.update)
        if weight is not None:  # of a model with state
            divisor = 1.0 if rule.each is not None else weight
            mean = _mean_state(whole.update.state, divisor)
            aggregate = aggregate._replace(state=_where(weight > 0, mean, params.state))
        for place, after in enumerate(afters):
            own = jax.random.fold_in(key, place)
            aggregate = on_trained(lambda a: after(a, own, replies), aggregate)  # noqa: B023
        params, state = server.step(aggregate, state, params)
        numbers = [whole.loss, optax.tree.norm(trained_of(aggregate)), _usable(params, state)]
        return params, state, jnp.stack([jnp.asarray(n, jnp.float32) for n in numbers])

    return Programs(jax.jit(summed), step)


def _decoded(rows: Rows, decodes: list[Callable[[Params], Params]]) -> Rows:
    """Undo what stages did to each update, the last one first."""
    for decode in decodes:
        decoded = (on_trained(jax.vmap(decode), update) for update in rows.updates)
        rows = rows._replace(updates=tuple(decoded))
    return rows


def _mean_state(total: Any, weight: Any) -> Any:
    """Return the mean of the replies' states, whatever the updates are scaled by.

    It is a sum of terms that have their sign, so a variance is never negative.
    """
    return jax.tree.map(lambda t: t / jnp.where(weight > 0, weight, 1), total)


def _where(condition: Any, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _combined(each: Callable[[Params, jax.Array], Params], rows: Rows) -> Total:
    """Combine all replies at once, with a rule that needs each of them."""
    weights = jnp.concatenate(rows.weights)
    stacked = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows.updates)
    losses = jnp.concatenate([jnp.asarray(loss) for loss in rows.losses])
    return Total(each(stacked, weights > 0), jnp.dot(weights, losses))


def _added(total: Total | None, update: Params, loss: Any, weights: Any) -> Total:
    """Add the rows of a block, one after another."""
    for i in range(len(weights)):
        row = jax.tree.map(lambda d: d[i] * weights[i], Total(update, jnp.asarray(loss)))  # noqa: B023
        total = row if total is None else jax.tree.map(jnp.add, total, row)
    assert total is not None
    return total


@partial(jax.jit, static_argnums=1)
def _stacked(rows: Rows, more: int) -> Rows:
    """Return rows as one block, with so many more that weigh nothing."""

    def joined(*leaves: Any) -> jax.Array:
        whole = jnp.concatenate([jnp.asarray(leaf) for leaf in leaves])
        return jnp.concatenate([whole, jnp.zeros((more, *whole.shape[1:]), whole.dtype)])

    whole = (jax.tree.map(joined, *parts) for parts in rows)
    return Rows(*((each,) for each in whole))


@jax.jit
def _zeroed(rows: Any, keep: jax.Array) -> Any:
    """Return stacked rows with zeros where they do not count."""

    def zeroed(leaf: Any) -> jax.Array:
        return jnp.where(keep.reshape((-1,) + (1,) * (leaf.ndim - 1)), leaf, 0)

    return jax.tree.map(zeroed, rows)


def _usable(params: Params, state: Any) -> jax.Array:
    """Tell whether all floats of the state are finite, and the squares of those of the model.

    A model whose squares are not has left the numbers, too: what clients make of it next is not
    finite, and they would be blamed for the server's step.
    """
    squares = [x * x for x in _joined(_floats(params))]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in squares + _joined(_floats(state))]))


def _joined(leaves: list[jax.Array]) -> list[jax.Array]:
    """Return the leaves with the small ones of each dtype in one: fewer kernels to compile."""
    small: dict[Any, list[jax.Array]] = {}
    for leaf in leaves:
        if leaf.size < SMALL:
            small.setdefault(leaf.dtype, []).append(jnp.ravel(leaf))
    large = [leaf for leaf in leaves if leaf.size >= SMALL]
    return large + [jnp.concatenate(parts) for parts in small.values()]


def _floats(tree: Any) -> list[jax.Array]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
