"""Calls that XLA does not inline, and values that wait for others."""

import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np

from fedmom.core import fusion
from fedmom.core.fusion import after, kernel, plain_calls


@kernel
def shifted(x, *, by):
    return jnp.sin(x) + by


def compiled(function, x):
    """The optimized program: a call that is left in it was not inlined."""
    return jax.jit(lambda x: function(jnp.cos(x), by=2) * 3).lower(x).compile().as_text()


def test_a_kernel_stays_a_call_with_the_functions_values():
    x = jnp.arange(8.0)
    assert " call(" in compiled(shifted, x)
    np.testing.assert_allclose(shifted(x, by=2), np.sin(np.arange(8)) + 2, rtol=1e-6)


def test_a_kernel_is_its_operations_where_a_translator_asks_for_them():
    with plain_calls():
        inside = str(jax.make_jaxpr(lambda x: shifted(x, by=2))(jnp.arange(8.0)))
    outside = str(jax.make_jaxpr(lambda x: shifted(x, by=2))(jnp.arange(8.0)))
    assert "jit" not in inside
    assert "jit" in outside


def test_a_jax_without_metadata_inlines_kernels(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax.experimental.xla_metadata", None)  # cannot be imported
    spec = importlib.util.spec_from_file_location("kernels_of_another_jax", fusion.__file__)
    other = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    plain = other.kernel(lambda x, *, by: jnp.sin(x) + by)
    x = jnp.arange(8.0)
    assert " call(" not in compiled(plain, x)
    np.testing.assert_allclose(plain(x, by=2), shifted(x, by=2), rtol=1e-6)


def test_a_value_that_waits_for_another_is_the_same():
    a, b = jnp.array([1.5, -2.0]), jnp.array([[-3.0], [4.0]])
    np.testing.assert_array_equal(after(a, b), a)
    np.testing.assert_array_equal(jax.grad(lambda b: after(a, b).sum())(b), np.zeros((2, 1)))
