"""The local solver (the paper's Algorithm 2): what a client does with the model it receives."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedmom import schedules
from fedmom.data.federated import Arrays, Reader
from fedmom.errors import FedMomError
from fedmom.models.base import Model, Params
from fedmom.threefry import bits, fold_in

Number = float | schedules.Schedule
Solver = Callable[[jax.Array], optax.GradientTransformation]
SOLVERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": partial(optax.sgd, momentum=0.9),
    "rmsprop": optax.rmsprop,
    "adam": optax.adam,
    "adamw": optax.adamw,
}
# Rows per product in a full gradient: an LSTM's gradient costs more per sample at 128 than at 32.
CHUNK = 32


@dataclass(frozen=True)
class LocalWork:
    """What a client does in a round: H steps of a solver on batches of its own data.

    ``steps`` or ``epochs`` says how many (one of them); both, and ``lr``, may be schedules
    over rounds. ``batch_size`` None takes the client's whole data as the batch. ``batches``
    are drawn with replacement ("random", the paper's) or are ``shuffled`` epochs (LEAF's);
    left open, steps are random and epochs are shuffled. ``solver`` is a function of the step
    size, such as ``optax.adam``, or an optax optimizer that has its own. ``prox`` is
    FedProx's μ.
    """

    lr: Number = 0.1
    steps: Number | None = None
    epochs: Number | None = None
    batch_size: int | None = 10
    batches: Literal["random", "shuffled"] | None = None
    solver: Solver | optax.GradientTransformation = optax.sgd
    prox: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense before a round is run."""
        if (self.steps is None) == (self.epochs is None):
            raise FedMomError(
                f"Local work is given in steps or in epochs, one of them; got"
                f" local-steps {self.steps} and local-epochs {self.epochs}."
            )
        for name, value in (("lr", self.lr), ("steps", self.steps), ("epochs", self.epochs)):
            if value is not None and not callable(value) and not 0 < value < math.inf:
                raise FedMomError(f"{name} {value} is not a number greater than 0.")
        if self.batch_size is not None and self.batch_size < 1:
            raise FedMomError(f"batch-size {self.batch_size} is not 1 or more (or all).")
        if self.batches not in (None, "random", "shuffled"):
            raise FedMomError(f"batches {self.batches!r} is neither random nor shuffled.")
        if not 0 <= self.prox < math.inf:
            raise FedMomError(f"prox {self.prox} is not a number of 0 or more.")

    @property
    def shuffled(self) -> bool:
        """Whether batches are shuffled epochs rather than drawn with replacement."""
        if self.batch_size is None:
            return False
        return self.batches == "shuffled" or (self.batches is None and self.epochs is not None)

    def count(self, round_: int, samples: int) -> int:
        """Return H, the local steps of a client with so many samples in a round."""
        if self.steps is not None:
            return max(1, round(schedules.at(self.steps, round_)))
        assert self.epochs is not None
        per_epoch = 1 if self.batch_size is None else math.ceil(samples / self.batch_size)
        return max(1, round(schedules.at(self.epochs, round_) * per_epoch))


def full_gradient(lr: Number) -> LocalWork:
    """FedSGD's clients: one gradient of the whole data."""
    return LocalWork(lr=lr, steps=1, batch_size=None)


def capacity(work: LocalWork, samples: int) -> int:
    """Return the room for a client's shuffled order: a power of two, to compile rarely."""
    return 1 << (samples - 1).bit_length() if work.shuffled else 0


Carry = tuple[Params, optax.OptState, jax.Array]
Descend = Callable[[Carry, jax.Array, jax.Array], Carry]
Update = tuple[Params, jax.Array, jax.Array]


def client_update(model: Model, read: Reader, work: LocalWork) -> Callable[..., Update]:
    """Return what one client does in one round, as a pure function.

    ``update(params, arrays, start, size, key, steps, lr, capacity)`` gives
    ``(w_t - w_{t+1}^k, mean loss over the steps, norm of the first)``.
    """

    def update(
        params: Params,
        arrays: Arrays,
        start: jax.Array,
        size: jax.Array,
        key: jax.Array,
        steps: jax.Array,
        lr: jax.Array,
        capacity: int,
    ) -> Update:
        solver = work.solver(lr) if callable(work.solver) else work.solver
        size = jnp.asarray(size)

        def loss_sum(w: Params, rows: jax.Array, key: jax.Array) -> jax.Array:
            x, y = read(arrays, start + jnp.minimum(rows, size - 1))
            losses = model.loss(model.apply(w, x, fold_in(key, 1)), y)
            return jnp.sum(jnp.where(rows < size, losses, 0))

        def mean_loss(w: Params, rows: jax.Array, key: jax.Array) -> jax.Array:
            return loss_sum(w, rows, key) / jnp.sum(rows < size)

        def descend(carry: Carry, rows: jax.Array, h: jax.Array) -> Carry:
            w, state, total = carry
            step_key = fold_in(key, h)
            if work.batch_size is None:
                loss, gradient = _over_all(loss_sum, w, size, step_key)
            else:
                loss, gradient = jax.value_and_grad(mean_loss)(w, rows, step_key)
            if work.prox:
                pull = jax.tree.map(jnp.subtract, w, params)
                gradient = jax.tree.map(lambda g, d: g + work.prox * d, gradient, pull)
            updates, state = solver.update(gradient, state, w)
            return optax.apply_updates(w, updates), state, total + loss

        batches = _shuffled if work.shuffled else _random
        carry = (params, solver.init(params), jnp.zeros(()))
        w, _, total = batches(descend, carry, key, size, steps, work.batch_size or 1, capacity)
        delta = jax.tree.map(jnp.subtract, params, w)
        return delta, total / steps, optax.tree.norm(delta)

    return update


class Task(NamedTuple):
    """What tells one client's work in a round from another's, as numbers."""

    client: Any
    start: Any
    size: Any
    steps: Any
    round: Any


def compile_client(model: Model, read: Reader, work: LocalWork) -> Callable[..., Update]:
    """Return the compiled ``program(params, arrays, task, key, lr, capacity)`` of a client.

    ``task`` is a Task as an array of 32-bit integers, which reaches a device quicker than its
    numbers one by one; ``key`` is that of all clients, and the client's own is folded from it
    inside. Only ``capacity`` is part of the compiled shape: clients of all sizes, and step
    sizes, share the program, and so do all runs in a process that differ in nothing else.
    """
    return _compiled(model, read, _bare(work), "one")


def compile_few(model: Model, read: Reader, work: LocalWork) -> Callable[..., tuple[Update, ...]]:
    """Return the same for a few clients, one after another in one call, and an update of each."""
    return _compiled(model, read, _bare(work), "few")


def compile_cohort(model: Model, read: Reader, work: LocalWork) -> Callable[..., Update]:
    """Return the same for many clients at once: a task in each row, and updates stacked."""
    return _compiled(model, read, _bare(work), "cohort")


def _bare(work: LocalWork) -> LocalWork:
    """Return the work without the numbers that are handed to the program when it runs."""
    named: Literal["random", "shuffled"] = "shuffled" if work.shuffled else "random"
    return replace(work, lr=1.0, steps=1, epochs=None, batches=named)


@lru_cache(maxsize=16)
def _compiled(
    model: Model, read: Reader, work: LocalWork, clients: Literal["one", "few", "cohort"]
) -> Callable[..., Any]:
    update = client_update(model, read, work)

    def program(
        params: Params,
        arrays: Arrays,
        task: jax.Array,
        key: jax.Array,
        lr: jax.Array,
        capacity: int,
    ) -> Any:
        def one(numbers: jax.Array) -> Update:
            task = Task(*numbers)
            own = fold_in(fold_in(key, task.round), task.client)
            return update(params, arrays, task.start, task.size, own, task.steps, lr, capacity)

        if clients == "one":
            return one(task)
        if clients == "cohort":
            return jax.vmap(one)(task)
        stacked = jax.lax.map(one, task)
        return tuple(jax.tree.map(lambda a: a[i], stacked) for i in range(len(task)))  # noqa: B023

    return jax.jit(program, static_argnames="capacity")


def _random(
    descend: Descend,
    carry: Carry,
    key: jax.Array,
    size: jax.Array,
    steps: jax.Array,
    batch: int,
    _capacity: int,
) -> Carry:
    """Draw every batch with replacement."""

    def step(h: jax.Array, carry: Carry) -> Carry:
        # A remainder of 32 bits is uniform up to size / 2^32, and takes one draw.
        drawn = bits(fold_in(key, h), batch)
        return descend(carry, (drawn % size.astype(jnp.uint32)).astype(jnp.int32), h)

    return jax.lax.fori_loop(0, steps, step, carry)


def _shuffled(
    descend: Descend,
    carry: Carry,
    key: jax.Array,
    size: jax.Array,
    steps: jax.Array,
    batch: int,
    capacity: int,
) -> Carry:
    """Go through the data in a new order each epoch; the last batch may be smaller."""
    per_epoch = (size + batch - 1) // batch

    def epoch(e: jax.Array, carry: Carry) -> Carry:
        # Ranks of random numbers are a uniform order, and the first `size` of them do not
        # depend on the room behind them. Rows beyond `size` rank last and are not real.
        ranks = bits(fold_in(key, e), capacity) >> 1
        beyond = jnp.uint32(0xFFFFFFFF)
        order = jnp.argsort(jnp.where(jnp.arange(capacity) < size, ranks, beyond))

        def step(b: jax.Array, carry: Carry) -> Carry:
            places = b * batch + jnp.arange(batch)
            rows = jnp.where(places < size, order[jnp.minimum(places, capacity - 1)], size)
            return descend(carry, rows, e * per_epoch + b)

        return jax.lax.fori_loop(0, jnp.minimum(per_epoch, steps - e * per_epoch), step, carry)

    return jax.lax.fori_loop(0, (steps + per_epoch - 1) // per_epoch, epoch, carry)


def _over_all(
    loss_sum: Callable[..., jax.Array], w: Params, size: jax.Array, key: jax.Array
) -> tuple[jax.Array, Params]:
    """Return the mean loss and its gradient over the client's whole data, chunk by chunk."""

    def chunk(i: jax.Array, total: tuple[jax.Array, Params]) -> tuple[jax.Array, Params]:
        rows = i * CHUNK + jnp.arange(CHUNK)
        part = jax.value_and_grad(loss_sum)(w, rows, fold_in(key, i))
        return jax.tree.map(jnp.add, total, part)

    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, w))
    total = jax.lax.fori_loop(0, (size + CHUNK - 1) // CHUNK, chunk, zero)
    return jax.tree.map(lambda t: t / size, total)
