"""Models against references: sizes by formula, layers by NumPy loops, dropout by its law."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from fedmom.core.errors import FedMomError
from fedmom.data.federated import Features
from fedmom.models import MODELS, build
from fedmom.models.base import dropout
from fedmom.models.kernels import LARGE

IMAGE = Features("image", (28, 28), 62)
VECTOR = Features("vector", (60,), 10)
TEXT = Features("text", (80,), 80)
FITTING = {
    "char_gpt": [TEXT],
    "char_lstm": [TEXT],
    "lenet5": [IMAGE, Features("image", (32, 32, 3), 10)],
    "leaf_cnn": [IMAGE],
    "logreg": [IMAGE, VECTOR],
    "mlp": [IMAGE, VECTOR],
}
CASES = [(name, f) for name, fitting in FITTING.items() for f in fitting]


def inputs(features, count=3, seed=0):
    rng = np.random.default_rng(seed)
    shape = (count, *features.shape)
    if features.kind == "text":
        return rng.integers(0, features.classes, shape).astype(np.int32)
    return rng.random(shape).astype(np.float32)


def size(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_every_model_is_tested():
    assert FITTING.keys() == MODELS.keys()


@pytest.mark.parametrize(("name", "features"), CASES)
def test_logits_per_sample_that_do_not_depend_on_the_rest_of_the_batch(name, features):
    model = build(name, features)
    params = model.init(jax.random.key(0))
    x, others = inputs(features), inputs(features, seed=1)
    apply = jax.jit(model.apply, static_argnums=2)
    logits = np.asarray(apply(params, x, None))
    assert logits.shape == (3, features.classes)
    for i in range(3):
        company = np.roll(others, i, axis=0)
        company[2 - i] = x[i]  # in another place, among others
        found = np.asarray(apply(params, company, None))
        np.testing.assert_allclose(found[2 - i], logits[i], rtol=1e-4, atol=1e-5)
    losses = model.loss(logits, np.arange(3))
    expected = scipy.special.logsumexp(logits, axis=1) - logits[np.arange(3), np.arange(3)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["lenet5", "leaf_cnn", "logreg"])
@pytest.mark.parametrize("count", [3, LARGE + 1])  # large batches take XLA's own convolution
def test_pixels_may_be_whole_numbers(name, count):
    features = Features("image", (12, 12), 5)
    model = build(name, features)
    params = model.init(jax.random.key(0))
    x = np.random.default_rng(0).integers(0, 256, (count, 12, 12)).astype(np.int32)
    apply = jax.jit(model.apply, static_argnums=2)
    whole, floats = (apply(params, pixels, None) for pixels in (x, x.astype(np.float32)))
    np.testing.assert_array_equal(whole, floats)


def test_equal_models_are_one_object():
    assert build("mlp:hidden=5", VECTOR) is build("mlp:hidden=5", Features("vector", (60,), 10))


def test_first_parameters_are_the_same_inside_another_program():
    model = build("mlp:hidden=4,layers=1", VECTOR)
    alone, inside = model.init(jax.random.key(4)), jax.jit(model.init)(jax.random.key(4))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), alone, inside)


def test_sizes_are_the_papers():
    def count(name, features):
        return size(jax.eval_shape(build(name, features).init, jax.random.key(0)))

    dense = [(400, 120), (120, 84), (84, 62)]
    lenet = (25 + 1) * 6 + (25 * 6 + 1) * 16 + sum((a + 1) * b for a, b in dense)
    assert count("lenet5", IMAGE) == lenet
    leaf = (25 + 1) * 32 + (25 * 32 + 1) * 64 + (7 * 7 * 64 + 1) * 2048 + 2049 * 62
    assert count("leaf_cnn", IMAGE) == leaf
    lstm = 80 * 8 + (8 + 128 + 1) * 4 * 128 + (128 + 1) * 80
    assert count("char_lstm", TEXT) == lstm
    block = 12 * 64 * 64 + 13 * 64
    assert count("char_gpt", TEXT) == (80 + 80) * 64 + 2 * block + 2 * 64
    untied = "char_gpt:layers=8,width=512,heads=8,tied=false"
    assert count(untied, TEXT) == (3 * 80) * 512 + 8 * (12 * 512 * 512 + 13 * 512) + 2 * 512
    assert count("logreg", VECTOR) == 61 * 10
    assert count("mlp", IMAGE) == 785 * 200 + 201 * 200 + 201 * 62


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def test_the_lstm_is_the_textbooks():
    features = Features("text", (6,), 9)
    model = build("char_lstm:embedding=3,hidden=4", features)
    params = model.init(jax.random.key(1))
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    x = inputs(features, count=2)
    h, c = np.zeros((2, 4)), np.zeros((2, 4))
    for t in range(6):
        e = p["embedding"][np.asarray(x[:, t])]
        z = e @ p["input"]["w"] + p["input"]["b"] + h @ p["recurrent"]
        i, f, g, o = np.split(z, 4, axis=1)
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
    expected = h @ p["out"]["w"] + p["out"]["b"]
    found = jax.jit(model.apply, static_argnums=2)(params, x, None)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def layer_norm(norm, x):
    centred = x - x.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return centred / spread * norm["scale"] + norm["bias"]


def dense(layer, x):
    return x @ layer["w"] + layer["b"]


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gpt(p, codes, heads):
    """The transformer for one text, position by position and head by head."""
    x = p["embedding"][codes] + p["positions"]
    for block in p["blocks"]:
        inner = layer_norm(block["norm1"], x)
        q, k, v = (dense(block[name], inner) for name in ("query", "key", "value"))
        mixed = np.zeros_like(x)
        for part in np.split(np.arange(x.shape[1]), heads):
            for t in range(len(x)):
                scores = q[t, part] @ k[: t + 1, part].T / np.sqrt(len(part))
                weights = np.exp(scores) / np.exp(scores).sum()
                mixed[t, part] = weights @ v[: t + 1, part]
        x = x + dense(block["out"], mixed)
        x = x + dense(block["down"], gelu(dense(block["up"], layer_norm(block["norm2"], x))))
    return layer_norm(p["norm"], x) @ p.get("out", p["embedding"].T)


@pytest.mark.parametrize("options", ["", ",tied=false,remat=true", ",context=4"])
@pytest.mark.parametrize("task", ["classes", "sequence"])
def test_the_transformer_is_its_loops(options, task):
    features = Features("text", (6,), 9, task)
    spec = f"char_gpt:layers=2,width=8,heads=2{options}"
    if "context" in options and task == "sequence":
        with pytest.raises(FedMomError, match="Leave context out"):
            build(spec, features)
        return
    model = build(spec, features)
    # Larger weights than the first ones: all of them must matter.
    params = jax.tree.map(lambda a: 10 * a, model.init(jax.random.key(3)))
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    x = inputs(features, count=2)
    read = x[:, -4:] if "context" in options else x
    expected = np.stack([gpt(p, codes, heads=2) for codes in read])
    expected = expected if task == "sequence" else expected[:, -1]
    found = jax.jit(model.apply, static_argnums=2)(params, x, None)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_what_is_computed_again_has_the_same_gradient_and_takes_less_memory():
    """With 6 blocks, less than half: the inside of one is kept, and the stream between them."""
    found, memory = [], []
    for remat in ("", ",remat=true"):
        model = build(f"char_gpt:layers=6,width=16,heads=2{remat}", TEXT)
        loss = jax.jit(jax.grad(lambda p, m=model: m.apply(p, inputs(TEXT), None).sum()))
        params = model.init(jax.random.key(0))
        compiled = loss.lower(params).compile()
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
        found.append(compiled(params))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), *found)
    assert memory[1] < memory[0] / 2


def conv_relu_pool(x, layer, pad):
    w, b = layer["w"], layer["b"]
    x = np.pad(x, ((pad, pad), (pad, pad), (0, 0)))
    rows, cols = x.shape[0] - 4, x.shape[1] - 4
    out = np.array(
        [
            [np.einsum("ijc,ijco->o", x[r : r + 5, q : q + 5], w) for q in range(cols)]
            for r in range(rows)
        ]
    )
    out = np.maximum(out + b, 0)[: rows // 2 * 2, : cols // 2 * 2]
    return out.reshape(rows // 2, 2, cols // 2, 2, -1).max(axis=(1, 3))


@pytest.mark.parametrize("name", ["lenet5", "leaf_cnn"])
def test_the_convolutional_nets_are_their_loops(name):
    features = Features("image", (12, 12), 5)
    model = build(name, features)
    params = model.init(jax.random.key(2))
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    image = inputs(features, count=1)
    x = conv_relu_pool(np.asarray(image[0], np.float64)[..., None], p["conv1"], 2)
    x = conv_relu_pool(x, p["conv2"], 0 if name == "lenet5" else 2).ravel()
    for layer in ("dense1", "dense2") if name == "lenet5" else ("dense",):
        x = np.maximum(x @ p[layer]["w"] + p[layer]["b"], 0)
    expected = x @ p["out"]["w"] + p["out"]["b"]
    found = jax.jit(model.apply, static_argnums=2)(params, image, None)
    np.testing.assert_allclose(found[0], expected, rtol=1e-3, atol=1e-5)


def test_dropout_keeps_the_mean_and_is_off_in_evaluation():
    x = jnp.ones(40_000)
    dropped = dropout(x, 0.25, jax.random.key(0))
    assert set(np.unique(dropped).round(5)) == {0.0, np.float32(1 / 0.75).round(5)}
    # Standard deviation of the mean: sqrt(p / (1 - p) / n).
    assert abs(float(dropped.mean()) - 1) < 6 * np.sqrt(0.25 / 0.75 / 40_000)
    model = build("leaf_cnn", Features("image", (12, 12), 5))
    params, image = model.init(jax.random.key(0)), inputs(Features("image", (12, 12), 5))
    trained = model.apply(params, image, jax.random.key(1))
    assert not np.allclose(trained, model.apply(params, image, None))


@pytest.mark.parametrize(
    ("spec", "features", "says"),
    [
        ("char_lstm", IMAGE, "char_lstm reads text data, but this data is image"),
        ("lenet5", TEXT, "lenet5 reads image data"),
        ("lenet5", Features("image", (8, 8), 2), "at least 12x12, not 8x8"),
        ("lenet", IMAGE, "There is no model 'lenet'. Did you mean 'lenet5'"),
        ("mlp:width=3", VECTOR, "mlp has no option 'width'. Its options: hidden, layers"),
        ("mlp:hidden=0", VECTOR, "hidden=0"),
        ("mlp:hidden=many", VECTOR, "hidden='many' is not of type int"),
        ("mlp:hidden", VECTOR, "'hidden' in 'mlp:hidden' is not an option"),
        ("leaf_cnn:dropout_rate=1", IMAGE, r"not in \[0, 1\)"),
        ("char_lstm:hidden=0", TEXT, "hidden=0"),
        ("char_gpt", IMAGE, "char_gpt reads text data, but this data is image"),
        ("char_gpt:width=10,heads=4", TEXT, "width must be a multiple of heads"),
        ("char_gpt:context=81", TEXT, "read in windows of 80"),
    ],
)
def test_mistakes_are_sentences(spec, features, says):
    with pytest.raises(FedMomError, match=says):
        build(spec, features)
