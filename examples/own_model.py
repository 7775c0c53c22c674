"""Your own model: plain JAX, flax linen or flax nnx. Run: python examples/own_model.py

`fedmom.model` takes a net of flax, equinox or haiku, or two plain functions (docs/models.md has all
of them). The last two here need flax (pip install flax).

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

    return fedmom.model((init, apply), features, metrics=["accuracy", "top:k=3"])


class NormedNet(linen.Module):
    classes: int

    @linen.compact
    def __call__(self, x, train):
        x = linen.BatchNorm(momentum=0.9, use_running_average=not train)(linen.Dense(32)(x))
        return linen.Dense(self.classes)(linen.relu(x))


def from_linen(features):
    """A linen module with batch norm; every client keeps its own norm layers (FedBN)."""
    return fedmom.model(NormedNet(features.classes), features, state="local")


class DroppedNet(nnx.Module):
    def __init__(self, features, rngs):
        self.hidden = nnx.Linear(features.shape[0], 32, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(32, features.classes, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(nnx.relu(self.hidden(x))))


def from_nnx(features):
    """An nnx module with dropout, made anew for every seed."""
    return fedmom.model(lambda rngs: DroppedNet(features, rngs), features)


def main():
    data = fedmom.load_data("synthetic:clients=10")
    work = fedmom.LocalWork(lr=0.005, steps=10)
    algorithm = fedmom.Algorithm(fedmom.servers.fedmom(momentum=0.9), work)
    pace = fedmom.synchronous(data.clients)  # everybody, every round
    for make in (plain, from_linen, from_nnx):
        runtime = fedmom.LocalRuntime(fedmom.Workload(data, make(data.features), algorithm))
        for state, record in fedmom.train(runtime, pace=pace, rounds=60):
            if record.round % 20 == 0:
                metrics = fedmom.evaluate(runtime, state.params, "test")
                print(f"{make.__name__} round {record.round}: accuracy {metrics.accuracy:.3f}")


if __name__ == "__main__":
    main()
