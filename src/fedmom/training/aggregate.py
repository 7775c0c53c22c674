"""The server's part of a round: what counts is put together, and the server takes its step.

Its programs compile while the clients compile theirs, for both take most of a first round. What
the step is given follows from the cohort, where a runtime knows the sizes of its blocks.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms.base import Round, Rule, Server, Stage, reported, unchanged
from fedmom.algorithms.forms import Form, check_kept
from fedmom.algorithms.hostile import Collusion
from fedmom.algorithms.matrices import TINY
from fedmom.algorithms.workload import Method, stage_names
from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.runtimes import sums
from fedmom.runtimes.base import Block
from fedmom.runtimes.sums import OWN, AllRows, Rows, RunningSum, Sum, Zero
from fedmom.training.admission import Admitted, culprit

SMALL = 2**16  # numbers of a leaf that is checked together with others


class Carried(NamedTuple):
    """What the server carries from round to round: the model, and the parts' states."""

    params: Params
    server: Any
    stages: tuple[Any, ...]
    rule: Any


class Stepped(NamedTuple):
    """What the step returns: the new state, and what is recorded of the round."""

    carried: Carried
    numbers: jax.Array  # Σ a_k loss_k, the aggregate's norm, and whether the new state is usable
    metrics: dict[str, jax.Array]


class Programs(NamedTuple):
    """Compiled: ``add(sum, rows) -> sum`` and the server's ``step``."""

    add: sums.Add
    step: Callable[[Carried, Sum | None, Rows, Round, Any], Stepped]


class _Counted(NamedTuple):
    """What is remembered of a block once its updates are taken."""

    block: Block  # without them, unless they are held
    members: NDArray[np.int64]
    weights: NDArray[np.float64]  # of the rows; 0 where a row was rejected
    factor: float  # for staleness
    norms: Any
    keep: NDArray[np.bool_]


class Collected:
    """The replies of one round that count.

    Args:
        method: How replies are combined.
        programs: The compiled sum and step.
        usual: How many replies a round usually has.
        zero: Makes an empty sum.
        hold: Keep all updates until the step is done: some may turn out not to count.
    """

    def __init__(
        self, method: Method, programs: Programs, usual: int, zero: Zero, *, hold: bool = False
    ) -> None:
        self._rule, self._step, self.holds = method.rule, programs.step, hold
        by_rows = method.needs_rows

        def parts() -> AllRows | RunningSum:
            return AllRows(usual, zero) if by_rows else RunningSum(programs.add, usual, zero)

        self._new_parts = parts
        self._parts = parts()
        self._names_rows = by_rows and (method.collusion or any(s.mix for s in method.stages))
        self._counted: list[_Counted] = []

    @property
    def replies(self) -> int:
        """How many clients count."""
        return sum(int(c.members[c.weights > 0].sum()) for c in self._counted)

    @property
    def weight(self) -> float:
        """Σ a_k, stale replies counting less."""
        return float(sum(c.factor * c.weights.sum() for c in self._counted))

    def add(self, block: Block, admitted: Admitted) -> None:
        """Take a block, as far as it was admitted."""
        members, keep, factor = admitted
        weights = np.asarray(self._rule.weigh(block.samples), np.float64)
        if block.members is not None:
            weights = np.add.reduceat(weights, np.cumsum(members) - members)
        weights = weights * keep
        kept = block if self.holds else block._replace(update=None)
        counted = _Counted(kept, members, weights, factor, sums.norms_of(block), keep)
        self._counted.append(counted)
        if not self.holds:
            self._take(counted, block.update)

    def _take(self, counted: _Counted, update: Params) -> None:
        loss, keep = counted.block.metrics["loss"], counted.keep
        if not keep.all():  # what is left out may be anything, and 0 times NaN is NaN
            update, loss = sums.zeroed((update, loss), keep)
        self._parts.take(update, loss, (counted.weights * counted.factor).astype(np.float32))

    @property
    def unread_norms(self) -> list[Any]:
        """The norms of the rows of every block, which may still be being computed."""
        return [counted.norms for counted in self._counted]

    @property
    def norms(self) -> list[NDArray[np.float64]]:
        """The norms of the rows of every block; NaN where a row does not count."""
        return [np.where(c.keep, np.asarray(c.norms, float), np.nan) for c in self._counted]

    def leave_out(self, bad: Sequence[NDArray[np.bool_]]) -> list[tuple[list[int], float]]:
        """Let rows of every block not count any more; return their clients and norms.

        Only held updates can be left out.
        """
        found, norms = [], self.norms
        for place, (counted, rows) in enumerate(zip(self._counted, bad, strict=True)):
            ends = np.cumsum(counted.members)
            for row in np.flatnonzero(rows):
                clients = counted.block.clients[ends[row] - counted.members[row] : ends[row]]
                found.append((clients.tolist(), float(norms[place][row])))
            self._counted[place] = counted._replace(
                keep=counted.keep & ~rows, weights=np.where(rows, 0.0, counted.weights)
            )
        return found

    def step(self, carried: Carried, round_: int, population: int, key: Any) -> Stepped:
        """Let the server step on the aggregate."""
        if self.holds:
            self._parts = self._new_parts()
            for counted in self._counted:
                self._take(counted, counted.block.update)
        total, rows = self._parts.finish()
        # NumPy's number would widen the aggregate, and with it the server's state, to 64 bits.
        scale = float(self._rule.scale(sum(c.weights.sum() for c in self._counted), population))
        numbers: Any = (round_, key, float(self.replies), self.weight, scale)
        return self._step(carried, total, rows, Round(*numbers), self._clients(rows))

    def _clients(self, rows: Rows) -> Any:
        """Return the client of each row, where a part of the method asks for it."""
        if not self._names_rows:
            return ()
        firsts = [c.block.clients[np.cumsum(c.members) - c.members] for c in self._counted]
        numbers = np.full(rows.size, -1, np.int32)
        known = np.concatenate([np.zeros(0, int), *firsts])
        numbers[: len(known)] = known
        return numbers

    def not_finite(self) -> str | None:
        """Return who sent a reply that is not finite, if there is one."""
        for counted in self._counted:
            bad = ~sums.finite_rows(counted.block.metrics["loss"], counted.norms)
            if bad.any():
                first = int(np.argmax(bad))
                place = int(counted.members[:first].sum())
                return culprit(int(counted.block.clients[place]), int(counted.members[first]))
        return None

    def client_metrics(self, method: Method) -> dict[str, float]:
        """Return what clients and the stages on them report: means, weighted as updates are."""
        ranges, stages = method.client.ranges, stage_names(method.stages)
        all_metrics = [(c.block.metrics, c.weights * c.factor) for c in self._counted]
        found: dict[str, float] = {}
        for name in dict.fromkeys(n for metrics, _ in all_metrics for n in metrics if n not in OWN):
            having = [(m[name], w) for m, w in all_metrics if name in m]
            values, weights = (np.concatenate(each) for each in zip(*having, strict=True))
            values = values.astype(np.float64)
            values, weights = values[weights > 0], weights[weights > 0]
            if not len(values):
                continue
            key = name if name.partition("/")[0] in stages else f"client/{name}"
            found[key] = float(weights @ values / weights.sum())
            if name in ranges:
                found |= {f"{key}/min": float(values.min()), f"{key}/max": float(values.max())}
        return found


def empty(form: Params) -> Sum:
    """Return an empty sum of updates in this form."""
    device = jax.devices()[0]
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form)
    return Sum(*jax.device_put((zeros, np.zeros((), np.float32)), device))


def compile_programs(method: Method, forms: tuple[Form, ...]) -> Programs:
    """Compile the sum of replies, and the step: aggregate, stages' ``after``, server.

    Args:
        method: The method.
        forms: The form of an update before the stages, and after each of them.
    """
    return _compiled(_Parts(method.server, method.rule, method.stages, method.collusion, forms))


class _Parts(NamedTuple):
    """What the compiled programs are made of; runs with equal parts share them."""

    server: Server
    rule: Rule
    stages: tuple[Stage, ...]
    collusion: Collusion | None
    forms: tuple[Form, ...]

    @property
    def looks(self) -> bool:
        """Whether something is done to each reply before replies are added up."""
        return any(stage.decode or stage.enforce for stage in self.stages)

    def decode(self, rows: Rows) -> Rows:
        """Undo what stages did to each update, the last one first, and enforce what they promise.

        Behind a stage that encodes and does not decode, nothing can be enforced.
        """
        readable = True
        for stage, form in reversed(list(zip(self.stages, self.forms, strict=False))):
            if stage.decode is not None:
                one = jax.vmap(partial(_decoded, stage.decode, form.tree))
                rows = rows._replace(updates=tuple(map(one, rows.updates)))
            if stage.enforce is not None and readable:
                enforced = map(jax.vmap(stage.enforce), rows.updates)
                rows = rows._replace(updates=tuple(enforced))
            keeps = stage.encode is None or stage.decode is not None or stage.enforce is not None
            readable = readable and keeps
        return rows

    def mixed(self, rows: Rows, clients: Any, round_: Round) -> Rows:
        """Let a simulated attack replace rows, and stages mix them, the first one first."""
        mixes = [(i, stage.mix) for i, stage in enumerate(self.stages) if stage.mix is not None]
        if not rows.updates or not (mixes or self.collusion):
            return rows
        updates, losses, weights = sums.joined(rows)
        if self.collusion is not None:
            updates = self.collusion(updates, weights, clients)
        for place, mix in mixes:
            own = round_._replace(key=_stage_key(round_, place))
            before = jnp.dot(losses, weights)
            updates, weights = mix(updates, weights, clients, own)
            # Of a mixed row, the loss is the mean of all.
            mean = before / jnp.maximum(jnp.sum(weights), TINY)
            losses = jnp.where(weights > 0, mean, 0)
        return Rows((updates,), (losses,), (weights,))  # type: ignore[arg-type]

    def combine(self, total: Sum | None, rows: Rows, scale: Any, state: Any) -> Any:
        """Return the aggregate, Σ a_k loss_k, the rule's state and its metrics."""
        if self.rule.each is None or not rows.updates:  # without replies the sum is empty
            whole = sums.added(total, rows)
            assert whole is not None
            return jax.tree.map(lambda d: d * scale, whole.update), whole.loss, state, {}
        updates, losses, weights = sums.joined(rows)
        returned = self.rule.each(updates, weights, state)
        aggregate, state, metrics = reported(returned, f"each of the rule {self.rule.name}")
        return aggregate, jnp.dot(weights, losses), state, _named(self.rule.name, metrics)

    def pass_stages(self, aggregate: Params, states: Any, round_: Round) -> Any:
        """Return the aggregate after all stages, the last one first, their states and metrics."""
        names, new = stage_names(self.stages), list(states)
        metrics: dict[str, Any] = {}
        for place in reversed(range(len(names))):
            after = self.stages[place].after
            if after is not None:
                own = round_._replace(key=_stage_key(round_, place))
                returned = after(aggregate, states[place], own)
                aggregate, new[place], found = reported(returned, f"after of {names[place]}")
                metrics |= _named(names[place], found)
        if self.stages or self.rule.each is not None:
            _check_form(aggregate, self.forms[0])
        return _as_updates(aggregate, self.forms[0]), tuple(new), metrics


@lru_cache(maxsize=32)
def _compiled(parts: _Parts) -> Programs:
    @jax.jit
    def step(
        carried: Carried, total: Sum | None, rows: Rows, round_: Round, clients: Any
    ) -> Stepped:
        params, server, states, rule = carried
        rows = parts.mixed(parts.decode(rows), clients, round_)
        combined = parts.combine(total, rows, round_.scale, rule)
        aggregate, loss, rule, of_rule = combined
        aggregate, states, of_stages = parts.pass_stages(aggregate, states, round_)
        stepped = parts.server.step(aggregate, server, params)
        params, server, of_server = reported(stepped, "the server's step")
        rest = (server, states, rule)
        numbers = [loss, parts.server.norm(aggregate), _usable(params, rest)]
        stacked = jnp.stack([jnp.asarray(n, jnp.float32) for n in numbers])
        metrics = of_rule | of_stages | _named("server", of_server)
        after = Carried(params, *rest)
        check_kept(carried._asdict(), after._asdict(), "A step of the server")
        return Stepped(after, stacked, metrics)

    return Programs(sums.compiled_add(parts.decode if parts.looks else unchanged), step)


def _stage_key(round_: Round, place: int) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(round_.key, round_.number), place)


def _decoded(decode: Callable[[Params, Params], Params], form: Params, encoded: Params) -> Params:
    return decode(encoded, form)


def _check_form(aggregate: Params, form: Form) -> None:
    """Refuse an aggregate that is not like an update: it might still fit, by broadcasting."""
    found = Form.of(aggregate)
    shapes = [[shape for shape, _ in each.leaves] for each in (found, form)]
    if found.structure != form.structure or shapes[0] != shapes[1]:
        raise FedMomError(
            f"The rule and the stages turn updates of {form.structure} with shapes {shapes[1]} into"
            f" an aggregate of {found.structure} with shapes {shapes[0]}. decode, or after where"
            " there is no decode, must undo what encode does."
        )


def _as_updates(aggregate: Params, form: Form) -> Params:
    """Return an aggregate in the types of an update: a weighted sum of bfloat16 has 32 bits."""
    leaves, structure = jax.tree.flatten(aggregate)
    kinds = [dtype for _, dtype in form.leaves]
    typed = [
        leaf.astype(kind) if jnp.issubdtype(kind, jnp.inexact) else leaf
        for leaf, kind in zip(leaves, kinds, strict=True)
    ]
    return jax.tree.unflatten(structure, typed)


def _named(part: str, found: Any) -> dict[str, Any]:
    return {f"{part}/{name}": value for name, value in found.items()}


def _usable(params: Params, states: Any) -> jax.Array:
    """Return whether all floats of the states are finite, and the squares of the parameters.

    Parameters whose squares overflow count as diverged; otherwise clients would be blamed next
    round.
    """
    squares = [x * x for x in _joined(_floats(params))]
    return jnp.all(
        jnp.stack([jnp.all(jnp.isfinite(x)) for x in squares + _joined(_floats(states))])
    )


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


def precompile(
    collected: Collected, form: Params, sizes: Sequence[int], *arguments: Any
) -> threading.Thread:
    """Compile a round's sums and its step on another thread; wait for it with ``join``.

    Args:
        collected: An empty round, with ``compiling`` programs.
        form: What one update looks like.
        sizes: How many replies each block will have.
        *arguments: Those of ``Collected.step``.
    """

    def compile_all() -> None:
        with contextlib.suppress(Exception):  # the round itself says what is wrong
            for size in sizes:
                everything = Admitted(np.ones(size, np.int64), np.ones(size, bool), 1.0)
                collected.add(_block(form, size), everything)
            collected.step(*arguments)

    thread = threading.Thread(target=compile_all, name="compile", daemon=True)
    thread.start()
    return thread


def compiling(programs: Any) -> Programs:
    """Return programs that are compiled where they would run."""

    def compile_add(total: Sum | None, rows: Rows) -> Sum:
        lowered = programs.add.lower(total, rows)
        lowered.compile()
        return jax.tree.map(_placed, lowered.out_info)

    return Programs(compile_add, lambda *arguments: programs.step.lower(*arguments).compile())


def _block(form: Params, size: int) -> Block:
    """Return replies of which only the form is there."""
    update = jax.tree.map(lambda leaf: _placed(leaf, size), form)
    numbers = _placed(np.zeros((), np.float32), size)
    metrics = {"loss": numbers, "norm": numbers}
    return Block(np.arange(size), update, np.ones(size, int), metrics, version=0)


def _placed(leaf: Any, *rows: int) -> jax.ShapeDtypeStruct:
    """Return the form of rows on the device that computes: elsewhere is another program."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct((*rows, *leaf.shape), leaf.dtype, sharding=place)  # type: ignore[no-untyped-call]
