"""The LSTM's own gradient, first and second, against JAX's gradient of the textbook loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmom.data.federated import Features
from fedmom.models import build
from fedmom.models.kernels.lstm import lstm

CLASSES = 7


def textbook(table, recurrent, symbols):
    """The loop as it is written in books, left to JAX to differentiate."""

    def step(state, symbols):
        h, c = state
        i, f, g, o = jnp.split(table[symbols] + h @ recurrent, 4, axis=-1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zero = jnp.zeros((len(symbols), len(recurrent)))
    return jax.lax.scan(step, (zero, zero), symbols.T)[0][0]


def drawn(batch, length, hidden, seed=0):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(CLASSES, 4 * hidden))
    recurrent = rng.normal(size=(hidden, 4 * hidden)) / np.sqrt(hidden)
    symbols = jnp.asarray(rng.integers(0, CLASSES, (batch, length)))
    return (jnp.asarray(table, jnp.float32), jnp.asarray(recurrent, jnp.float32)), symbols


def loss(layer, weights, symbols):
    """A mean over the batch in which every hidden unit counts differently."""
    h = layer(*weights, symbols)
    return jnp.mean(jnp.sum(jnp.sin(3 * h + jnp.arange(h.shape[1])), axis=1))


def assert_close(actual, expected, rtol=1e-4):
    """Compare trees leaf by leaf; the room for rounding grows with a leaf's largest number."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6 * max(1, float(jnp.abs(b).max())))


@partial(jax.jit, static_argnums=0)
def states_and_gradients(layer, weights, symbols):
    return layer(*weights, symbols), jax.grad(partial(loss, layer))(weights, symbols)


@pytest.mark.parametrize(("batch", "length", "hidden"), [(1, 1, 8), (128, 6, 16)])
def test_states_and_gradients_are_the_textbooks(batch, length, hidden):
    case = drawn(batch, length, hidden)
    assert_close(states_and_gradients(lstm, *case), states_and_gradients(textbook, *case))


@given(st.integers(0, 9999), st.floats(0, 100, width=32))
@settings(max_examples=30, deadline=None)
def test_gradients_are_the_textbooks_for_gates_anywhere_between_open_and_shut(seed, scale):
    (table, recurrent), symbols = drawn(3, 4, 5, seed)
    case = (scale * table, recurrent), symbols
    assert_close(states_and_gradients(lstm, *case), states_and_gradients(textbook, *case))


def test_every_leaf_of_the_model_has_the_textbooks_gradient():
    model = build("char_lstm", Features("text", (80,), 80))
    params = model.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.integers(0, 80, (10, 80)), jnp.uint8), jnp.arange(10)

    def plain(params, x, _key):
        table = params["embedding"] @ params["input"]["w"] + params["input"]["b"]
        h = textbook(table, params["recurrent"], x)
        return h @ params["out"]["w"] + params["out"]["b"]

    def gradient(apply):
        return jax.jit(jax.grad(lambda p: model.loss(apply(p, x, None), y).mean()))(params)

    assert_close(gradient(model.apply), gradient(plain))


def test_clients_side_by_side_have_their_own_gradients():
    """As on an accelerator: ``vmap`` over clients, each with its own weights and symbols."""
    clients = [drawn(3, 4, 5, seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients)
    together = jax.jit(jax.vmap(jax.grad(partial(loss, lstm))))(*stacked)
    alone = [states_and_gradients(textbook, *client)[1] for client in clients]
    assert_close(together, jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone))


def forward_over_reverse(f, weights, direction):
    return jax.jvp(jax.grad(f), (weights,), (direction,))[1]


def reverse_over_reverse(f, weights, direction):
    def along(weights):
        gradient = jax.tree.leaves(jax.grad(f)(weights))
        return sum(map(jnp.vdot, gradient, direction))

    return jax.grad(along)(weights)


@pytest.mark.parametrize("product", [forward_over_reverse, reverse_over_reverse])
def test_products_with_the_hessian_are_the_textbooks(product):
    weights, symbols = drawn(4, 9, 6)
    direction, _ = drawn(4, 9, 6, seed=1)

    def of(layer):
        run = partial(product, partial(loss, layer, symbols=symbols))
        return jax.jit(run)(weights, direction)

    assert_close(of(lstm), of(textbook), rtol=1e-3)


def test_a_symbol_that_was_not_read_has_no_gradient():
    weights, symbols = drawn(1, 1, 8)
    _, (table, _) = states_and_gradients(lstm, weights, symbols)
    read = np.isin(np.arange(CLASSES), symbols)
    np.testing.assert_array_equal(np.any(table != 0, axis=1), read)
