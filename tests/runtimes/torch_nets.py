"""Modules of PyTorch with the same nets in JAX, on the same parameters."""

import os
import signal

import jax
import jax.numpy as jnp
import torch
from torch import nn

import fedmom


def twin(module, data, apply, **options):
    """A model that PyTorch trains as a module, and JAX as a function of its parameters."""
    return fedmom.model(module, data, convert=False, **options)._replace(apply=apply)


def linear(data):
    torch.manual_seed(0)
    module = nn.Linear(data.features.shape[0], data.features.classes)
    return twin(module, data, lambda p, x, _key: x @ p["weight"].T + p["bias"])


def layers(params):
    """The parameters of ``linear`` as those of ``logreg``."""
    return [{"w": jnp.asarray(params["weight"]).T, "b": jnp.asarray(params["bias"])}]


class LeNet(nn.Module):
    """With ``view``, as tutorials have it: it needs its inputs to be contiguous."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 3)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv1(x).relu(), 2)
        x = nn.functional.max_pool2d(self.conv2(x).relu(), 2)
        x = x.contiguous().view(len(x), -1)
        return self.fc3(self.fc2(self.fc1(x).relu()).relu())


def lenet(data):
    torch.manual_seed(0)

    def conv(p, name, x, padding):
        found = jax.lax.conv_general_dilated(
            x, p[f"{name}.weight"], (1, 1), padding, dimension_numbers=("NCHW", "OIHW", "NCHW")
        )
        x = jax.nn.relu(found + p[f"{name}.bias"][:, None, None])
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def apply(p, x, _key):
        x = conv(p, "conv1", x[:, None], [(2, 2), (2, 2)])
        x = conv(p, "conv2", x, "VALID").reshape(len(x), -1)
        for name in ("fc1", "fc2"):
            x = jax.nn.relu(x @ p[f"{name}.weight"].T + p[f"{name}.bias"])
        return x @ p["fc3.weight"].T + p["fc3.bias"]

    return twin(LeNet(), data, apply)


def normed(data):
    """A linear layer behind batch norm, whose buffers are state."""
    torch.manual_seed(0)
    width, momentum = data.features.shape[0], 0.1
    module = nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, data.features.classes))

    def scaled(p, x, mean, variance):
        x = (x - mean) / jnp.sqrt(variance + 1e-5) * p["0.weight"] + p["0.bias"]
        return x @ p["1.weight"].T + p["1.bias"]

    def apply(v, x, _key):
        return scaled(v.trained, x, v.state["0.running_mean"], v.state["0.running_var"])

    def train(v, x, _key):
        mean, variance = x.mean(0), x.var(0)
        state = {
            "0.num_batches_tracked": v.state["0.num_batches_tracked"] + 1,
            "0.running_mean": (1 - momentum) * v.state["0.running_mean"] + momentum * mean,
            "0.running_var": (1 - momentum) * v.state["0.running_var"]
            + momentum * variance * len(x) / (len(x) - 1),
        }
        return scaled(v.trained, x, mean, variance), state, None

    return twin(module, data, apply)._replace(train=train)


class Moody(nn.Module):
    """Raises where an input is above 100, ends its process where one is below -100."""

    def __init__(self, width, classes):
        super().__init__()
        self.layer = nn.Linear(width, classes)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        if self.training and x.max() > 100:
            raise ValueError("too large")
        if self.training and x.min() < -100:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(self.dropout(x))
