"""Local work (the paper's Algorithm 2): what a client does with the model it receives."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedmom.algorithms.base import Client, ClientMetrics
from fedmom.algorithms.local_work import LocalWork
from fedmom.core.errors import FedMomError
from fedmom.core.prng import bits, fold_in, folded_bits
from fedmom.core.types import Params
from fedmom.data.batches import Arrays, Reader
from fedmom.models.base import Model
from fedmom.models.variables import Variables, whole

Carry = tuple[Params, optax.OptState, jax.Array, Any]  # model, solver, sum of losses, state
Change = Callable[[Params, Params], Params]
Descend = Callable[[Carry, jax.Array, jax.Array], Carry]
LossSum = tuple[jax.Array, jax.Array | None]  # and how many terms; None: one per sample
# Rows per product in a full gradient: an LSTM's gradient costs more per sample at 128 than at 32.
CHUNK = 32


class Kept:
    """What a client has of a model with state beside the parameters that a method sees.

    As in PyTorch, it belongs to the client and changes whenever it trains.

    Args:
        variables: The model, ``trained`` left out.
    """

    def __init__(self, variables: Variables) -> None:
        self.variables = variables


class Joint(NamedTuple):
    """What a client trains, where some of it never leaves it."""

    shared: Params
    own: Params


class LocalProblem(NamedTuple):
    """One client's share of the problem, inside its compiled program.

    Args:
        model: The model.
        read: Turns positions of samples into a batch.
        work: The local work.
        arrays: The samples of all clients.
        start: The position of the client's first sample, a traced number like the next three.
        size: n_k.
        steps: H in this round.
        lr: γ in this round.
        capacity: Room for the client's shuffled order.
        kept: Of a model with state, what the client has beside the parameters.
        frozen: The parameters that are not trained, if the model has some.
        client: The client's number, traced.

    Examples:
        Local steps with weight decay, for a ``fedmom.Client``:

        >>> def run(params, state, problem, key):
        ...     def decay(gradient, w):
        ...         return jax.tree.map(lambda g, p: g + 0.01 * p, gradient, w)
        ...     trained, loss = problem.train(params, key, correct=decay)
        ...     return jax.tree.map(jnp.subtract, params, trained), state, {"loss": loss}
        >>> client = Client(run)
    """

    model: Model
    read: Reader
    work: LocalWork
    arrays: Arrays
    start: jax.Array
    size: jax.Array
    steps: jax.Array
    lr: jax.Array
    capacity: int
    kept: Kept | None = None
    frozen: Params | None = None
    client: jax.Array | int = 0

    def train(
        self, params: Params, key: jax.Array, correct: Change | None = None
    ) -> tuple[Params, jax.Array]:
        """Take the round's local steps.

        Args:
            params: Where to start.
            key: The client's key in this round; it draws the batches and the dropout.
            correct: ``correct(gradient, params) -> gradient``, applied at every step.

        Returns:
            The parameters after the last step, and the mean loss over the steps.
        """
        return self.train_from(None, params, key, correct)[:2]

    def train_from(
        self, solver_state: Any, params: Params, key: jax.Array, correct: Change | None = None
    ) -> tuple[Params, jax.Array, Any]:
        """Take the round's local steps with a solver that goes on from an earlier round.

        Args:
            solver_state: The solver's state; None begins anew.
            params: Where to start.
            key: The client's key in this round; it draws the batches and the dropout.
            correct: ``correct(gradient, params) -> gradient``, applied at every step.

        Returns:
            The parameters after the last step, the mean loss over the steps, and the solver's
            state.
        """
        work = self.work
        solver = work.solver(self.lr) if callable(work.solver) else work.solver
        changes = [_prox(work.prox, params)] if work.prox else []
        changes += [] if correct is None else [correct]

        def descend(carry: Carry, rows: jax.Array, h: jax.Array) -> Carry:
            w, solver_state, total, state = carry
            loss, gradient, state = self._gradient(w, state, rows, fold_in(key, h))
            for change in changes:
                gradient = _on_shared(change, gradient, w)
            updates, solver_state = solver.update(gradient, solver_state, w)
            return optax.apply_updates(w, updates), solver_state, total + loss, state

        start, state = self._start(params)
        if isinstance(start, Joint) and solver_state is not None:
            raise FedMomError(
                "A method whose clients keep their solver's state cannot train a model of which"
                ' layers stay on the client. Give the model state="average".'
            )
        solver_state = solver.init(start) if solver_state is None else solver_state
        carry = (start, solver_state, jnp.zeros(()), state)
        batches = _shuffled if work.shuffled else _random
        w, solver_state, total, state = batches(self, descend, carry, key)
        return self._end(w, state), total / self.steps, solver_state

    def _start(self, params: Params) -> tuple[Params, Any]:
        """Return the trained parameters, and the state that training changes."""
        if self.kept is None:
            return params, ()
        if self.work.batch_size is None:
            raise FedMomError(
                "A model with state, such as batch norm's, is trained on batches, but this local"
                " work takes one gradient of the client's whole data. Give a batch-size, and no"
                " fedsgd."
            )
        if self.work.accumulate > 1:
            raise FedMomError(
                f"accumulate {self.work.accumulate} would show a model with state, such as batch"
                " norm's, smaller batches than those that were asked for. Leave it out."
            )
        has = self.kept.variables
        start = params if has.own_trained is None else Joint(params, has.own_trained)
        return start, (has.state, has.own_state)

    def _end(self, w: Params, state: Any) -> Params:
        """Keep the client's part, and return the method's."""
        if self.kept is None:
            return w
        shared, own = w if isinstance(w, Joint) else (w, None)
        self.kept.variables = Variables(None, state[0], own, state[1])
        return shared

    def _gradient(
        self, w: Params, state: Any, rows: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Params, Any]:
        if self.work.batch_size is None:
            parts = (self.size + CHUNK - 1) // CHUNK
            found = self._in_parts(
                w, lambda i: i * CHUNK + jnp.arange(CHUNK), parts, self.size, key
            )
            return *found, state
        if self.work.accumulate > 1:
            parts = rows.reshape(self.work.accumulate, -1)
            samples = jnp.sum(rows < self.size)
            return *self._in_parts(w, parts.__getitem__, len(parts), samples, key), state
        (loss, state), gradient = jax.value_and_grad(self._mean_loss, has_aux=True)(
            w, state, rows, key
        )
        return loss, gradient, state

    def _mean_loss(
        self, w: Params, state: Any, rows: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Any]:
        if self.kept is None:
            return _mean(*self._loss_sum(w, rows, key), jnp.sum(rows < self.size)), state
        assert self.model.train is not None
        shared, own = w if isinstance(w, Joint) else (w, None)
        # Rows of another batch fill the last one of an epoch up, or its statistics would be those
        # of one sample many times.
        x, y = self.read(self.arrays, self.start + rows % self.size)
        params = whole(Variables(shared, state[0], own, state[1]), self.frozen)
        outputs, *state = self.model.train(params, x, fold_in(key, 1))
        return _mean(*self._added(outputs, y, rows), jnp.sum(rows < self.size)), tuple(state)

    def _in_parts(
        self, w: Params, rows: Callable[[Any], jax.Array], parts: Any, samples: Any, key: jax.Array
    ) -> tuple[jax.Array, Params]:
        """Return the mean loss of many samples and its gradient, computed part by part."""

        def part(i: jax.Array) -> Any:
            return jax.value_and_grad(self._loss_sum, has_aux=True)(w, rows(i), fold_in(key, i))

        def add(i: jax.Array, total: Any) -> Any:
            return jax.tree.map(jnp.add, total, part(i))

        form = jax.eval_shape(part, jnp.zeros((), jnp.int32))
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), form)
        (loss, count), gradient = jax.lax.fori_loop(0, parts, add, zero)
        return jax.tree.map(lambda t: _mean(t, count, samples), (loss, gradient))

    def _loss_sum(self, w: Params, rows: jax.Array, key: jax.Array) -> LossSum:
        x, y = self.read(self.arrays, self.start + jnp.minimum(rows, self.size - 1))
        outputs = self.model.apply(whole(w, self.frozen), x, fold_in(key, 1))
        return self._added(outputs, y, rows)

    def _added(self, outputs: jax.Array, y: jax.Array, rows: jax.Array) -> LossSum:
        """Add up the losses of the rows that are real, and their terms."""
        losses, counts = self.model.loss_sums(outputs, y)
        real = rows < self.size
        count = None if counts is None else jnp.sum(jnp.where(real, counts, 0))
        return jnp.sum(jnp.where(real, losses, 0)), count


def _mean(total: jax.Array, count: jax.Array | None, samples: jax.Array) -> jax.Array:
    """Return the mean over terms, 0 of none; or over samples, of which there is one."""
    return total / (samples if count is None else jnp.maximum(count, 1))


def _prox(mu: float, start: Params) -> Change:
    """FedProx: pull back to where the round started."""
    return lambda gradient, w: jax.tree.map(lambda g, p, s: g + mu * (p - s), gradient, w, start)


def _on_shared(change: Change, gradient: Params, w: Params) -> Params:
    """Change the gradient of what the method sees."""
    if isinstance(w, Joint):
        return gradient._replace(shared=change(gradient.shared, w.shared))
    return change(gradient, w)


def _train(
    params: Params, state: Any, problem: LocalProblem, key: jax.Array
) -> tuple[Params, Any, ClientMetrics]:
    w, loss = problem.train(params, key)
    update = jax.tree.map(jnp.subtract, params, w)
    return update, state, {"loss": loss, "norm": optax.tree.norm(update)}


# Every method's client but for those that keep state or send more: w_t -> w_t - w_{t+1}^k.
LOCAL_TRAINING = Client(_train)


def _random(problem: LocalProblem, descend: Descend, carry: Carry, key: jax.Array) -> Carry:
    """Draw every batch with replacement."""
    batch = problem.work.batch_size or 1

    def step(h: jax.Array, carry: Carry) -> Carry:
        # A remainder of 32 bits is uniform up to size / 2^32, and takes one draw.
        drawn = folded_bits(key, h, batch)
        return descend(carry, (drawn % problem.size.astype(jnp.uint32)).astype(jnp.int32), h)

    return jax.lax.fori_loop(0, problem.steps, step, carry)


def _shuffled(problem: LocalProblem, descend: Descend, carry: Carry, key: jax.Array) -> Carry:
    """Go through the data in a new order each epoch; the last batch may be smaller."""
    size, steps, capacity = problem.size, problem.steps, problem.capacity
    batch = problem.work.batch_size or 1
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
            if problem.kept is not None:  # beyond the end, again from the beginning
                rows = jnp.where(places < size, rows, size + order[places % size])
            return descend(carry, rows, e * per_epoch + b)

        return jax.lax.fori_loop(0, jnp.minimum(per_epoch, steps - e * per_epoch), step, carry)

    return jax.lax.fori_loop(0, (steps + per_epoch - 1) // per_epoch, epoch, carry)
