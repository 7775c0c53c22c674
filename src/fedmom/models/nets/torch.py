"""Nets of PyTorch, converted: a module's parameters and buffers by their names in it."""

from typing import Any

import jax

from fedmom.core.types import Params
from fedmom.models.nets import Net
from fedmom.models.torch.graph import Converted


def net(converted: Converted) -> Net:
    """Return a converted module as two functions. It starts from the weights that it has."""

    def init(_key: jax.Array) -> tuple[Params, Any]:
        return jax.device_put((converted.params, converted.state))

    return Net(init, converted.apply, _norms)


def _norms(params: Params, state: Any) -> Params:
    """Say of every parameter whether its layer has a buffer that training changes."""
    layers = {name.rpartition(".")[0] for name in state}
    return {name: name.rpartition(".")[0] in layers for name in params}
