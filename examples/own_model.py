"""Your own model: plain JAX, flax linen or flax nnx. Run: python examples/own_model.py

A model is `init(key) -> params` and `apply(params, x, key) -> logits`; `key` is for dropout and
the like, and None when the model is evaluated. The last two need flax (pip install flax).

A function of the data's features can also be used by name, `fedmom run --model own_net`: give your
own package an entry point in the group "fedmom.models", such as own_net = "own_model:plain".
"""

import jax
import jax.numpy as jnp
from flax import linen, nnx

import fedmom


def plain(features):
    """Two layers in plain JAX."""

    def init(key):
        k1, k2 = jax.random.split(key)
        return {
            "hidden": 0.1 * jax.random.normal(k1, (*features.shape, 32)),
            "out": 0.1 * jax.random.normal(k2, (32, features.classes)),
        }

    def apply(params, x, _key):
        return jnp.tanh(x @ params["hidden"]) @ params["out"]

    return fedmom.Model(init, apply)


def from_linen(features):
    """A linen module: its init and apply are a model already, but for the names of the keys."""
    net = linen.Sequential([linen.Dense(32), linen.relu, linen.Dense(features.classes)])

    def init(key):
        return net.init(key, jnp.zeros((1, *features.shape)))

    return fedmom.Model(init, lambda params, x, _key: net.apply(params, x))


class Net(nnx.Module):
    def __init__(self, features, rngs):
        self.hidden = nnx.Linear(features.shape[0], 32, rngs=rngs)
        self.out = nnx.Linear(32, features.classes, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))


def from_nnx(features):
    """An nnx module: split it into the graph, which stays, and the state, which is trained."""
    graph, _ = nnx.split(Net(features, nnx.Rngs(0)))

    def init(key):
        return nnx.state(Net(features, nnx.Rngs(key)))

    return fedmom.Model(init, lambda params, x, _key: nnx.merge(graph, params)(x))


def main():
    data = fedmom.load_data("synthetic")
    algorithm = fedmom.Algorithm(fedmom.fedmom(learning_rate=data.clients / 5, momentum=0.9))
    work = fedmom.LocalWork(lr=0.005, steps=10)
    samples = data.train.size
    pace = fedmom.synchronous(fedmom.uniform(samples), 5)
    for make in (plain, from_linen, from_nnx):
        model = make(data.features)
        runtime = fedmom.LocalRuntime(data, model, work, algorithm)
        start = fedmom.start(model, algorithm)
        for state, record in fedmom.train(
            start, runtime, algorithm, pace=pace, samples=samples, rounds=60
        ):
            if record.round % 20 == 0:
                metrics = fedmom.evaluate(runtime, state.params, "test")
                print(f"{make.__name__} round {record.round}: accuracy {metrics.accuracy:.3f}")


if __name__ == "__main__":
    main()
