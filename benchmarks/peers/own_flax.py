"""FedMom with nets that a user brings, written in flax as its documentation writes them."""

import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import own_work as w

import fedmom


class MLP(nn.Module):
    """784-200-200."""

    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        for _ in range(2):
            x = nn.relu(nn.Dense(200)(x))
        return nn.Dense(62)(x)


class CNN(nn.Module):
    """Convolutions of 3x3, the first two with a pooling after them, and a hidden layer."""

    filters: tuple[int, ...]
    hidden: int
    classes: int

    @nn.compact
    def __call__(self, x):
        for i, filters in enumerate(self.filters):
            x = nn.relu(nn.Conv(filters, (3, 3))(x))
            if i < 2:
                x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(self.hidden)(x.reshape(len(x), -1)))
        return nn.Dense(self.classes)(x)


def norm(x):
    return nn.GroupNorm(num_groups=8)(x)


def conv(x, filters, side, stride=1, groups=1):
    padding = [(side // 2, side // 2)] * 2
    return nn.Conv(
        filters,
        (side, side),
        (stride, stride),
        padding,
        use_bias=False,
        feature_group_count=groups,
    )(x)


class ResNet20(nn.Module):
    """Three stages of three blocks, with group norm (He et al. 2015)."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(norm(conv(x, 16, 3)))
        for filters in (16, 32, 64):
            for block in range(3):
                stride = 2 if filters > 16 and block == 0 else 1
                y = norm(conv(nn.relu(norm(conv(x, filters, 3, stride))), filters, 3))
                x = norm(conv(x, filters, 1, stride)) if y.shape != x.shape else x
                x = nn.relu(x + y)
        return nn.Dense(10)(x.mean((1, 2)))


class MobileNet(nn.Module):
    """Depthwise convolutions of 3x3, each with one of 1x1 after it (Howard et al. 2017)."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(norm(conv(x, 32, 3)))
        for filters, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
            channels = x.shape[-1]
            x = nn.relu(norm(conv(x, channels, 3, stride, groups=channels)))
            x = nn.relu(norm(conv(x, filters, 1)))
        return nn.Dense(10)(x.mean((1, 2)))


class LSTM(nn.Module):
    """One layer of 128 over symbols."""

    @nn.compact
    def __call__(self, x):
        states = nn.RNN(nn.OptimizedLSTMCell(128))(nn.Embed(w.SYMBOLS, 8)(x))
        return nn.Dense(w.SYMBOLS)(states[:, -1])


class Transformer(nn.Module):
    """Four layers of width 128 with four heads, each looking back only; the next symbol."""

    @nn.compact
    def __call__(self, x):
        length = x.shape[1]
        x = nn.Embed(w.SYMBOLS, 128)(x) + nn.Embed(length, 128)(jnp.arange(length))
        mask = jnp.tril(jnp.ones((1, 1, length, length), bool))
        for _ in range(4):
            x += nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x), mask=mask)
            y = nn.Dense(512)(nn.LayerNorm()(x))
            x += nn.Dense(128)(nn.gelu(y, approximate=False))
        return nn.Dense(w.SYMBOLS)(nn.LayerNorm()(x)[:, -1])


NETS = {
    "mlp": MLP(),
    "cnn28": CNN((32, 64), 128, 62),
    "cnn32": CNN((32, 64, 64), 64, 10),
    "resnet20": ResNet20(),
    "mobilenet": MobileNet(),
    "lstm": LSTM(),
    "transformer": Transformer(),
}


def prepare(net, batch, clients):
    """Start a run without end through FedMom's public names; return its rounds, one by one."""
    x, y = w.samples(net)
    x = x.astype(np.int32) if w.WORKS[net].text else x
    ids = np.repeat(np.arange(w.CLIENTS), w.WORKS[net].samples)
    data = fedmom.from_arrays(x.reshape(-1, *x.shape[2:]), y.reshape(-1), client_ids=ids)
    work = fedmom.LocalWork(lr=w.LR, steps=w.steps(net, batch), batch_size=batch)
    server = fedmom.servers.fedavg(learning_rate=w.CLIENTS / clients)
    workload = fedmom.Workload(data, fedmom.model(NETS[net], data), fedmom.Algorithm(server, work))
    runtime = fedmom.LocalRuntime(workload)
    rounds = fedmom.train(runtime, pace=fedmom.synchronous(clients), rounds=10**6)

    def play():
        began = time.process_time()
        # A round is over when its model is there, not when JAX has been told to make it.
        state, _ = next(rounds)
        jax.block_until_ready(state.params)
        return time.process_time() - began

    return play


if __name__ == "__main__":
    w.serve(prepare)
