"""Models with state, such as batch norm's running statistics, in any method.

A method's client, stages and server see the trained parameters only. Around them, the state goes
its own way: to the clients with the broadcast and back with the update, where its mean is taken; or
it stays with each client. No optimizer steps on it: a running variance that Nesterov or η = K/M
extrapolates may be negative.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from fedmom.algorithms.base import Algorithm, Client, Server, as_server, encoded
from fedmom.algorithms.client import LOCAL_TRAINING, Kept
from fedmom.core.types import Params
from fedmom.models.variables import Variables, on_trained


def server_of(algorithm: Algorithm, params: Params) -> Server:
    """Return a method's server, for a model with state where ``params`` are of one."""
    server = as_server(algorithm.server)
    return _with_state(server) if isinstance(params, Variables) else server


def forms_of(algorithm: Algorithm, broadcast: Any) -> tuple[Params, Params]:
    """Return the form of updates on the client, and as they are sent."""
    client = algorithm.client or LOCAL_TRAINING
    if isinstance(broadcast, Variables):
        client = client_with_state(client, local=False)
    form = client.form(broadcast)
    return form, on_trained(lambda update: encoded(update, algorithm.stages), form)


@lru_cache(maxsize=256)
def _with_state(server: Server) -> Server:
    def init(params: Variables) -> Any:
        return server.init(params.trained)

    def step(aggregate: Variables, state: Any, params: Variables) -> tuple[Variables, Any]:
        trained, state = server.step(aggregate.trained, state, params.trained)
        mean = jax.tree.map(_typed, aggregate.state, params.state)
        return params._replace(trained=trained, state=mean), state

    def broadcast(params: Variables, state: Any) -> Variables:
        return params._replace(trained=server.broadcast(params.trained, state))

    def model(params: Variables, state: Any) -> Variables:
        return params._replace(trained=server.model(params.trained, state))

    return Server(init, step, broadcast, model)


@lru_cache(maxsize=256)
def client_with_state(client: Client, *, local: bool) -> Client:
    """Return a client that also takes care of the model's state.

    Args:
        client: The method's client, stages included.
        local: Whether each client keeps norm layers of its own.
    """

    def init(broadcast: Variables) -> Any:
        own = broadcast.own_trained, broadcast.own_state
        return client.init(broadcast.trained), own

    def run(broadcast: Variables, state: Any, problem: Any, key: jax.Array) -> Any:
        inside, (own_trained, own_state) = state
        kept = Kept(Variables(None, broadcast.state, own_trained, own_state))
        problem = problem._replace(kept=kept)
        update, inside, metrics = client.run(broadcast.trained, inside, problem, key)
        after = kept.variables
        # The norm that a client tells is that of the update; the state must be finite, too.
        told = {name: value for name, value in metrics.items() if name != "norm"}
        own = after.own_trained, after.own_state
        return Variables(update, after.state), (inside, own), told

    def form(broadcast: Variables) -> Variables:
        return Variables(client.form(broadcast.trained), broadcast.state)

    def personal(params: Variables, state: Any) -> Variables:
        inside, (own_trained, own_state) = state
        if client.personal is not None:
            params = params._replace(trained=client.personal(params.trained, inside))
        return params._replace(own_trained=own_trained, own_state=own_state)

    return Client(run, init, form, personal if local or client.personal else None)


def _typed(mean: jax.Array, before: jax.Array) -> jax.Array:
    """Return a mean in the type of what it is a mean of; a count stays a whole number."""
    real = jnp.issubdtype(before.dtype, jnp.inexact)
    return (mean if real else jnp.round(mean)).astype(before.dtype)
