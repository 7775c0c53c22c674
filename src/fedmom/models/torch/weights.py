"""Trained weights back in a PyTorch module."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.models.variables import Variables, listed, parameter_names, unite


def load(module: Any, params: Any) -> Any:
    """Load a model's parameters and state into a module, under the same names.

    Args:
        module: The module.
        params: All parameters of the model: a dict by name, or ``Variables`` of such dicts.

    Returns:
        The module.
    """
    import torch

    if not isinstance(module, torch.nn.Module):
        raise FedMomError(f"to_torch: module is {short(module)}. It must be a torch.nn.Module.")
    found = _named(params)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    lost = dict(module.named_parameters()).keys() - found.keys()
    if lost or found.keys() - own.keys():
        named = sorted(lost) or sorted(found.keys() - own.keys())
        raise FedMomError(
            f"to_torch: {named[0]} is a parameter or buffer of"
            f" {'the module' if lost else 'the model'} only. Give a module like the one that was"
            f" trained; the model has: {listed(found)}."
        )
    for name, value in found.items():
        if tuple(own[name].shape) != value.shape:
            raise FedMomError(
                f"to_torch: {name} has shape {tuple(own[name].shape)} in the module, and"
                f" {value.shape} in the model."
            )
    with torch.no_grad():
        for name, value in found.items():
            array = np.asarray(jnp.asarray(value, jnp.float32) if _is_short(value) else value)
            own[name].copy_(torch.from_numpy(array.copy()))
    return module


def _is_short(value: Any) -> bool:
    """Return whether NumPy has the type of an array from elsewhere, as bfloat16."""
    return np.dtype(value.dtype).kind == "V"


def _named(params: Any) -> dict[str, Any]:
    """Return trained parameters and state as one dict."""
    if isinstance(params, Variables):
        own = params.own_trained
        trained = params.trained if own is None else unite(params.trained, own)
        state = params.own_state if params.state is None else params.state
        return {**_named(trained), **_named(state)}
    if not (isinstance(params, dict) and all(hasattr(v, "shape") for v in params.values())):
        raise FedMomError(
            "to_torch: the run's model was not made of a PyTorch module. Its parameters are:"
            f" {listed(parameter_names(params))}."
        )
    return params
