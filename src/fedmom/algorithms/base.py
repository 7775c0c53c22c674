"""What a federated method is made of: a client, stages, a rule and a server, all pure functions.

One round reads: the server's ``broadcast`` goes to the cohort; each client's ``run`` answers with
an update, which passes through the stages' ``encode``; the rule combines the replies, each
``decode``d, into an aggregate; the stages' ``after`` see it; the server takes its ``step``.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.types import Params

ClientMetrics = dict[str, jax.Array]  # numbers of one client


def no_state(*_: Any) -> tuple[()]:
    """Return the state of what has none."""
    return ()


def unchanged(params: Params, *_: Any) -> Params:
    """Return the first argument."""
    return params


class Client(NamedTuple):
    """What a client does with what it receives.

    Args:
        run: ``run(broadcast, state, problem, key) -> update, state, metrics``. ``problem`` is a
            ``fedmom.LocalProblem``: the client's data, and the round's steps and step size.
            ``metrics`` holds numbers, among them ``loss``, the mean local loss.
        init: ``init(broadcast) -> state`` of a client that is asked for the first time. The
            runtime keeps it and saves it with the checkpoint; ``()`` if there is none.
        form: ``form(broadcast) -> tree`` with the update's shapes, which replies are checked
            against; by default an update looks like the broadcast.
        personal: ``personal(params, state) -> params`` that the client is evaluated with, where
            clients have models of their own.

    Examples:
        >>> def run(params, state, problem, key):
        ...     trained, loss = problem.train(params, key)
        ...     return jax.tree.map(jnp.subtract, params, trained), state, {"loss": loss}
        >>> client = Client(run)
        >>> client.init(None)  # it keeps no state
        ()
    """

    run: Callable[[Any, Any, Any, jax.Array], tuple[Params, Any, ClientMetrics]]
    init: Callable[[Any], Any] = no_state
    form: Callable[[Params], Params] = unchanged
    personal: Callable[[Params, Any], Params] | None = None


class Server(NamedTuple):
    """What the server keeps, sends and does with the aggregate.

    Args:
        init: ``init(params) -> state``.
        step: ``step(aggregate, state, params) -> params, state``.
        broadcast: ``broadcast(params, state)``: what clients receive.
        model: ``model(params, state)``: what is evaluated and kept.

    Examples:
        >>> average = Server(init=lambda w: (), step=lambda g, state, w: (w - g, state))
        >>> average.step(1.0, (), 3.0)
        (2.0, ())
    """

    init: Callable[[Params], Any]
    step: Callable[[Params, Any, Params], tuple[Params, Any]]
    broadcast: Callable[[Params, Any], Any] = unchanged
    model: Callable[[Params, Any], Params] = unchanged


class Stage(NamedTuple):
    """A change to updates on their way: clipping, compression, noise.

    Args:
        encode: ``encode(update, state, key) -> update, state``, on the client.
        client_init: ``client_init(update) -> state`` of the stage on one client.
        decode: ``decode(update) -> update``, on the server, for each reply.
        after: ``after(aggregate, key, replies) -> aggregate``, on the server.

    Examples:
        >>> half = Stage(encode=lambda update, state, key: (update / 2, state))
        >>> half.encode(4.0, (), None)
        (2.0, ())
    """

    encode: Callable[[Params, Any, jax.Array], tuple[Params, Any]]
    client_init: Callable[[Params], Any] = no_state
    decode: Callable[[Params], Params] = unchanged
    after: Callable[[Params, jax.Array, jax.Array], Params] = unchanged


class Rule(NamedTuple):
    """How replies become one aggregate.

    Args:
        weigh: ``weigh(samples) -> weights a_k`` of clients with so many samples.
        scale: ``scale(Σ a_k, n)`` with the population's samples n. Without ``each``, the
            aggregate is ``scale * Σ a_k Δ_k``, which can be summed as replies come, anywhere.
        each: ``each(rows, counted) -> aggregate`` where all replies are needed at once, as for a
            median. ``rows`` are stacked; row i counts if ``counted[i]``.

    Examples:
        >>> rule = Rule(weigh=np.sqrt, scale=lambda weight, n: 1 / weight)
        >>> rule.weigh(np.array([4, 9])).tolist(), rule.needs
        ([2.0, 3.0], 'sum')
    """

    weigh: Callable[[NDArray[np.int64]], NDArray[np.float64]]
    scale: Callable[[float, int], float]
    each: Callable[[Params, jax.Array], Params] | None = None

    @property
    def needs(self) -> Literal["sum", "each"]:
        """Whether a running sum is enough, or every reply is needed."""
        return "sum" if self.each is None else "each"


class Algorithm(NamedTuple):
    """A federated method.

    Args:
        server: A ``Server``, or any optax optimizer, which is fed the aggregate as a gradient.
        client: What clients do; by default H steps of their solver.
        rule: How replies are combined; by default the paper's mean with population weights.
        stages: What happens to updates on their way, in the client's order.
        full_gradient: Clients take one step on their whole data (FedSGD), whatever the local
            work says.

    Examples:
        >>> import optax
        >>> from fedmom import Algorithm, clip, mean
        >>> method = Algorithm(optax.adam(0.01), rule=mean("cohort"), stages=(clip(norm=1.0),))
        >>> method.rule.needs
        'sum'
    """

    server: Server | optax.GradientTransformation
    client: Client | None = None
    rule: Rule | None = None
    stages: tuple[Stage, ...] = ()
    full_gradient: bool = False


@lru_cache(maxsize=256)  # equal optimizers have one server, so that runs share programs
def as_server(optimizer: Server | optax.GradientTransformation) -> Server:
    """Return a server that takes an optax optimizer's steps, or the server that was given."""
    if isinstance(optimizer, Server):
        return optimizer
    if not isinstance(optimizer, optax.GradientTransformation):
        raise FedMomError(
            f"{optimizer!r} is neither a fedmom.Server nor an optax optimizer, such as"
            " optax.sgd(1.0)."
        )

    def step(aggregate: Params, state: Any, params: Params) -> tuple[Params, Any]:
        updates, state = optimizer.update(aggregate, state, params)
        return optax.apply_updates(params, updates), state

    return Server(optimizer.init, step)


@lru_cache(maxsize=256)
def with_stages(client: Client, stages: tuple[Stage, ...]) -> Client:
    """Return a client whose updates pass through the stages before they are sent."""
    if not stages:
        return client

    def init(broadcast: Any) -> Any:
        inside, update = [], client.form(broadcast)
        for stage in stages:
            inside.append(stage.client_init(update))
            update = _zeros(encoded(update, (stage,)))
        return client.init(broadcast), tuple(inside)

    def run(broadcast: Any, state: Any, problem: Any, key: jax.Array) -> Any:
        own, inside = state
        update, own, metrics = client.run(broadcast, own, problem, key)
        after = []
        # Steps fold 0, 1, 2, ... into the client's key; the stages' number is one they never reach.
        apart = jax.random.fold_in(key, 2**32 - 1)
        for place, (stage, state_of) in enumerate(zip(stages, inside, strict=True)):
            update, changed = stage.encode(update, state_of, jax.random.fold_in(apart, place))
            after.append(changed)
        # The client has measured its own update, not what the stages have made of it.
        told = {name: value for name, value in metrics.items() if name != "norm"}
        return update, (own, tuple(after)), told

    personal = client.personal and _of_own_state(client.personal)
    return Client(run, init, client.form, personal)


def encoded(update: Params, stages: tuple[Stage, ...]) -> Params:
    """Return the shapes and types of an update that has passed through stages."""

    def sent(update: Params) -> Params:
        for stage in stages:
            update, _ = stage.encode(update, stage.client_init(update), jax.random.key(0))
        return update

    return jax.eval_shape(sent, update)


def _zeros(form: Params) -> Params:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), form)


def _of_own_state(personal: Callable[[Params, Any], Params]) -> Callable[[Params, Any], Params]:
    return lambda params, state: personal(params, state[0])


def norms(rows: Params) -> jax.Array:
    """Return the norm of every row of stacked updates."""

    def squares(leaf: jax.Array) -> jax.Array:
        # The square of an encoded number of 8 bits may not be one itself.
        real = jnp.issubdtype(leaf.dtype, jnp.inexact)
        flat = (leaf if real else leaf.astype(jnp.float32)).reshape(len(leaf), -1)
        return jnp.sum(jnp.square(flat), 1)

    return jnp.sqrt(sum(map(squares, jax.tree.leaves(rows)), jnp.zeros(())))
