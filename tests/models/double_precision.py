"""What is to hold in a process of JAX in 64 bits; ``test_double_precision`` runs it there."""

import itertools
import sys
import tempfile
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedmom
from fedmom.algorithms import ALGORITHMS
from fedmom.models.kernels import by_convolution, by_product, by_toom_cook
from tests.models.conv_by_hand import by_hand
from tests.models.test_lstm import textbook


def close(got, expected):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == np.float64, one.dtype
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12 * np.abs(other).max())


def layers():
    """Convolutions, against XLA's own and gradients by hand."""
    rng = np.random.default_rng(0)
    for form, channels, padding in itertools.product(
        (by_product, by_toom_cook), (1, 6), ("SAME", "VALID")
    ):
        x, w = rng.normal(size=(3, 12, 14, channels)), rng.normal(size=(5, 5, channels, 4))
        layer = {"w": jnp.asarray(w), "b": jnp.asarray(rng.normal(size=4))}
        out = form(layer, jnp.asarray(x), padding)
        close(out, by_convolution(layer, jnp.asarray(x), padding))
        if padding == "SAME":
            share = rng.normal(size=out.shape)

            def value(layer, x, form=form, share=share):
                return jnp.sum(form(layer, x, "SAME") * share)

            of_layer, of_x = jax.grad(value, (0, 1))(layer, jnp.asarray(x))
            close((of_layer["w"], of_layer["b"], of_x), by_hand(w, layer["b"], x, share))


def rewritten():
    """Convolutions of users' nets and all gradients, second ones too, against XLA's own."""
    from fedmom.models.rewriting import REPLACEMENTS
    from fedmom.models.rewriting.walk import rewritten as fast

    rng = np.random.default_rng(0)
    axes = "NHWC", "HWIO", "NHWC"
    for groups, channels, filters, strides, dilation, pads in (
        (1, 3, 8, (1, 1), (1, 1), ((1, 1), (2, 0))),
        (1, 18, 4, (2, 1), (1, 2), ((0, 1), (-1, 2))),
        (2, 4, 6, (1, 2), (2, 1), ((1, 1), (1, 1))),
        (5, 5, 10, (2, 2), (1, 1), ((1, 0), (0, 1))),
    ):
        x, w = (
            rng.normal(size=(4, 8, 8, channels)),
            rng.normal(size=(3, 2, channels // groups, filters)),
        )

        def value(x, w, groups=groups, how=(strides, pads, (1, 1), dilation)):
            y = jax.lax.conv_general_dilated(
                x, w, *how, dimension_numbers=axes, feature_group_count=groups
            )
            return jnp.sum(jnp.sin(y))

        def derivatives(x, w, value=value):
            gradient = jax.grad(value, (0, 1))
            return gradient(x, w), jax.jvp(gradient, (x, w), (jnp.cos(x), jnp.sin(w)))[1]

        close(jax.jit(fast(derivatives, REPLACEMENTS))(x, w), jax.jit(derivatives)(x, w))


def lstm():
    """The LSTM's values and gradients, against the loop as it stands."""
    from fedmom.models.kernels.lstm import lstm

    rng = np.random.default_rng(0)
    symbols = jnp.asarray(rng.integers(0, 7, (3, 9)))
    weights = jnp.asarray(rng.normal(size=(7, 20))), jnp.asarray(rng.normal(size=(5, 20)))
    for layer in (lambda f: f, lambda f: jax.grad(lambda w: jnp.sum(jnp.sin(f(w))))):
        close(
            layer(lambda w: lstm(*w, symbols))(weights),
            layer(lambda w: textbook(*w, symbols))(weights),
        )


def run(data, model=None, **how):
    """Run some rounds; what was saved must fit what is made anew."""
    path = Path(tempfile.mkdtemp()) / "run"
    how = {"rounds": 2, "lr": 0.01, "progress": False} | how
    run = fedmom.run(data, model=model, out=path, **how)
    assert run.status == "finished"
    assert run.params is not None


def nets():
    """All built-in nets run."""
    for model in ("lenet5", "leaf_cnn"):
        run("glyphs:writers=2,samples=10", model, clients_per_round=1, local_steps=1)
    texts = fedmom.from_texts(dict.fromkeys("abc", "to be or not to be " * 3), window=8)
    run(texts, fedmom.build_model("char_lstm:hidden=8", texts.features))


def servers():
    """The states of all servers keep their type, under any weighting."""
    for name in ALGORITHMS._rows:
        run("synthetic:clients=4", "logreg", algorithm=name)
    for weighting in ("cohort", "uniform"):
        run("synthetic:clients=4", "logreg", weighting=weighting)


if __name__ == "__main__":
    assert jax.config.jax_enable_x64
    warnings.simplefilter("ignore")
    {f.__name__: f for f in (layers, lstm, nets, rewritten, servers)}[sys.argv[1]]()
