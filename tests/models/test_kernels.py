"""The layer as matrix products against the layer as its definition, in value and derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmom.core.fusion import plain_calls
from fedmom.data.federated import Features
from fedmom.models import build
from fedmom.models.base import drawn, linear
from fedmom.models.kernels import (
    FEW_SAMPLES,
    LARGE,
    NEAR,
    by_convolution,
    by_product,
    by_toom_cook,
    conv_relu_pool,
    linear_of_maps,
)
from fedmom.models.kernels.conv_toom_cook import PIXELS, SUMS, WEIGHTS, overlapped
from tests.models.conv_by_hand import by_hand

# Samples, height, width, channels, filters, padding, and the form that nets use for it. 13 and 15
# leave an odd row or column; 6 leaves one square. The slow ones are of kinds that others are, too.
SLOW = {"marks": pytest.mark.slow}
CASES = [
    (by_product, 10, 28, 28, 1, 6, "SAME"),
    (by_toom_cook, 10, 14, 14, 6, 16, "VALID"),
    pytest.param(by_product, 1, 12, 12, 3, 4, "SAME", **SLOW),
    (by_product, 64, 13, 13, 3, 5, "VALID"),
    (by_product, 10, 13, 15, 1, 3, "SAME"),
    pytest.param(by_toom_cook, 10, 14, 14, 32, 8, "SAME", **SLOW),
    (by_toom_cook, 7, 13, 15, 4, 3, "SAME"),
    pytest.param(by_toom_cook, 1, 6, 6, 17, 20, "VALID", **SLOW),
    pytest.param(by_product, 1, 13, 12, 17, 20, "VALID", **SLOW),
]


def layer_and_images(samples, height, width, channels, filters, seed=0):
    rng = np.random.default_rng(seed)
    layer = drawn(jax.random.key(seed), 5, 5, channels, filters)
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


@pytest.mark.parametrize(
    ("form", "samples", "height", "width", "channels", "filters", "padding"), CASES
)
def test_values_and_gradients_are_those_of_the_convolution(
    form, samples, height, width, channels, filters, padding
):
    layer, x = layer_and_images(samples, height, width, channels, filters)
    pooled = [(n if padding == "SAME" else n - 4) // 2 for n in (height, width)]
    (value, gradient), expected = (
        jax.jit(jax.value_and_grad(weighted(f, padding), argnums=(0, 1), has_aux=True))(layer, x)
        for f in (form, by_convolution)
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


# Images whose patches are the same in whole or in part, in numbers that round.
EQUALS = {
    "white": lambda _, shape: np.full(shape, 0.7),
    "black": lambda _, shape: np.zeros(shape),
    "rows": lambda rng, shape: np.broadcast_to(rng.random((*shape[:2], 1, shape[3])), shape),
    "columns": lambda rng, shape: np.broadcast_to(rng.random((shape[0], 1, *shape[2:])), shape),
    "diagonals": lambda rng, shape: (
        rng.random(30)[np.add.outer(np.arange(shape[1]), np.arange(shape[2]))][None, :, :, None]
        * np.ones(shape)
    ),
    "other diagonals": lambda rng, shape: (
        rng.random(30)[np.subtract.outer(np.arange(shape[1]), np.arange(shape[2]))][
            None, :, :, None
        ]
        * np.ones(shape)
    ),
    "ink on white": lambda rng, shape: np.where(rng.random(shape) < 0.02, rng.random(shape), 0.9),
    "noise": lambda rng, shape: rng.normal(size=shape),
}


@pytest.mark.parametrize(
    ("form", "side", "channels"),
    [(by_product, 5, 1), (by_product, 3, 3), (by_toom_cook, 5, 6)],
)
def test_gradients_are_those_of_64_bits_where_patches_are_the_same(form, side, channels):
    rng = np.random.default_rng(side + channels)
    layer, _ = layer_and_images(1, 12, 12, channels, 3)
    layer["w"] = (rng.uniform(-1, 1, (side, side, channels, 3)) / side).astype(np.float32)
    share = rng.normal(size=(2, 6, 6, 3)).astype(np.float32)
    for name, draw in EQUALS.items():
        x = draw(rng, (2, 12, 12, channels)).astype(np.float32)
        gradient, dx = shares_gradient(layer, x, share, form)
        expected = by_hand(layer["w"], layer["b"], x, share)
        for found, value in zip((gradient["w"], gradient["b"], dx), expected, strict=True):
            size = np.abs(value).max() or 1
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-6 * size, err_msg=name)


@pytest.mark.parametrize("form", [by_product, by_toom_cook])
def test_a_sum_of_zero_lets_no_gradient_through(form):
    # Blank paper and no bias: every sum is 0, where the rectifier's derivative is 0 by convention.
    layer = {"w": np.ones((5, 5, 6, 3), np.float32), "b": np.zeros(3, np.float32)}
    share = np.ones((2, 6, 6, 3), np.float32)
    found = shares_gradient(layer, np.zeros((2, 12, 12, 6), np.float32), share, form)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(found))


def test_toom_cooks_six_products_are_the_two_sums():
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=5), rng.normal(size=6)
    found = SUMS @ ((WEIGHTS @ w) * (PIXELS @ x))
    np.testing.assert_allclose(found, [w @ x[:5], w @ x[1:]], rtol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_overlapped_arrays_add_up_where_they_meet(count):
    parts = np.random.default_rng(0).normal(size=(3, 4, 2 * count))
    expected = sum(np.pad(p, ((0, 0), (2 * i, 4 - 2 * i))) for i, p in enumerate(parts))
    np.testing.assert_allclose(overlapped(list(map(jnp.asarray, parts)), 2), expected, rtol=1e-6)


@pytest.mark.parametrize("form", [by_product, by_toom_cook])
def test_a_value_that_is_not_a_number_stays_visible(form):
    layer, x = layer_and_images(1, 12, 12, 1, 2)
    x[0, 5, 5, 0] = np.nan
    got, expected = (
        np.isnan(jax.jit(f, static_argnums=2)(layer, x, "SAME")) for f in (form, by_convolution)
    )
    assert expected.any()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("form", [by_product, by_toom_cook])
def test_clients_can_be_mapped_over(form):
    each = [layer_and_images(3, 12, 12, 2, 4, seed) for seed in range(3)]
    layers, x = jax.tree.map(lambda *a: np.stack(a), *each)
    loss = weighted(form, "SAME")
    gradient = jax.grad(loss, has_aux=True)
    mapped = jax.jit(jax.vmap(gradient))(layers, x)
    alone = jax.jit(gradient)
    assert_close(mapped, jax.tree.map(lambda *a: np.stack(a), *(alone(*one) for one in each)))


@pytest.mark.parametrize("form", [by_product, by_toom_cook])
def test_second_derivatives_are_those_of_the_convolution(form):
    layer, x = layer_and_images(2, 12, 12, 2, 3)
    along = jax.tree.map(np.cos, layer)

    def reverse_over_reverse(loss):
        def slope(w):
            gradient, _ = jax.grad(loss, has_aux=True)(w, x)
            return sum(jnp.vdot(gradient[name], along[name]) for name in w)

        return jax.jit(jax.grad(slope))(layer)

    expected = reverse_over_reverse(weighted(by_convolution, "SAME"))
    loss = weighted(form, "SAME")
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


@pytest.mark.parametrize(
    ("samples", "outputs"), [(1, 7), (FEW_SAMPLES, 7), (FEW_SAMPLES + 1, 7), (2, NEAR // 2 + 1)]
)
def test_a_dense_layer_has_the_gradients_of_a_product(samples, outputs):
    maps = np.random.default_rng(0).normal(size=(samples, 3, 5, 2)).astype(np.float32)
    layer = drawn(jax.random.key(1), 30, outputs)
    layer["b"] = np.arange(outputs, dtype=np.float32) % 7

    def found(apply):
        def loss(layer, x):
            y = apply(layer, x)
            return jnp.sum(jnp.cos(y)), y

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(layer, maps)

    def flat(layer, x):
        return linear(layer, x.reshape(samples, -1))

    assert_close(found(linear_of_maps), found(flat))

    def curved(apply):  # the gradient's derivative, as products with the Hessian take it
        def gradient(layer):
            return jax.grad(lambda layer: jnp.sum(jnp.cos(apply(layer, maps))))(layer)

        return jax.jit(lambda: jax.jvp(gradient, (layer,), (jax.tree.map(np.cos, layer),))[1])()

    assert_close(curved(linear_of_maps), curved(flat))


@pytest.mark.slow
@pytest.mark.parametrize("size", [12, 14])  # the second layer's squares: one, and an odd row
def test_nets_can_be_translated_to_onnx_and_used_afterwards(size):
    jax2onnx = pytest.importorskip("jax2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    model = build("lenet5", Features("image", (size, size), 3))
    params = model.init(jax.random.key(0))
    x = np.random.default_rng(0).random((2, size, size)).astype(np.float32)
    with plain_calls():
        made = jax2onnx.to_onnx(
            lambda x: model.apply(params, x, None), inputs=[jax.ShapeDtypeStruct(x.shape, x.dtype)]
        )
    session = onnxruntime.InferenceSession(made.SerializeToString())
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    assert_close(found, jax.jit(model.apply, static_argnums=2)(params, x, None))
