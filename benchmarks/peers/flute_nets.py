"""The two nets of FLUTE's larger tasks, in plain JAX, as their authors describe them."""

import jax
import jax.numpy as jnp

import fedmom


def cnn(data: fedmom.FederatedData) -> fedmom.Model:
    """Two convolutions of 3x3 (32, 64), pool, dense 128; dropout 0.25 and 0.5."""
    glorot = jax.nn.initializers.glorot_uniform()
    shapes = {"one": (3, 3, 1, 32), "two": (3, 3, 32, 64), "dense": (9216, 128)}
    shapes["out"] = (128, data.features.classes)

    def init(key):
        keys = jax.random.split(key, len(shapes))
        return {
            name: {"w": glorot(k, shape), "b": jnp.zeros(shape[-1])}
            for k, (name, shape) in zip(keys, shapes.items(), strict=True)
        }

    def apply(params, x, key):
        keys = (None, None) if key is None else jax.random.split(key)
        x = _convolved(params["two"], _convolved(params["one"], x[..., None]))
        x = x.reshape(len(x), 12, 2, 12, 2, 64).max((2, 4)).reshape(len(x), -1)
        x = jax.nn.relu(_linear(params["dense"], _dropout(x, 0.25, keys[0])))
        return _linear(params["out"], _dropout(x, 0.5, keys[1]))

    return fedmom.model((init, apply), data)


def rnn(data: fedmom.FederatedData) -> fedmom.Model:
    """Embedding 8, two LSTM layers of 256, the next character from the last position."""
    symbols, sizes = data.features.classes, ((8, 256), (256, 256))

    def init(key):
        first, last, *keys = jax.random.split(key, 2 + len(sizes))
        return {
            "embedding": jax.random.normal(first, (symbols, 8)),
            "layers": [
                {"w": _uniform(k, (a + b, 4 * b), b), "b": jnp.zeros(4 * b)}
                for k, (a, b) in zip(keys, sizes, strict=True)
            ],
            "out": {"w": _uniform(last, (256, symbols), 256), "b": jnp.zeros(symbols)},
        }

    def apply(params, x, _key):
        sequence = jnp.swapaxes(params["embedding"][x], 0, 1)
        for layer in params["layers"]:
            sequence = _lstm(layer, sequence)
        return _linear(params["out"], sequence[-1])

    return fedmom.model((init, apply), data)


def _lstm(layer, sequence):
    size = layer["w"].shape[1] // 4
    inputs = sequence @ layer["w"][:-size] + layer["b"]

    def step(carry, given):
        hidden, cell = carry
        i, f, g, o = jnp.split(given + hidden @ layer["w"][-size:], 4, axis=1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    zero = jnp.zeros((sequence.shape[1], size))
    return jax.lax.scan(step, (zero, zero), inputs)[1]


def _convolved(layer, x):
    """Convolve by one product with the patches: XLA's own gradients take far longer on a CPU."""
    side = layer["w"].shape[0]
    height, width = (size - side + 1 for size in x.shape[1:3])
    shifts = [(i, j) for i in range(side) for j in range(side)]
    patches = jnp.concatenate([x[:, i : i + height, j : j + width] for i, j in shifts], -1)
    return jax.nn.relu(patches @ layer["w"].reshape(patches.shape[-1], -1) + layer["b"])


def _linear(layer, x):
    return x @ layer["w"] + layer["b"]


def _dropout(x, rate, key):
    if key is None:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0.0)


def _uniform(key, shape, size):
    return jax.random.uniform(key, shape, minval=-(size**-0.5), maxval=size**-0.5)
