"""What a federated method is made of: a client, stages, a rule and a server, all pure functions.

One round reads: the server's ``broadcast`` goes to the cohort; each client's ``run`` answers with
an update, which passes through the stages' ``encode``; on the server each reply is ``decode``d,
the rule combines them into an aggregate, the stages' ``after`` see it, last stage first; the
server takes its ``step``. Every part may keep state on the server and report metrics: numbers by
name, which end in ``Record.metrics``.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from fedmom.algorithms.local_work import LocalWork
from fedmom.core.arguments import checked_class, short
from fedmom.core.errors import FedMomError
from fedmom.core.tracing import of_numbers
from fedmom.core.types import Params
from fedmom.core.validation import Between

ClientMetrics = dict[str, jax.Array]  # numbers of one client
Reported = Mapping[str, Any]  # numbers of one part of a method, by name


def no_state(*_: Any) -> tuple[()]:
    """Return the state of what has none."""
    return ()


def unchanged(params: Params, *_: Any) -> Params:
    """Return the first argument."""
    return params


def reported(found: Any, what: str) -> tuple[Any, Any, Reported]:
    """Return what a part of a method returned, if it is three values, the last one its metrics."""
    if not (isinstance(found, tuple) and len(found) == 3 and isinstance(found[2], Mapping)):
        raise FedMomError(
            f"{what} must return three values, the last one a dict of metrics ({{}} if there are"
            f" none). It returned {short(found)}."
        )
    for name, value in found[2].items():
        if not isinstance(name, str) or not _is_one_number(value):
            raise FedMomError(
                f"{what} reports {name!r} as {short(value)}. A metric is one number, under a name."
            )
    return found


def _is_one_number(value: Any) -> bool:
    return isinstance(value, int | float) or getattr(value, "shape", None) == ()


def over_replies(weight: float, _population: int) -> float:
    """Return 1 / Σ a_k: a mean over the replies."""
    return 1.0 / (weight or 1.0)


@checked_class
class Client(NamedTuple):
    """What a client does with what it receives.

    Args:
        run: ``run(broadcast, state, problem, key) -> update, state, metrics``. ``problem`` is a
            ``fedmom.LocalProblem``: the client's data, and the round's steps and learning rate.
            ``metrics`` holds numbers, among them ``loss``, the mean local loss. All others are
            recorded as ``client/<name>``: their mean over the cohort, weighted as the updates are.
        init: ``init(broadcast) -> state`` of a client that is asked for the first time. The
            runtime keeps it and saves it with the checkpoint; ``()`` if there is none.
        form: ``form(broadcast) -> tree`` with the update's shapes, which replies are checked
            against; by default an update looks like the broadcast.
        personal: ``personal(params, state) -> params`` that the client is evaluated with, where
            clients have models of their own.
        ranges: The metrics whose least and largest values over the cohort are recorded, too, as
            ``client/<name>/min`` and ``client/<name>/max``.

    Examples:
        >>> import jax.numpy as jnp
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
    ranges: tuple[str, ...] = ()


@checked_class
class Server(NamedTuple):
    """What the server keeps, sends and does with the aggregate.

    Args:
        init: ``init(params) -> state``.
        step: ``step(aggregate, state, params) -> params, state, metrics``.
        broadcast: ``broadcast(params, state)``: what clients receive.
        model: ``model(params, state)``: what is evaluated and kept.
        norm: ``norm(aggregate)``, for the round's record.

    Examples:
        >>> average = Server(init=lambda w: (), step=lambda g, state, w: (w - g, state, {}))
        >>> average.step(1.0, (), 3.0)
        (2.0, (), {})
    """

    init: Callable[[Params], Any]
    step: Callable[[Params, Any, Params], tuple[Params, Any, Reported]]
    broadcast: Callable[[Params, Any], Any] = unchanged
    model: Callable[[Params, Any], Params] = unchanged
    norm: Callable[[Params], jax.Array] = optax.tree.norm


class Round(NamedTuple):
    """What a stage's ``after`` may know of the round, as numbers inside a compiled program.

    Args:
        number: Rounds done before it.
        key: The stage's random key in this round.
        replies: How many replies count.
        weight: Σ a_k over them, stale replies counting less.
        scale: What Σ a_k Δ_k was multiplied by, where the rule is a sum.

    Examples:
        >>> def fading(aggregate, state, round_):
        ...     return aggregate / (1 + round_.number), state, {"replies": round_.replies}
        >>> here = Round(number=3, key=jax.random.key(0), replies=2, weight=2.0, scale=0.5)
        >>> Stage("fading", after=fading).after(8.0, (), here)
        (2.0, (), {'replies': 2})
    """

    number: jax.Array
    key: jax.Array
    replies: jax.Array
    weight: jax.Array
    scale: jax.Array


@checked_class
class Stage(NamedTuple):
    """A change to updates on their way: clipping, compression, noise.

    Args:
        name: What its metrics and messages call it.
        encode: ``encode(update, state, sent, key) -> update, state, metrics``, on the client.
            ``state`` is the client's own, ``sent`` what ``send`` returned on the server.
        client_init: ``client_init(update) -> state`` of the stage on one client.
        send: ``send(state)``: what all clients receive of the stage's state on the server.
        decode: ``decode(encoded, form) -> update``, on the server, for each reply; ``form`` has
            the shapes and types of what was encoded. Leave it out where the sum of encoded
            updates is as good, so that replies can be added up on their way.
        init: ``init(form) -> state`` of the stage on the server.
        after: ``after(aggregate, state, round) -> aggregate, state, metrics``, on the server;
            ``round`` is a ``fedmom.Round``. Without ``decode``, it also undoes the encoding.
        enforce: ``enforce(update) -> update``, on the server, for each reply: what ``encode``
            promises, whether or not the client has done it. It must leave the mean of good
            updates as it is, so that replies can be added up on their way.
        mix: ``mix(rows, weights, clients, round) -> rows, weights``, on the server, before the
            rule: all replies of a round, stacked, and whose they are; those of weight 0 do not
            count.
        rows_after: ``rows_after(replies)``: how many rows ``mix`` makes of N replies.
        least: The fewest replies that ``mix`` makes sense for.

    Examples:
        >>> half = Stage("half", lambda update, state, sent, key: (update / 2, state, {}))
        >>> half.encode(4.0, (), (), None)
        (2.0, (), {})
    """

    name: str
    encode: Callable[[Params, Any, Any, jax.Array], tuple[Params, Any, Reported]] | None = None
    client_init: Callable[[Params], Any] = no_state
    send: Callable[[Any], Any] | None = None
    decode: Callable[[Params, Params], Params] | None = None
    init: Callable[[Params], Any] = no_state
    after: Callable[[Params, Any, Round], tuple[Params, Any, Reported]] | None = None
    enforce: Callable[[Params], Params] | None = None
    mix: Callable[[Params, jax.Array, jax.Array, Round], tuple[Params, jax.Array]] | None = None
    rows_after: Callable[[int], int] = unchanged
    least: int = 1


@checked_class
class Rule(NamedTuple):
    """How replies become one aggregate.

    Args:
        weigh: ``weigh(samples) -> weights a_k`` of clients with these numbers of samples.
        scale: ``scale(Σ a_k, n)`` with the population's samples n; by default 1 / Σ a_k. Without
            ``each``, the aggregate is ``scale * Σ a_k Δ_k``, which can be summed as replies come,
            anywhere.
        each: ``each(rows, weights, state) -> aggregate, state, metrics`` where all replies are
            needed at once, as for a median. ``rows`` are stacked; row i has the weight a_i, less
            if it is stale, and does not count where that is 0.
        init: ``init(form) -> state`` of a rule with ``each``, on the server; ``form`` is a row's.
        name: What its metrics and messages call it.
        least: The fewest replies that it makes sense for; a round with fewer takes no step.

    Examples:
        >>> rule = Rule(weigh=np.sqrt)
        >>> rule.weigh(np.array([4, 9])).tolist(), rule.needs
        ([2.0, 3.0], 'sum')
    """

    weigh: Callable[[NDArray[np.int64]], NDArray[np.float64]]
    scale: Callable[[float, int], float] = over_replies
    each: Callable[[Params, jax.Array, Any], tuple[Params, Any, Reported]] | None = None
    init: Callable[[Params], Any] = no_state
    name: str = "rule"
    least: int = 1

    @property
    def needs(self) -> Literal["sum", "each"]:
        """Whether a running sum is enough, or every reply is needed."""
        return "sum" if self.each is None else "each"


@checked_class
class Attack(NamedTuple):
    """What hostile clients do, simulated; who they are is a function of the seed.

    Args:
        share: The share of all clients that is hostile, at least one.
        poison: ``poison(x, y, features) -> x, y``: the batches that they train on.
        forge: ``forge(update, key) -> update``: what they send instead of their own update.
        collude: ``collude(mean, deviation) -> update``: what all of them send instead, given the
            mean and the standard deviation of the honest updates of the round. It is computed on
            the server, where all replies are: an attacker who sees everything.
        metric: What the attack wants, as a ``fedmom.Metric`` that is measured in evaluations.
        check: ``check(features)`` raises an error where the attack does not fit the data.
        name: What its metrics and messages call it.

    Examples:
        >>> def nothing(update, key):
        ...     return jax.tree.map(lambda u: 0 * u, update)
        >>> Attack(share=0.1, forge=nothing, name="free_riding").share
        0.1
    """

    share: Annotated[float, Between(0, 1)]
    poison: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None
    forge: Callable[[Params, jax.Array], Params] | None = None
    collude: Callable[[Params, Params], Params] | None = None
    metric: Any = None
    check: Callable[[Any], Any] | None = None
    name: str = "attack"


@checked_class
class Algorithm(NamedTuple):
    """A federated method, with the work that clients do.

    Args:
        server: A ``Server``, or any optax optimizer, which is fed the aggregate as a gradient.
        work: What clients do in a round: steps, batches, solver. Where ``fedmom.run`` gets an
            algorithm without, its settings say so.
        client: How they do it; by default H steps of their solver.
        rule: How replies are combined; by default the paper's mean with population weights.
        stages: What happens to updates on their way, in the client's order.

    Examples:
        >>> import optax
        >>> from fedmom import Algorithm, LocalWork, clip, mean
        >>> work = LocalWork(lr=0.1, steps=10)
        >>> method = Algorithm(optax.adam(0.01), work, rule=mean("cohort"), stages=(clip(norm=1),))
        >>> method.rule.needs
        'sum'
    """

    server: Server | optax.GradientTransformation
    work: LocalWork | None = None
    client: Client | None = None
    rule: Rule | None = None
    stages: tuple[Stage, ...] = ()


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

    def step(aggregate: Params, state: Any, params: Params) -> tuple[Params, Any, Reported]:
        found = optimizer.update(aggregate, state, params)
        if not (isinstance(found, tuple) and len(found) == 2):
            raise FedMomError(
                f"update of the optimizer returns {short(found)}. It must return updates and its"
                " state."
            )
        updates, state = found
        of_numbers("update of the optimizer returns updates,", updates)
        return optax.apply_updates(params, updates), state, {}

    return Server(optimizer.init, step)
