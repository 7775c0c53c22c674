"""The pass over programs of users' nets, and what it replaces: each equals the plain form."""

from functools import partial

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax

import fedmom
from fedmom.models import rewriting
from fedmom.models.rewriting import REPLACEMENTS, rewritten
from fedmom.runtimes import client_programs

AXES = ("NHWC", "HWIO", "NHWC")


def counted(seen, name="conv_general_dilated"):
    """The table, which writes down what is replaced by the row of a name."""

    def row(*inputs, **params):
        found = REPLACEMENTS[name](*inputs, **params)
        seen.append(found is not None)
        return found

    return {name: row}


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def by_loops(x, w, strides, padding, x_dilation, w_dilation, groups):
    """A convolution (N, H, W, C) x (H, W, C / groups, F) in 64 bits, output by output."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    (n, *places, c), (*taps, _, f) = x.shape, w.shape
    spread = [(size - 1) * d + 1 for size, d in zip(places, x_dilation, strict=True)]
    wide = np.zeros((n, *(s + 20 for s in spread), c))  # the image begins at 10
    wide[
        (slice(None), *(slice(10, 10 + s, d) for s, d in zip(spread, x_dilation, strict=True)))
    ] = x
    counts = [
        (s + sum(pads) - (k - 1) * d - 1) // step + 1
        for s, pads, k, d, step in zip(spread, padding, taps, w_dilation, strides, strict=True)
    ]
    y = np.zeros((n, *counts, f))
    for at in np.ndindex(*counts):
        for tap in np.ndindex(*taps):
            steps = zip(at, tap, strides, w_dilation, padding, strict=True)
            place = tuple(10 - low + i * step + j * d for i, j, step, d, (low, _) in steps)
            for g in range(groups):
                ins, outs = (
                    slice(g * c // groups, (g + 1) * c // groups),
                    slice(g * f // groups, (g + 1) * f // groups),
                )
                y[(slice(None), *at, outs)] += wide[(slice(None), *place)][:, ins] @ w[tap][:, outs]
    return y


@st.composite
def cases(draw):
    groups, per_group = draw(st.sampled_from([(1, 1), (1, 3), (1, 4), (1, 18), (2, 2), (5, 1)]))
    filters = groups * draw(st.sampled_from([1, 2, 8]))
    samples = draw(st.sampled_from([1, 4]))
    taps = draw(st.tuples(*[st.integers(1, 3)] * 2))
    strides, x_dilation, w_dilation = (
        draw(st.tuples(*[st.sampled_from([1, 1, 2])] * 2)) for _ in range(3)
    )
    padding = [(draw(st.integers(-1, 2)), draw(st.integers(-1, 2))) for _ in range(2)]
    places = draw(st.tuples(*[st.integers(4, 8)] * 2))
    x, w = (samples, *places, groups * per_group), (*taps, per_group, filters)
    return x, w, (strides, padding, x_dilation, w_dilation), groups


def check_against_loops(case):
    shape, filters, how, groups = case
    x, w, other_x, other_w = (
        normal(0, *shape),
        normal(1, *filters),
        normal(2, *shape),
        normal(3, *filters),
    )
    expected = by_loops(x, w, *how, groups)
    share = normal(4, *expected.shape)

    def layer(x, w):
        return lax.conv_general_dilated(
            x, w, *how, dimension_numbers=AXES, feature_group_count=groups
        )

    def all_of(x, w):
        y, back = jax.vjp(layer, x, w)
        return y, *back(share)

    seen = []
    y, of_x, of_w = jax.jit(rewritten(all_of, counted(seen)))(x, w)
    assert len(seen) == 3
    assert all(seen) or 0 in expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    # The layer is linear in each of its inputs, so a gradient is known by its products.
    for gradient, other, moved in (
        (of_x, other_x, by_loops(other_x, w, *how, groups)),
        (of_w, other_w, by_loops(x, other_w, *how, groups)),
    ):
        np.testing.assert_allclose(
            np.vdot(gradient, other), np.vdot(share, moved), rtol=1e-3, atol=1e-2
        )


@settings(max_examples=6, deadline=None)
@given(cases())
def test_convolutions_equal_their_definition(case):
    check_against_loops(case)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(cases())
def test_many_convolutions_equal_their_definition(case):
    check_against_loops(case)


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(cases())
def test_convolutions_equal_those_of_torch(case):
    torch = pytest.importorskip("torch")
    shape, filters, (strides, padding, _, w_dilation), groups = case
    x, w, pad = normal(0, *shape), normal(1, *filters), [max(0, low) for low, _ in padding]

    def layer(x, w):
        pads = [(p, p) for p in pad]
        return lax.conv_general_dilated(
            x,
            w,
            strides,
            pads,
            rhs_dilation=w_dilation,
            dimension_numbers=AXES,
            feature_group_count=groups,
        )

    inputs = [
        torch.tensor(a.transpose(order), dtype=torch.float64, requires_grad=True)
        for a, order in ((x, (0, 3, 1, 2)), (w, (3, 2, 0, 1)))
    ]
    if 0 in jax.eval_shape(layer, x, w).shape:
        return
    outputs = torch.nn.functional.conv2d(
        *inputs, stride=strides, padding=pad, dilation=w_dilation, groups=groups
    )
    (outputs**2).sum().backward()
    program = rewritten(jax.grad(lambda x, w: (layer(x, w) ** 2).sum(), (0, 1)), counted([]))
    of_x, of_w = jax.jit(program)(x, w)
    for got, at, order in ((of_x, inputs[0], (0, 2, 3, 1)), (of_w, inputs[1], (2, 3, 1, 0))):
        expected = at.grad.numpy().transpose(order)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("x", "w", "axes"),
    [
        ((3, 9, 5), (4, 5, 6), ("NHC", "HIO", "NHC")),
        ((3, 5, 7, 6), (4, 5, 3, 3), ("NCHW", "OIHW", "NCHW")),
        ((2, 4, 6, 5, 3), (2, 3, 3, 3, 4), ("NDHWC", "DHWIO", "NDHWC")),
    ],
    ids=["1d", "channels first", "3d"],
)
@pytest.mark.parametrize(
    "dtype", [pytest.param(jnp.float32, marks=pytest.mark.thorough), jnp.bfloat16]
)
def test_other_forms_equal_xla(x, w, axes, dtype):
    def layer(x, w):
        y = lax.conv_general_dilated(x, w, (1,) * (x.ndim - 2), "SAME", dimension_numbers=axes)
        return (y.astype(jnp.float32) ** 2).sum()

    program, inputs = (
        jax.grad(layer, (0, 1)),
        [jnp.asarray(normal(i, *s), dtype) for i, s in enumerate((x, w))],
    )
    seen = []
    for got, expected in zip(
        jax.jit(rewritten(program, counted(seen)))(*inputs), jax.jit(program)(*inputs), strict=True
    ):
        assert got.dtype == dtype
        room = 1e-4 if dtype == jnp.float32 else 0.05
        expected = np.asarray(expected, np.float32)
        np.testing.assert_allclose(
            np.asarray(got, np.float32), expected, rtol=room, atol=room * np.abs(expected).max()
        )
    assert len(seen) == 3
    assert all(seen)


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [((2, 2), (2, 2), "VALID"), ((3, 3), (2, 2), "SAME"), ((3, 1), (1, 2), "VALID")],
)
def test_the_gradient_of_max_pooling_equals_that_of_xla(size, stride, padding):
    x = np.round(2 * normal(0, 2, 7, 6, 3))  # of few values, so that several are the largest

    def pooled(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, *size, 1), (1, *stride, 1), padding)

    def gradient(x):
        return jax.grad(lambda x: jnp.sum(pooled(x) * share))(x)

    share, seen = normal(1, *pooled(x).shape), []
    got = jax.jit(rewritten(gradient, counted(seen, "select_and_scatter_add")))(x)
    assert seen == [True]
    np.testing.assert_allclose(got, jax.jit(gradient)(x), rtol=1e-6, atol=1e-6)


def layer(w, x):
    return jnp.tanh(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=AXES))


@jax.custom_jvp
def own_jvp(w, x):
    return layer(w, x)


own_jvp.defjvp(lambda given, moved: jax.jvp(layer, given, moved))


@jax.custom_vjp
def own_vjp(w, x):
    return layer(w, x)


own_vjp.defvjp(lambda w, x: (layer(w, x), (w, x)), lambda kept, g: jax.vjp(layer, *kept)[1](g))

HOLDERS = {
    "none": layer,
    "jit": jax.jit(layer),
    "checkpoint": jax.checkpoint(layer),
    "scan": lambda w, x: lax.scan(lambda x, _: (layer(w, x), None), x, length=2)[0],
    "cond": lambda w, x: lax.cond(x.sum() > 0, layer, lambda w, x: 2 * layer(w, x), w, x),
    "custom_jvp": own_jvp,
    "custom_vjp": own_vjp,
    "vmap": lambda w, x: jax.vmap(lambda x: layer(w, x[None])[0])(x),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("scan", "cond") else pytest.param(name, marks=pytest.mark.thorough)
        for name in HOLDERS
    ],
)
def test_the_pass_enters_what_holds_programs(name):
    w, x, net = normal(0, 3, 3, 4, 4) / 4, normal(1, 2, 6, 6, 4), HOLDERS[name]

    def trained(w, x, steps):
        gradient = jax.grad(lambda w: jnp.mean(net(w, x) ** 2))
        return lax.fori_loop(0, steps, lambda _, w: w - 0.1 * gradient(w), w), net(w, x)

    seen = []
    got = jax.jit(rewritten(trained, counted(seen)))(w, x, 3)
    assert len(seen) >= 3
    assert all(seen)
    for one, other in zip(got, jax.jit(trained)(w, x, 3), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_a_rewritten_function_has_all_derivatives():
    w, x = normal(0, 3, 3, 4, 4) / 4, normal(1, 1, 5, 5, 4)

    def value(w):
        return jnp.mean(own_vjp(w, x) ** 2)

    program = rewritten(jax.grad(value), counted([]))
    along = partial(jax.jvp, primals=(w,), tangents=(normal(2, *w.shape),))
    for one, other in zip(along(program), along(jax.grad(value)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    backward = jax.grad(lambda w: jnp.sum(program(w) ** 2))(w)
    expected = jax.grad(lambda w: jnp.sum(jax.grad(value)(w) ** 2))(w)
    np.testing.assert_allclose(backward, expected, rtol=1e-4, atol=1e-6)


def fails(*_inputs, **_params):
    raise AttributeError("as another version of JAX would")


@pytest.mark.parametrize(
    "row", [fails, lambda *_, **__: None, lambda x, *_, **__: x], ids=["fails", "none", "form"]
)
def test_what_the_pass_cannot_replace_stays(row):
    w, x = normal(0, 3, 3, 4, 5), normal(1, 2, 6, 6, 4)
    got = jax.jit(rewritten(layer, {"conv_general_dilated": row}))(w, x)
    np.testing.assert_array_equal(got, jax.jit(layer)(w, x))


@pytest.mark.thorough
def test_a_replacement_of_a_loop_is_rewritten_by_the_other_rows():
    w, x, seen = normal(0, 3, 3, 4, 4), normal(1, 2, 6, 6, 4), []

    def unrolled(*inputs, jaxpr, length, **_):
        for _ in range(length):
            inputs = [inputs[0], *jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *inputs)]
        return inputs[1:]

    table = counted(seen) | {"scan": unrolled}
    got = jax.jit(rewritten(HOLDERS["scan"], table))(w, x)
    assert seen == [True, True]
    np.testing.assert_allclose(got, jax.jit(HOLDERS["scan"])(w, x), rtol=1e-4, atol=1e-5)


def linen_net():
    from flax import linen

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.max_pool(linen.relu(linen.Conv(6, (3, 3))(x)), (2, 2), (2, 2))
            return linen.Dense(10)(x.reshape(len(x), -1))

    return Net()


def equinox_net():
    import equinox as eqx

    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        out: eqx.nn.Linear

        def __init__(self, key):
            first, second = jax.random.split(key)
            self.conv = eqx.nn.Conv2d(1, 6, 3, padding=1, key=first)
            self.out = eqx.nn.Linear(6 * 6 * 6, 10, key=second)

        def __call__(self, x):
            x = eqx.nn.MaxPool2d(2, 2)(jax.nn.relu(self.conv(x)))
            return self.out(x.reshape(-1))

    return Net


def haiku_net():
    import haiku as hk

    def net(x):
        x = hk.max_pool(jax.nn.relu(hk.Conv2D(6, 3)(x[..., None])), (2, 2, 1), (2, 2, 1), "VALID")
        return hk.Linear(10)(hk.Flatten()(x))

    return hk.transform(net)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(linen_net, marks=pytest.mark.thorough),
        pytest.param(equinox_net, marks=pytest.mark.thorough),
        pytest.param(haiku_net, marks=pytest.mark.thorough),
    ],
)
def test_nets_train_the_same_with_and_without_the_pass(make, monkeypatch):
    x = np.abs(normal(0, 12, 12, 12))
    data = fedmom.from_arrays(x, np.arange(12) % 10, np.repeat([0, 1], 6))
    work = fedmom.LocalWork(lr=0.1, steps=4, batch_size=3)
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), work)

    def one_round(table):
        monkeypatch.setattr(rewriting, "REPLACEMENTS", table)
        workload = fedmom.Workload(data, fedmom.model(make(), data), algorithm)
        runtime = fedmom.LocalRuntime(workload)
        ((state, _),) = fedmom.train(runtime, pace=fedmom.synchronous(2), rounds=1)
        return workload, state.params

    convolutions, pools = [], []
    _, plain = one_round({})
    workload, fast = one_round(counted(convolutions) | counted(pools, "select_and_scatter_add"))
    assert all(convolutions)
    assert len(convolutions) >= 2
    assert all(pools)
    assert pools
    first = workload.params()
    moved = [jax.tree.leaves(jax.tree.map(jnp.subtract, p, first)) for p in (plain, fast)]
    for one, other in zip(*moved, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)
    assert client_programs.fast is rewriting.fast


def test_programs_of_built_in_nets_stay_as_they_are():
    model = fedmom.build_model("leaf_cnn", fedmom.Features("image", (28, 28), 62))
    assert rewriting.fast(layer, model) is layer


@pytest.mark.thorough
def test_gradients_over_many_clients_are_rewritten_too(monkeypatch):
    from fedmom.training.subproblem import Subproblem

    x = np.abs(normal(0, 12, 8, 8))
    data = fedmom.from_arrays(x, np.arange(12) % 10, np.repeat([0, 1], 6))
    found = []
    for table in ({}, dict(REPLACEMENTS)):
        monkeypatch.setattr(rewriting, "REPLACEMENTS", table)
        model = fedmom.model(linen_net(), data)
        sample, params = (
            Subproblem(model, data, clients=2, samples=6),
            model.init(jax.random.key(0)),
        )
        _, gradient = sample.gradient(params)
        found.append((gradient, sample.hessian_product(params, gradient)))
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
