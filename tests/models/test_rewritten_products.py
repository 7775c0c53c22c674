"""Products and sums in the forms that are fast on a CPU, against NumPy's, in 64 and 32 bits."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmom.models.rewriting.products import FEW, product
from fedmom.models.rewriting.sums import total
from fedmom.models.rewriting.walk import rewritten

SIZES = st.lists(st.integers(1, 5), max_size=2)
ROWS = st.one_of(
    st.tuples(st.integers(FEW - 2, FEW + 3)), st.tuples(st.integers(7, 9), st.integers(8, 10))
)


def found(function, name, replacement, *arguments):
    """Return what the function computes with the replacement, and whether it was taken."""
    taken = []

    def watched(*inputs, **params):
        result = replacement(*inputs, **params)
        taken.append(result is not None)
        return result

    fast = rewritten(function, {name: watched})
    assert str(jax.make_jaxpr(fast)(*arguments)) != str(jax.make_jaxpr(function)(*arguments)) or (
        not any(taken)
    )
    return fast(*arguments), any(taken)


@settings(max_examples=15, deadline=None)
@given(ROWS, SIZES, SIZES)
def test_gradients_of_weights(rows, own, other):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(*rows, *sizes)).astype(np.float32) for sizes in (own, other))
    summed = (tuple(range(len(rows))),) * 2
    got, taken = found(lambda a, b: jnp.tensordot(a, b, summed), "dot_general", product, a, b)
    assert taken == (math.prod(rows) >= FEW)
    expected = np.tensordot(a.astype(float), b.astype(float), summed)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
    assert got.dtype == np.float32


@pytest.mark.parametrize(
    ("equation", "dtype"),
    [
        ("nk,km->nm", np.float32),  # a layer itself
        ("bnk,bnm->bkm", np.float32),  # several clients at once
        ("nk,nm->km", np.int32),
        ("nk,nm->km", jnp.bfloat16),
    ],
)
def test_other_products_stay(equation, dtype):
    sizes = {"b": 2, "n": 70, "k": 3, "m": 4}
    a, b = (
        jnp.ones([sizes[axis] for axis in axes], dtype)
        for axes in equation.split("->")[0].split(",")
    )
    got, taken = found(lambda a, b: jnp.einsum(equation, a, b), "dot_general", product, a, b)
    assert not taken
    assert got.dtype == dtype


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_sums(shape, data):
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    got, taken = found(lambda x: x.sum(axes), "reduce_sum", total, x)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    between = bool(kept) and axes[0] < kept[-1] < axes[-1]
    assert taken == between
    np.testing.assert_allclose(got, x.astype(float).sum(axes), rtol=1e-5, atol=1e-5)
    assert got.dtype == np.float32


def test_long_inner_axes_stay():
    x = jnp.ones((3, 4, 65))
    _, taken = found(lambda x: x.sum((0, 2)), "reduce_sum", total, x)
    assert not taken


def test_derivatives_of_group_norm_and_a_layer():
    """In 64 bits: gradients, and their derivatives in forward mode, as they are without."""
    jax.config.update("jax_enable_x64", True)
    try:
        rng = np.random.default_rng(0)
        x, w = jnp.asarray(rng.normal(size=(3, 5, 7, 8))), jnp.asarray(rng.normal(size=(8, 6)))

        def loss(w, x):
            y = (x @ w).reshape(3, 5, 7, 2, 3)
            mean = y.mean((1, 2, 4), keepdims=True)
            return jnp.sin((y - mean) / jnp.sqrt(y.var((1, 2, 4), keepdims=True) + 1e-5)).sum()

        def everything(w, x):
            gradient = jax.grad(loss, (0, 1))
            return jax.jvp(gradient, (w, x), (jnp.cos(w), jnp.cos(x)))

        table = {"dot_general": product, "reduce_sum": total}
        got, expected = jax.jit(rewritten(everything, table))(w, x), everything(w, x)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            assert one.dtype == np.float64
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)
    finally:
        jax.config.update("jax_enable_x64", False)
