"""LSTM, GRU and RNN layers, and their cells."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedmom.models.torch.layers import dropped
from fedmom.models.torch.table import op

# step(carry, from the input, from the state) -> the new carry
Step = Callable[[tuple[Any, ...], Any, Any], tuple[Any, ...]]


def _lstm_step(carry: tuple[Any, ...], given: Any, own: Any) -> tuple[Any, ...]:
    i, f, g, o = jnp.split(given + own, 4, -1)
    cell = jax.nn.sigmoid(f) * carry[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def _gru_step(carry: tuple[Any, ...], given: Any, own: Any) -> tuple[Any, ...]:
    (r, z, n), (own_r, own_z, own_n) = jnp.split(given, 3, -1), jnp.split(own, 3, -1)
    z = jax.nn.sigmoid(z + own_z)
    new = jnp.tanh(n + jax.nn.sigmoid(r + own_r) * own_n)
    return ((1 - z) * new + z * carry[0],)


def _tanh_step(_carry: tuple[Any, ...], given: Any, own: Any) -> tuple[Any, ...]:
    return (jnp.tanh(given + own),)


def _relu_step(_carry: tuple[Any, ...], given: Any, own: Any) -> tuple[Any, ...]:
    return (jax.nn.relu(given + own),)


class _How(NamedTuple):
    """What the layers are like, in PyTorch's order."""

    biased: bool
    layers: int
    rate: float
    train: bool
    bidirectional: bool
    batch_first: bool


def _layers(
    step: Step,
    x: Any,
    states: Any,
    params: Any,
    how: _How,
    key: Any,
) -> Any:
    """Run layers over time; their input's product with the weights is one for all times."""
    states = states if isinstance(states, tuple) else (states,)
    ways, x = 1 + how.bidirectional, jnp.swapaxes(x, 0, 1) if how.batch_first else x
    per = len(params) // (how.layers * ways)
    ends = []
    for layer in range(how.layers):
        found = []
        for way in range(ways):
            place = layer * ways + way
            weights = params[place * per : (place + 1) * per]
            start = tuple(state[place] for state in states)
            end, y = _over_time(step, x, start, weights, how.biased, backwards=way == 1)
            ends.append(end)
            found.append(y)
        x = jnp.concatenate(found, -1)
        if how.train and layer + 1 < how.layers and key is not None:
            x = dropped(x, how.rate, jax.random.fold_in(key, layer))
    last = tuple(jnp.stack(parts) for parts in zip(*ends, strict=True))
    return (jnp.swapaxes(x, 0, 1) if how.batch_first else x, *last)


def _over_time(
    step: Step, x: Any, start: tuple[Any, ...], weights: Any, biased: bool, *, backwards: bool
) -> Any:
    from_input, from_state, *rest = weights
    biases, projection = (rest[:2], rest[2:]) if biased else ([], rest)
    given = x @ from_input.T
    if biased:
        given = given + biases[0]

    def at(carry: tuple[Any, ...], given: Any) -> Any:
        own = carry[0] @ from_state.T
        after = step(carry, given, own + biases[1] if biased else own)
        if projection:
            after = after[0] @ projection[0].T, *after[1:]
        return after, after[0]

    return lax.scan(at, start, given, reverse=backwards)


_STEPS = {"gru": _gru_step, "lstm": _lstm_step, "rnn_tanh": _tanh_step, "rnn_relu": _relu_step}


def _layer(step: Step) -> Callable[..., Any]:
    def layer(x: Any, states: Any, params: Any, *how: Any, key: Any = None) -> Any:
        return _layers(step, x, states, params, _How(*how), key)

    return layer


def _cell(step: Step) -> Callable[..., Any]:
    def cell(x: Any, states: Any, wi: Any, wh: Any, bi: Any = None, bh: Any = None) -> Any:
        states = states if isinstance(states, tuple) else (states,)
        given, own = x @ wi.T, states[0] @ wh.T
        if bi is not None:
            given, own = given + bi, own + bh
        after = step(states, given, own)
        return after if len(after) > 1 else after[0]

    return cell


for _name, _step in _STEPS.items():
    op(f"{_name}.input")(_layer(_step))
    op(f"{_name}_cell")(_cell(_step))
