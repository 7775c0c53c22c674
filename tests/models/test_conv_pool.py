"""The layer as a matrix product against the layer as its definition, in value and derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmom.models._conv_pool import (
    LARGE,
    by_convolution,
    by_product,
    conv_relu_pool,
    linear_of_maps,
)
from fedmom.models.base import conv, dense, linear

# Samples, height, width, channels, filters, padding. 13 and 15 leave an odd row or column. The
# slow ones are of kinds that others are, too: one sample, or many channels.
CASES = [
    (10, 28, 28, 1, 6, "SAME"),
    (10, 14, 14, 6, 16, "VALID"),
    pytest.param(1, 12, 12, 3, 4, "SAME", marks=pytest.mark.slow),
    (64, 13, 13, 3, 5, "VALID"),
    (10, 13, 15, 1, 3, "SAME"),
    pytest.param(10, 14, 14, 32, 8, "SAME", marks=pytest.mark.slow),
    (1, 13, 12, 17, 20, "VALID"),
]


def layer_and_images(samples, height, width, channels, filters, seed=0):
    rng = np.random.default_rng(seed)
    layer = conv(jax.random.key(seed), 5, channels, filters)
    layer["b"] = rng.normal(scale=0.1, size=filters).astype(np.float32)
    return layer, rng.normal(size=(samples, height, width, channels)).astype(np.float32)


def weighted(f, padding):
    """A number that depends on every output in a way of its own, and the outputs."""

    def loss(layer, x):
        y = f(layer, x, padding)
        return jnp.sum(y * jnp.cos(jnp.arange(y.size)).reshape(y.shape) + y**2), y

    return loss


def assert_close(got, expected, tolerance=1e-5):
    """Equal up to rounding, as a part of the largest value."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


@pytest.mark.parametrize(("samples", "height", "width", "channels", "filters", "padding"), CASES)
def test_values_and_gradients_are_those_of_the_convolution(
    samples, height, width, channels, filters, padding
):
    layer, x = layer_and_images(samples, height, width, channels, filters)
    pooled = [(n if padding == "SAME" else n - 4) // 2 for n in (height, width)]
    (value, gradient), expected = (
        jax.jit(jax.value_and_grad(weighted(f, padding), argnums=(0, 1), has_aux=True))(layer, x)
        for f in (by_product, by_convolution)
    )
    assert value[1].shape == (samples, *pooled, filters)
    assert_close((value, gradient), expected)


@partial(jax.jit, static_argnums=3)
@partial(jax.grad, argnums=(0, 1))
def shares_gradient(layer, x, share, f):
    return jnp.sum(f(layer, x, "SAME") * share)


@pytest.mark.parametrize("channels", [1, 17])
@given(seed=st.integers(0, 2**31), levels=st.integers(1, 3))
@settings(max_examples=8, deadline=None)
def test_among_equals_the_first_is_chosen(channels, seed, levels):
    # Whole numbers add up without rounding, so both forms see the same ties: everywhere in
    # images of one level, often in those of two or three.
    rng = np.random.default_rng(seed)
    layer = {
        "w": jnp.asarray(rng.integers(-1, 2, (5, 5, channels, 3)), jnp.float32),
        "b": jnp.asarray(rng.integers(-2, 3, 3), jnp.float32),
    }
    x = jnp.asarray(rng.integers(1, 1 + levels, (2, 12, 12, channels)), jnp.float32)
    share = jnp.asarray(rng.integers(-4, 5, (2, 6, 6, 3)), jnp.float32)

    got, expected = (shares_gradient(layer, x, share, f) for f in (by_product, by_convolution))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_a_value_that_is_not_a_number_stays_visible():
    layer, x = layer_and_images(1, 12, 12, 1, 2)
    x[0, 5, 5, 0] = np.nan
    got, expected = (
        np.isnan(jax.jit(f, static_argnums=2)(layer, x, "SAME"))
        for f in (by_product, by_convolution)
    )
    assert expected.any()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("channels", [2, 17])
def test_clients_can_be_mapped_over(channels):
    each = [layer_and_images(3, 12, 12, channels, 4, seed) for seed in range(3)]
    layers, x = jax.tree.map(lambda *a: np.stack(a), *each)
    loss = weighted(by_product, "SAME")
    gradient = jax.grad(loss, has_aux=True)
    mapped = jax.jit(jax.vmap(gradient))(layers, x)
    alone = jax.jit(gradient)
    assert_close(mapped, jax.tree.map(lambda *a: np.stack(a), *(alone(*one) for one in each)))


@pytest.mark.parametrize("channels", [2, 17])
def test_second_derivatives_are_those_of_the_convolution(channels):
    layer, x = layer_and_images(2, 12, 12, channels, 3)
    along = jax.tree.map(np.cos, layer)

    def reverse_over_reverse(loss):
        def slope(w):
            gradient, _ = jax.grad(loss, has_aux=True)(w, x)
            return sum(jnp.vdot(gradient[name], along[name]) for name in w)

        return jax.jit(jax.grad(slope))(layer)

    expected = reverse_over_reverse(weighted(by_convolution, "SAME"))
    loss = weighted(by_product, "SAME")
    assert_close(reverse_over_reverse(loss), expected)

    @jax.jit
    def forward_over_reverse():
        return jax.jvp(lambda w: jax.grad(loss, has_aux=True)(w, x)[0], (layer,), (along,))[1]

    assert_close(forward_over_reverse(), expected)


def test_large_batches_of_many_filters_give_the_same_values():
    layer, x = layer_and_images(LARGE + 1, 12, 12, 1, 17)
    apply = jax.jit(conv_relu_pool, static_argnums=2)
    first = apply(layer, x[:LARGE], "VALID")
    assert_close(apply(layer, x, "VALID")[:LARGE], first)


@pytest.mark.parametrize("samples", [4, LARGE + 1])
def test_a_linear_layer_of_maps_is_that_of_their_rows(samples):
    maps = np.random.default_rng(0).normal(size=(samples, 3, 5, 2)).astype(np.float32)
    layer = dense(jax.random.key(1), 30, 7)
    layer["b"] = np.arange(7, dtype=np.float32)
    found = jax.jit(linear_of_maps)(layer, maps)
    assert_close(found, jax.jit(linear)(layer, maps.reshape(samples, 30)))
