"""Loops with products of all steps at once, against the loops as they stand, in 64 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from fedmom.models.rewriting.scans import scan
from fedmom.models.rewriting.walk import rewritten


@pytest.fixture(autouse=True, scope="module")
def double_precision():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def inner(h, own):
    return lax.scan(lambda h, _: (jnp.tanh(h @ own), None), h, length=2)[0]


def recurrent(kind):
    """Return a loss of a recurrent net with two carried values, and what it takes."""
    rng = np.random.default_rng(0)
    rows = (2, kind["batch"]) if kind.get("places") else (kind["batch"],)
    hidden, length = kind["batch"] + kind["wider"], kind["length"]

    def drawn(*shape):
        return jnp.asarray(rng.normal(size=shape))

    weights = {
        "in": drawn(3, hidden),
        "own": drawn(hidden, hidden),
        "gates": [drawn(hidden, 2), drawn(hidden, hidden - 2)],
        "bias": drawn(hidden),
    }
    first = drawn(*rows, hidden), drawn(*rows, hidden)
    xs = {"x": drawn(length, *rows, 3), "mask": drawn(length)}

    def loss(weights, first, xs):
        def step(carry, x):
            h, c = carry
            z = x["x"] @ weights["in"] + h @ weights["own"] + weights["bias"]
            if kind.get("twice"):
                z += c @ weights["own"] - h @ weights["own"].T
            if kind.get("joined"):  # one product for all gates, as in flax
                z += h @ jnp.concatenate(weights["gates"], -1)
            if kind.get("nested"):
                z = inner(z, weights["own"])
            c = x["mask"] * c + jnp.tanh(z)
            return (jnp.sin(c), c), {"h": h, "sum": c.sum()}

        last, ys = lax.scan(step, first, xs, reverse=kind.get("reverse", False))
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves((last, ys)))

    return loss, (weights, first, xs)


def check(kind):
    """Compare value, gradients, and the product of the second derivative with a direction."""
    loss, arguments = recurrent(kind)

    def everything(*arguments):
        gradient = jax.grad(loss, (0, 1, 2))
        second = jax.jvp(gradient, arguments, jax.tree.map(jnp.cos, arguments))
        several = jax.tree.map(lambda a: jnp.stack([a, -a]), arguments)
        return loss(*arguments), second, jax.vmap(gradient)(*several)

    expected = jax.jit(everything)(*arguments)
    taken = []

    def watched(*inputs, **params):
        found = scan(*inputs, **params)
        taken.append(found is not None)
        return found

    fast = rewritten(everything, {"scan": watched})
    programs = [str(jax.make_jaxpr(f)(*arguments)) for f in (everything, fast)]
    assert (programs[0] != programs[1]) == any(taken)
    got = jax.jit(fast)(*arguments)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype == np.float64
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)
    return any(taken)


@pytest.mark.parametrize(
    "extra",
    [
        {"joined": True, "reverse": True},
        {"twice": True, "places": True},
        {"nested": True},
    ],
    ids="-".join,
)
def test_values_and_derivatives_are_those_of_the_loop(extra):
    assert check({"batch": 2, "wider": 3, "length": 3} | extra)


@pytest.mark.thorough
@settings(max_examples=10, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "batch": st.integers(1, 4),
            "wider": st.integers(2, 4),
            "length": st.integers(1, 4),
            **{name: st.booleans() for name in ("places", "twice", "joined", "nested", "reverse")},
        }
    )
)
def test_derivatives_of_any_loop(kind):
    check(kind)


def carried(function, *arguments):
    """Return how many values each loop of a program carries."""
    program = jax.make_jaxpr(function)(*arguments)
    return [e.params["num_carry"] for e in program.eqns if e.primitive.name == "scan"]


def test_sums_of_products_are_not_carried():
    loss, arguments = recurrent({"batch": 2, "wider": 3, "length": 4, "joined": True})
    gradient = jax.grad(loss)
    # Two states, and the gradients of four weights and the bias.
    assert carried(gradient, *arguments)[-1] == 2 + 5
    assert carried(rewritten(gradient, {"scan": scan}), *arguments)[-1] == 2 + 1


def test_without_weights_a_loop_stays():
    def last(first, xs):
        return lax.scan(lambda c, x: (jnp.sin(c) * x, c.sum()), first, xs)[0].sum()

    arguments = jnp.ones((2, 3)), jnp.ones(4)
    program = jax.make_jaxpr(jax.grad(last, (0, 1)))(*arguments)
    loops = [e for e in program.eqns if e.primitive.name == "scan"]
    assert loops
    for loop in loops:
        values = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in loop.invars]
        assert scan(*values, **loop.params) is None


def test_a_sum_that_is_read_stays():
    w = jnp.ones((4, 4))

    def summed(w, xs):
        def step(total, x):
            total = total + x.T @ x
            return total, total[0]

        return lax.scan(step, w, xs)

    xs = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 4)))
    got, expected = rewritten(summed, {"scan": scan})(w, xs), summed(w, xs)
    assert carried(rewritten(summed, {"scan": scan}), w, xs) == [1]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_large_factors_are_not_kept():
    """A gradient that is added up over parts of a batch needs the memory of one part."""

    def summed(w, xs):
        return lax.scan(lambda w, x: (w + jnp.sin(x).T @ jnp.cos(x), None), w, xs)[0]

    few, many = jnp.zeros((3, 2, 4)), jnp.zeros((3, 3, 4))
    assert carried(rewritten(summed, {"scan": scan}), jnp.ones((4, 4)), few) == [0]
    assert carried(rewritten(summed, {"scan": scan}), jnp.ones((4, 4)), many) == [1]
