"""A trial of the functions that users bring, before the first round.

Each is called once, by JAX with shapes in place of numbers, so that nothing is computed. What it
returns is compared with what its place in a method promises. An exception of the function's own
is passed on as it is.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedmom.algorithms import schedules
from fedmom.algorithms.base import (
    Algorithm,
    Attack,
    Client,
    Round,
    Rule,
    Server,
    Stage,
    as_server,
    reported,
)
from fedmom.algorithms.forms import Form
from fedmom.algorithms.local_work import LocalWork
from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.core.prng import is_key
from fedmom.core.tracing import of_numbers, one_number, traced
from fedmom.core.types import Params
from fedmom.models.base import Model, first_form

SAMPLES = np.array([3, 5])  # of the clients whose replies a rule is tried with


def try_method(algorithm: Algorithm, params: Params) -> None:
    """Refuse an algorithm with a function that does not return what it must.

    Args:
        algorithm: The algorithm, with its local work.
        params: The form of the parameters that it trains.
    """
    server, client = as_server(algorithm.server), algorithm.client or Client(_no_run)
    assert algorithm.work is not None
    _try_work(algorithm.work, params)
    state = _try_server(server, params)
    broadcast = returned("broadcast of the server", server.broadcast, params, state)
    if algorithm.client is None:
        _alike("broadcast of the server returns parameters", broadcast, params)
    update = _try_client(client, params, broadcast)
    aggregate, states = _try_stages(algorithm.stages, update)
    if algorithm.rule is not None and _is_own(algorithm.rule):
        aggregate = _try_rule(algorithm.rule, aggregate)
    aggregate = _try_after(algorithm.stages, states, aggregate)
    if isinstance(algorithm.server, optax.GradientTransformation):
        _alike(
            "An optax optimizer needs an aggregate like the parameters; it gets one",
            aggregate,
            params,
        )
    if algorithm.server is not server or _is_own(server):
        _try_step(server, params, state, aggregate)


def try_train(model: Model, x: NDArray[Any]) -> None:
    """Refuse a model whose ``train`` returns outputs or states of another form than they have.

    Args:
        model: The model.
        x: A batch of inputs.
    """
    if model.train is None:
        return
    what = "train of the model returns"
    params = first_form(model)
    found = traced(model.train, params, x, jax.random.key(0))
    if not (isinstance(found, tuple) and len(found) == 3):
        raise FedMomError(f"{what} {short(found)}. It must return outputs, state and own state.")
    outputs = returned("apply of the model", lambda p, x: model.apply(p, x, None), params, x)
    names, forms = ("outputs", "state", "own state"), (outputs, params.state, params.own_state)
    for name, part, form in zip(names, found, forms, strict=True):
        _alike(f"{what} {name}", of_numbers(f"{what} {name}", part), form)


def returned(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the form of what a function returns, or refuse what is not made of numbers.

    Args:
        what: The function, for the message.
        function: The function.
        *arguments: The forms of its arguments.
    """
    return of_numbers(f"{what} returns", traced(function, *arguments))


def _stored(what: str, function: Callable[..., Any], form: Any) -> Any:
    """Return the form of a client's state, which is kept as plain arrays."""
    state = returned(what, function, form)
    if any(map(is_key, jax.tree.leaves(state))):
        raise FedMomError(
            f"{what} returns a random key, which a client cannot keep. Keep"
            " jax.random.key_data(key), or use the key that run is given."
        )
    return state


def _three(what: str, function: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """Return the forms of the first two of a function's three values."""
    value, state, _ = reported(traced(function, *arguments), what)
    return tuple(of_numbers(f"{what} returns", part) for part in (value, state))


def _alike(what: str, found: Any, form: Any) -> None:
    """Refuse what has another form than it must have."""
    if fault := Form.of(form).difference(found):
        raise FedMomError(f"{what} {fault}.")


def _is_own(part: Any, *others: str) -> bool:
    """Return whether a part has a function that is not the package's, nor another one's."""
    homes = ("fedmom.", *others)
    return any(not str(f.__module__).startswith(homes) for f in filter(callable, part))


def _no_run(*_: Any) -> Any:
    raise NotImplementedError


def _try_work(work: LocalWork, params: Params) -> None:
    schedules.at(work.lr, 0)
    work.count(0, 1)
    solver = work.solver(0.1) if callable(work.solver) else work.solver
    if not isinstance(solver, optax.GradientTransformation):
        raise FedMomError(
            f"The solver returns {short(solver)} for a learning rate. It must return an optax"
            " optimizer."
        )
    if not _is_own(solver, "optax."):
        return
    state = returned("init of the solver", solver.init, params)
    found = traced(solver.update, params, state, params)
    if not (isinstance(found, tuple) and len(found) == 2):
        raise FedMomError(
            f"update of the solver returns {short(found)}. It must return updates and its state."
        )
    names = ("updates", "a state")
    for name, part, form in zip(names, found, (params, state), strict=True):
        what = f"update of the solver returns {name}"
        _alike(what, of_numbers(what, part), form)


def _try_server(server: Server, params: Params) -> Any:
    """Return the form of the server's first state."""
    state = returned("init of the server", server.init, params)
    if _is_own((server.model,)):
        shown = returned("model of the server", server.model, params, state)
        _alike("model of the server returns parameters", shown, params)
    return state


def _try_client(client: Client, params: Params, broadcast: Any) -> Params:
    """Return the form of an update, before any stage."""
    update = returned("form of the client", client.form, broadcast)
    state = _stored("init of the client", client.init, broadcast)
    if client.personal is not None:
        own = returned("personal of the client", client.personal, params, state)
        _alike("personal of the client returns parameters", own, params)
    return update


def _try_step(server: Server, params: Params, state: Any, aggregate: Params) -> None:
    what = "step of the server"
    after, new = _three(what, server.step, aggregate, state, params)
    _alike(f"{what} returns parameters", after, params)
    _alike(f"{what} returns a state", new, state)
    one_number("norm of the server returns", traced(server.norm, aggregate))


def _try_stages(stages: Sequence[Stage], update: Params) -> tuple[Params, list[Any]]:
    """Return the forms of a decoded update, and of the stages' first states on the server."""
    key = jax.random.key(0)
    forms, states = [update], []
    for stage in stages:
        what, form = f"of the stage {stage.name}", forms[-1]
        states.append(returned(f"init {what}", stage.init, form))
        news = returned(f"send {what}", stage.send, states[-1]) if stage.send else ()
        own = _stored(f"client_init {what}", stage.client_init, form)
        if stage.encode is not None:
            sent, new = _three(f"encode {what}", stage.encode, form, own, news, key)
            _alike(f"encode {what} returns a state", new, own)
            forms.append(sent)
        else:
            forms.append(form)
    decoded = forms[-1]
    for stage, before, after in reversed(list(zip(stages, forms, forms[1:], strict=False))):
        if stage.decode is not None and Form.of(decoded) == Form.of(after):
            what = f"decode of the stage {stage.name}"
            decoded = returned(what, stage.decode, after, before)
            _alike(f"{what} returns an update", decoded, before)
        if stage.enforce is not None:
            what = f"enforce of the stage {stage.name}"
            _alike(f"{what} returns an update", returned(what, stage.enforce, before), before)
    for stage in stages:
        if stage.mix is not None:
            _try_mix(stage, decoded)
    return decoded, states


def _try_mix(stage: Stage, form: Params) -> None:
    assert stage.mix is not None
    what = f"mix of the stage {stage.name}"
    rows, number = _rows_of(form), jnp.zeros(())
    here = Round(number, jax.random.key(0), number, number, number)
    found = traced(stage.mix, rows, jnp.ones(len(SAMPLES)), jnp.arange(len(SAMPLES)), here)
    if not (isinstance(found, tuple) and len(found) == 2):
        raise FedMomError(f"{what} returns {short(found)}. It must return rows and weights.")
    mixed, weights = (of_numbers(f"{what} returns", part) for part in found)
    if not (isinstance(weights, jax.ShapeDtypeStruct) and len(weights.shape) == 1):
        raise FedMomError(f"{what} returns {short(weights)} for weights. It must be one per row.")
    count = weights.shape[0]
    expected = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), form)
    _alike(f"{what} returns rows", mixed, expected)
    after = stage.rows_after(len(SAMPLES))
    if not isinstance(after, int | np.integer) or after < 1:
        raise FedMomError(
            f"rows_after of the stage {stage.name} returns {short(after)}. It must be a whole"
            " number of at least 1."
        )


def _rows_of(form: Params) -> Params:
    """Return rows of zeros, one for each of two clients."""
    return jax.tree.map(lambda leaf: jnp.zeros((len(SAMPLES), *leaf.shape), leaf.dtype), form)


def try_attack(attack: Attack, update: Params, batch: tuple[Any, Any], features: Any) -> None:
    """Refuse an attack with a function that does not return what it must.

    Args:
        attack: The attack.
        update: The form of an update.
        batch: The form of a batch: inputs and labels.
        features: Those of the data.
    """
    what = f"of the attack {attack.name}"
    if attack.poison is not None:
        found = traced(lambda x, y: attack.poison(x, y, features), *batch)  # type: ignore[misc]
        if not (isinstance(found, tuple | list) and len(found) == 2):
            raise FedMomError(f"poison {what} returns {short(found)}. It must return x and y.")
        for name, part, form in zip(("inputs", "labels"), found, batch, strict=True):
            numbers = of_numbers(f"poison {what} returns {name}", part)
            _alike(f"poison {what} returns {name}", numbers, form)
    if attack.forge is not None:
        found = returned(f"forge {what}", attack.forge, update, jax.random.key(0))
        _alike(f"forge {what} returns an update", found, update)
    if attack.collude is not None:
        found = returned(f"collude {what}", attack.collude, update, update)
        _alike(f"collude {what} returns an update", found, update)


def _try_after(stages: Sequence[Stage], states: Sequence[Any], aggregate: Params) -> Params:
    """Return the form of the aggregate that the server steps on."""
    number = jnp.zeros(())
    here = Round(number, jax.random.key(0), number, number, number)
    for stage, state in reversed(list(zip(stages, states, strict=True))):
        if stage.after is not None:
            what = f"after of the stage {stage.name}"
            aggregate, new = _three(what, stage.after, aggregate, state, here)
            _alike(f"{what} returns a state", new, state)
    return aggregate


def try_weights(rule: Rule) -> None:
    """Refuse a rule whose weights or scale are not numbers."""
    weights = rule.weigh(SAMPLES)
    numbers = _array(weights)
    usable = numbers.shape == SAMPLES.shape and numbers.dtype.kind in "iuf"
    if not usable or not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise FedMomError(
            f"weigh of the rule {rule.name} returns {short(weights)} for two clients. It must"
            " return an array of two weights, numbers of at least 0."
        )
    scale = rule.scale(1.0, int(SAMPLES.sum()))
    one_number(f"scale of the rule {rule.name} returns", scale)


def _try_rule(rule: Rule, form: Params) -> Params:
    """Return the form of the aggregate."""
    try_weights(rule)
    if rule.each is None:
        return form
    state = returned(f"init of the rule {rule.name}", rule.init, form)
    rows = _rows_of(form)
    what = f"each of the rule {rule.name}"
    aggregate, new = _three(what, rule.each, rows, jnp.zeros(len(SAMPLES)), state)
    _alike(f"{what} returns a state", new, state)
    return aggregate


def _array(value: Any) -> NDArray[Any]:
    """Return numbers as an array; what cannot be one is an array of text."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        return np.array("")
