"""Models with state, such as batch norm's running statistics, in any method.

A method's client, stages and server see the trained parameters only. Around them, the state goes
its own way: to the clients with the broadcast and back with the update, to be combined by the same
rule with the same weights, made to add up to one; or it stays with each client. No optimizer steps
on it: a running variance that Nesterov or η = K/M extrapolates may be negative.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedmom.algorithms.base import Algorithm, Client, Reported, Round, Server, Stage, as_server
from fedmom.algorithms.client import LOCAL_TRAINING, Kept
from fedmom.core.types import Params
from fedmom.models.base import Model
from fedmom.models.variables import Variables


class StatefulUpdate(NamedTuple):
    """What a client sends: the update, the model's state, and a 1, whose sum is the divisor."""

    update: Params
    state: Any
    one: jax.Array


def with_model_state(algorithm: Algorithm, model: Model) -> Algorithm:
    """Return an algorithm that takes care of the model's state, if it has any."""
    if model.state is None:
        return algorithm
    return algorithm._replace(
        server=_server(as_server(algorithm.server)),
        client=_client(algorithm.client or LOCAL_TRAINING, local=model.state == "local"),
        stages=tuple(map(_stage, algorithm.stages)),
    )


@lru_cache(maxsize=256)
def _server(server: Server) -> Server:
    def init(params: Variables) -> Any:
        return server.init(params.trained)

    def step(
        aggregate: StatefulUpdate, state: Any, params: Variables
    ) -> tuple[Variables, Any, Reported]:
        trained, state, metrics = server.step(aggregate.update, state, params.trained)

        def mean(total: jax.Array, before: jax.Array) -> jax.Array:
            found = total / jnp.where(aggregate.one > 0, aggregate.one, 1)
            whole = not jnp.issubdtype(before.dtype, jnp.inexact)  # a count stays a whole number
            typed = (jnp.round(found) if whole else found).astype(before.dtype)
            return jnp.where(aggregate.one > 0, typed, before)

        after = jax.tree.map(mean, aggregate.state, params.state)
        return params._replace(trained=trained, state=after), state, metrics

    def broadcast(params: Variables, state: Any) -> Variables:
        return params._replace(trained=server.broadcast(params.trained, state))

    def model(params: Variables, state: Any) -> Variables:
        return params._replace(trained=server.model(params.trained, state))

    return Server(init, step, broadcast, model, lambda aggregate: server.norm(aggregate.update))


@lru_cache(maxsize=256)
def _client(client: Client, *, local: bool) -> Client:
    def init(broadcast: Variables) -> Any:
        own = broadcast.own_trained, broadcast.own_state
        return client.init(broadcast.trained), own

    def run(broadcast: Variables, state: Any, problem: Any, key: jax.Array) -> Any:
        inside, (own_trained, own_state) = state
        kept = Kept(Variables(None, broadcast.state, own_trained, own_state))
        problem = problem._replace(kept=kept)
        update, inside, metrics = client.run(broadcast.trained, inside, problem, key)
        after = kept.variables
        # The norm that a client measured is the update's; the state must be finite, too.
        reported = {name: value for name, value in metrics.items() if name != "norm"}
        own = after.own_trained, after.own_state
        return StatefulUpdate(update, after.state, jnp.ones(())), (inside, own), reported

    def form(broadcast: Variables) -> StatefulUpdate:
        return StatefulUpdate(client.form(broadcast.trained), broadcast.state, jnp.ones(()))

    def personal(params: Variables, state: Any) -> Variables:
        inside, (own_trained, own_state) = state
        if client.personal is not None:
            params = params._replace(trained=client.personal(params.trained, inside))
        return params._replace(own_trained=own_trained, own_state=own_state)

    shows = personal if local or client.personal else None
    return Client(run, init, form, shows, client.ranges)


@lru_cache(maxsize=256)
def _stage(stage: Stage) -> Stage:
    """Return a stage that changes the update only."""
    inner: Any = stage

    def encode_update(sent: StatefulUpdate, state: Any, news: Any, key: jax.Array) -> Any:
        update, state, metrics = inner.encode(sent.update, state, news, key)
        return sent._replace(update=update), state, metrics

    def decode_update(sent: StatefulUpdate, form: StatefulUpdate) -> StatefulUpdate:
        return sent._replace(update=inner.decode(sent.update, form.update))

    def after_update(aggregate: StatefulUpdate, state: Any, round_: Round) -> Any:
        update, state, metrics = inner.after(aggregate.update, state, round_)
        return aggregate._replace(update=update), state, metrics

    def enforced_update(sent: StatefulUpdate) -> StatefulUpdate:
        return sent._replace(update=inner.enforce(sent.update))

    return stage._replace(
        enforce=stage.enforce and enforced_update,
        encode=stage.encode and encode_update,
        client_init=lambda sent: stage.client_init(sent.update),
        decode=stage.decode and decode_update,
        init=lambda form: stage.init(form.update),
        after=stage.after and after_update,
    )
