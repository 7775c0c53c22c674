"""Images without a channel axis: nets that convolve get one where they expect it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom import Features

GRAY = Features("image", (8, 7), 2)
LAST, FIRST = (..., None), (slice(None), None)


def linen(pool=1):
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.Conv(4, (3, 3))(x)
            x = nn.BatchNorm(use_running_average=not train)(x)
            x = nn.avg_pool(x, (pool, pool), (pool, pool))
            return nn.Dense(2)(x.reshape(x.shape[0], -1))

    return Net()


def linen_nchw():
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(4, (3, 3))(x.transpose(0, 2, 3, 1))
            return nn.Dense(2)(x.reshape(x.shape[0], -1))

    return Net()


def nnx():
    from flax import nnx as nn

    class Net(nn.Module):
        def __init__(self, rngs):
            self.conv = nn.Conv(1, 4, (3, 3), rngs=rngs)
            self.out = nn.Linear(8 * 7 * 4, 2, rngs=rngs)

        def __call__(self, x):
            return self.out(self.conv(x).reshape(len(x), -1))

    return Net


def equinox():
    eqx = pytest.importorskip("equinox")

    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        out: eqx.nn.Linear

        def __init__(self, key):
            self.conv = eqx.nn.Conv2d(1, 4, 3, padding=1, key=key)
            self.out = eqx.nn.Linear(8 * 7 * 4, 2, key=key)

        def __call__(self, x):
            return self.out(self.conv(x).reshape(-1))

    return Net


def haiku(data_format="NHWC"):
    hk = pytest.importorskip("haiku")

    def net(x):
        return hk.Linear(2)(hk.Flatten()(hk.Conv2D(4, 3, data_format=data_format)(x)))

    return hk.transform(net)


def plain(axes):
    def init(key):
        out = 0.1 * jax.random.normal(key, (8 * 7 * 4, 2))
        return {"kernel": jax.random.normal(key, (3, 3, 1, 4)), "out": out}

    @jax.jit
    def apply(params, x, _key):
        form = (axes, "HWIO", axes)
        x = jax.lax.conv_general_dilated(
            x, params["kernel"], (1, 1), "SAME", dimension_numbers=form
        )
        return x.reshape(len(x), -1) @ params["out"]

    return init, apply


NETS = {
    "linen": (linen, LAST),
    "linen, whose pooling leaves nothing of a batch": (lambda: linen(2), LAST),
    "linen that transposes": (linen_nchw, FIRST),
    "nnx": (nnx, LAST),
    "equinox": (equinox, FIRST),
    "haiku": (haiku, LAST),
    "haiku NCHW": (lambda: haiku("NCHW"), FIRST),
    "plain NHWC": (lambda: plain("NHWC"), LAST),
    "plain NCHW": (lambda: plain("NCHW"), FIRST),
}


@pytest.mark.parametrize("name", NETS)
def test_a_net_that_convolves_gets_its_channel(name):
    """Its outputs are those of the same net on images that have the channel already."""
    make, place = NETS[name]
    x = np.random.default_rng(0).random((3, *GRAY.shape), np.float32)
    form = x[:1][place].shape[1:]
    key = jax.random.key(1)
    given = fedmom.model(make(), GRAY)
    whole = fedmom.model(make(), GRAY._replace(shape=form))
    params = given.init(key)
    jax.tree.map(np.testing.assert_array_equal, params, whole.init(key))
    expected = whole.apply(params, x[place], None)
    np.testing.assert_allclose(given.apply(params, x, None), expected, rtol=1e-5)
    if given.state:
        trained, changed = given.train(params, x, key)[:2]
        right, others = whole.train(params, x[place], key)[:2]
        np.testing.assert_allclose(trained, right, rtol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), changed, others)


def test_a_net_for_images_without_channels_stays_as_it_is():
    """It flattens them, or takes their rows for a sequence: no convolution is asked."""
    nn = pytest.importorskip("flax.linen")

    class Rows(nn.Module):
        @nn.compact
        def __call__(self, x):
            seen.append(x.shape[1:])
            return nn.Dense(2)(nn.Conv(4, (3,))(x).reshape(x.shape[0], -1))

    seen = []
    fedmom.model(Rows(), GRAY)
    flat = lambda _key: jnp.ones((56, 2)), lambda w, x, _key: x.reshape(len(x), -1) @ w
    model = fedmom.model(flat, GRAY)
    assert model.apply(jnp.ones((56, 2)), jnp.ones((3, 8, 7)), None).shape == (3, 2)
    assert set(seen) == {GRAY.shape}


def test_what_no_channel_helps_is_refused():
    """The message is that of the net on the images as they are."""

    def mixes(w, x, _key):
        return (x - x.mean(0)).reshape(len(x), -1) @ w

    def fails(w, x, _key):
        n, h, w_, c = x.shape
        return x.reshape(n, h * w_ * c) @ w

    init = lambda _key: jnp.ones((56, 2))  # noqa: E731
    with pytest.raises(fedmom.FedMomError, match=r"mixes the images.* x = x\[\.\.\., None\]"):
        fedmom.model((init, mixes), GRAY)
    with pytest.raises(fedmom.FedMomError, match=r"cannot be applied to images of shape \(N, 8, 7"):
        fedmom.model((init, fails), GRAY)


def test_predict_and_export_take_the_images_as_they_are(tmp_path):
    x = np.random.default_rng(0).random((20, *GRAY.shape), np.float32)
    data = fedmom.from_arrays(x, np.arange(20) % 2, np.arange(20) % 4)
    run = fedmom.run(
        data, plain("NHWC"), rounds=1, lr=1e-4, clients_per_round=2, out=tmp_path / "run"
    )
    expected = plain("NHWC")[1](run.params, x[..., None], None)
    np.testing.assert_allclose(run.outputs(x), expected, rtol=1e-4, atol=1e-5)
    pytest.importorskip("jax2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    run.export(tmp_path / "out", onnx_batch=1)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    (name,) = (i.name for i in session.get_inputs())
    (found,) = session.run(None, {name: x[:1]})
    np.testing.assert_allclose(found, expected[:1], rtol=1e-4, atol=1e-5)
    # The converter leaves a jnp.cumsum behind that does not take its axis as a second argument.
    rows = np.array([[1.0, 2, 3], [2, 4, 1], [9, 9, 9]])
    middle, *_ = fedmom.median().each(jnp.asarray(rows), jnp.ones(3), ())
    np.testing.assert_allclose(middle, np.median(rows, 0))
