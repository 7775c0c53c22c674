"""What a run says of nets that stay slow on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from jax import lax

import fedmom
from fedmom.models.rewriting import REPLACEMENTS
from fedmom.models.rewriting.notices import notices
from tests.cli.command import SMALL, invoke, words

FEATURES = fedmom.Features("image", (4, 4), 2)
MANY_GROUPS = (
    "The net has a convolution with 64 groups and filters of 3x3, which is slow on a CPU: take at"
    " most 32 groups, or one for every channel."
)


class Net(linen.Module):
    channels: int = 128
    groups: int = 1
    side: int = 3

    @linen.compact
    def __call__(self, x):
        sides = (self.side,) * (x.ndim - 1)
        x = linen.Dense(self.channels)(x[..., None])
        x = linen.Conv(self.channels, sides, feature_group_count=self.groups)(x)
        return linen.Dense(10)(x.mean(range(1, x.ndim - 1)))


def said(model):
    return notices(model, np.zeros((3, 4, 4), np.float32))


def model_of(**options):
    return fedmom.model(Net(**options), FEATURES)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, ()),
        ({"groups": 32}, ()),
        ({"groups": 64}, (MANY_GROUPS,)),
        ({"groups": 128}, ()),
        ({"groups": 128, "side": 8}, ()),
        ({"groups": 128, "side": 9}, ("128 groups and filters of 9x9", "at most 64 numbers")),
    ],
    ids=["plain", "32 groups", "64 groups", "depthwise", "64 taps", "81 taps"],
)
def test_convolutions_that_stay_slow_are_named_once(options, parts):
    texts = said(model_of(**options))
    assert len(texts) == bool(parts)
    for part in parts:
        assert part in texts[0]


def convolved(w, x, _key):
    sides = (1,) * (x.ndim - 2)
    numbers = lax.ConvDimensionNumbers(*[tuple(range(x.ndim))] * 3)
    return lax.conv_general_dilated(x, w, sides, "SAME", dimension_numbers=numbers)


def test_axes_and_types_that_the_pass_leaves_are_named():
    def own(ndim, dtype=jnp.float32):
        def apply(w, x, key):
            x = x.reshape(3, 1, *[4, 4, 1, 1][:ndim]).astype(dtype)
            return convolved(w.astype(dtype), x, key).real.astype(jnp.float32)

        return fedmom.Model(lambda _: jnp.ones((1, 1, *[1] * ndim)), apply)

    assert said(own(2)) == said(own(3)) == said(own(2, jnp.bfloat16)) == []
    (text,) = said(own(4))
    assert "a convolution over 4 axes, which is slow on a CPU: take at most 3." in text
    (text,) = said(own(2, jnp.complex64))
    assert "a convolution of complex64 numbers" in text


def test_a_net_that_cannot_be_rewritten_is_named(monkeypatch):
    def fails(*_inputs, **_params):
        raise AttributeError("as another version of JAX would\nand more")

    monkeypatch.setitem(REPLACEMENTS, "conv_general_dilated", fails)
    (text,) = said(model_of())
    assert "computed as it stands" in text
    assert jax.__version__ in text
    assert text.endswith("AttributeError: as another version of JAX would")


def test_nothing_is_said_of_others(monkeypatch):
    assert said(fedmom.build_model("lenet5", fedmom.Features("image", (28, 28), 2))) == []
    no_gradient = fedmom.Model(
        lambda _: jnp.ones(2),
        lambda w, x, _: w * lax.while_loop(lambda y: y.sum() < 1, lambda y: y + w.sum(), x).sum(),
    )
    assert said(no_gradient) == []
    slow = model_of(groups=64)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert said(slow) == []


@pytest.fixture
def told():
    """Run something; return what it warns of."""

    def call(function, *arguments, **options):
        with pytest.warns(UserWarning, match="slow on a CPU") as caught:
            found = function(*arguments, **options)
        return found, [str(each.message) for each in caught]

    return call


HOW = {"rounds": 1, "clients_per_round": 1, "local_steps": 1, "progress": False}


def population():
    x, y = np.zeros((8, 4, 4), np.float32), [0, 0, 0, 1] * 2
    return fedmom.from_arrays(x, y, np.repeat([0, 1], 4))


def test_python_says_it_once(tmp_path, told):
    data, net = population(), Net(groups=64)
    run, texts = told(fedmom.run, data, net, out=tmp_path / "run", lr=0.01, **HOW)
    assert texts == [MANY_GROUPS]
    run.resume(progress=False)  # without a warning: it has been said


@pytest.mark.thorough
def test_runs_side_by_side_say_it_once(tmp_path, told):
    how = HOW | {"data": population(), "model": Net(groups=64)}
    given = {"seeds": 2, "lr": 0.01, "out": tmp_path / "both"}
    _, texts = told(fedmom.compare, ["fedavg", "fedmom"], **given, **how)
    assert texts == [MANY_GROUPS]
    _, texts = told(fedmom.sweep, {"lr": [0.01, 0.005]}, out=tmp_path / "sweep", **how)
    assert texts == [MANY_GROUPS]


def grouped(_features):
    return Net(groups=64)


def plain(_features):
    return Net()


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "times"), [("grouped", 1), ("plain", 0)])
def test_the_command_line_says_it_once(tmp_path, name, times):
    out = tmp_path / "run"
    options = [f"--out={out}", "--local-steps=1", f"--model=@{__name__}.{name}"]
    text = words(invoke("run", *SMALL, *options))
    note = "note: The net has a convolution with 64 groups and filters of 3, which is slow on a CPU"
    assert text.count(note) == times
    assert text.count("slow on a CPU") == times
    assert "slow on a CPU" not in words(invoke("resume", out))
