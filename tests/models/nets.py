"""One small net in every library: dense 3, batch norm, relu, dropout, dense 3, on vectors of 4."""

import jax
import jax.numpy as jnp

INPUTS, HIDDEN, OUTPUTS = 4, 3, 3
RATE = 0.4


def linen_net(norm=True, rate=RATE):
    from flax import linen

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x, train):
            x = linen.Dense(HIDDEN)(x)
            if norm:
                x = linen.BatchNorm(momentum=0.9, use_running_average=not train)(x)
            x = linen.Dropout(rate, deterministic=not train)(linen.relu(x))
            return linen.Dense(OUTPUTS)(x)

    return Net()


def nnx_net(norm=True, rate=RATE):
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.Linear(INPUTS, HIDDEN, rngs=rngs)
            if norm:
                self.norm = nnx.BatchNorm(HIDDEN, momentum=0.9, rngs=rngs)
            self.dropout = nnx.Dropout(rate, rngs=rngs)
            self.out = nnx.Linear(HIDDEN, OUTPUTS, rngs=rngs)

        def __call__(self, x):
            x = self.hidden(x)
            x = self.norm(x) if norm else x
            return self.out(self.dropout(nnx.relu(x)))

    return Net


def equinox_net(norm=True, rate=RATE):
    import equinox as eqx

    class Net(eqx.Module):
        hidden: eqx.nn.Linear
        norm: eqx.nn.BatchNorm | None
        dropout: eqx.nn.Dropout
        out: eqx.nn.Linear

        def __init__(self, key):
            first, second = jax.random.split(key)
            self.hidden = eqx.nn.Linear(INPUTS, HIDDEN, key=first)
            self.norm = (
                eqx.nn.BatchNorm(HIDDEN, "rows", momentum=0.9, mode="batch") if norm else None
            )
            self.dropout = eqx.nn.Dropout(rate)
            self.out = eqx.nn.Linear(HIDDEN, OUTPUTS, key=second)

    class WithState(Net):
        def __call__(self, x, state, key=None):
            x, state = self.norm(self.hidden(x), state)
            return self.out(self.dropout(jax.nn.relu(x), key=key)), state

    class Without(Net):
        def __call__(self, x, key=None):
            return self.out(self.dropout(jax.nn.relu(self.hidden(x)), key=key))

    return WithState if norm else Without


def haiku_net(norm=True, rate=RATE):
    import haiku as hk

    def net(x, is_training):
        x = hk.Linear(HIDDEN)(x)
        if norm:
            x = hk.BatchNorm(True, True, 0.9)(x, is_training)
        x = jax.nn.relu(x)
        x = hk.dropout(hk.next_rng_key(), rate, x) if is_training else x
        return hk.Linear(OUTPUTS)(x)

    return hk.transform_with_state(net) if norm else hk.transform(net)


def draw(key):
    """Parameters of the net in plain JAX."""
    first, second = jax.random.split(key)
    return {
        "hidden": {"w": jax.random.normal(first, (INPUTS, HIDDEN)), "b": jnp.zeros(HIDDEN)},
        "norm": {"scale": jnp.ones(HIDDEN), "shift": jnp.zeros(HIDDEN)},
        "out": {"w": jax.random.normal(second, (HIDDEN, OUTPUTS)), "b": jnp.zeros(OUTPUTS)},
    }


def plain_net(momentum=0.9):
    """Batch norm in plain JAX, without dropout."""

    def init(key):
        return draw(key), {"norm": {"mean": jnp.zeros(HIDDEN), "var": jnp.ones(HIDDEN)}}

    def apply(params, state, x, key):
        x = x @ params["hidden"]["w"] + params["hidden"]["b"]
        mean, var = state["norm"]["mean"], state["norm"]["var"]
        if key is not None:
            here = x.mean(0), x.var(0)
            kept = momentum * mean + (1 - momentum) * here[0]
            spread = momentum * var + (1 - momentum) * here[1]
            (mean, var), state = here, {"norm": {"mean": kept, "var": spread}}
        x = (x - mean) / jnp.sqrt(var + 1e-5) * params["norm"]["scale"] + params["norm"]["shift"]
        return jax.nn.relu(x) @ params["out"]["w"] + params["out"]["b"], state

    return init, apply


NETS = {"linen": linen_net, "nnx": nnx_net, "equinox": equinox_net, "haiku": haiku_net}
