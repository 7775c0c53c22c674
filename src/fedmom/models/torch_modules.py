"""PyTorch modules that stay what they are: models that clients train in PyTorch, not in JAX."""

import copy
import threading
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from numpy.typing import NDArray

from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.data.federated import Features
from fedmom.models import torch_calls
from fedmom.models.base import Model
from fedmom.models.torch_calls import Channels
from fedmom.models.variables import Variables

ROWS = 2  # of the batch that a module is tried on: batch norm needs more than one


@dataclass(frozen=True, eq=False)
class TorchModule:
    """The ``init`` of a model that is a PyTorch module: its first parameters are the module's.

    Parameters have the names of ``state_dict``. Those that do not require gradients stay in the
    module, as do buffers that are not in its ``state_dict``.

    Args:
        module: The module.
        channels: Where the channels of its inputs are in the data, if they are images.
    """

    module: torch.nn.Module
    channels: Channels = "none"

    def __call__(self, _key: Any) -> Any:
        """Return the module's parameters; with its buffers as state if it has any."""
        params = {name: _array(value) for name, value in trained(self.module).items()}
        state = {name: _array(value) for name, value in buffers(self.module).items()}
        return Variables(params, state) if state else params


def trained(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters that are trained, by name; one with two names has the first."""
    return {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}


def buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that are in the module's ``state_dict``, such as running means."""
    kept = module.state_dict().keys()
    return {n: b.detach() for n, b in module.named_buffers() if n in kept}


def torch_of(model: Model) -> TorchModule | None:
    """Return the PyTorch module that a model is, if it is one."""
    return model.init if isinstance(model.init, TorchModule) else None


def of_module(net: torch.nn.Module, features: Features, x: NDArray[Any]) -> Model:
    """Make a model of a module that is trained in PyTorch, by the runtime ``torch``.

    JAX applies it by calling PyTorch, and has no gradients of it.

    Args:
        net: The module; it is copied, with its parameters.
        features: What it must accept.
        x: A batch of one input, for its shape and type.
    """
    _check(net)
    module = copy.deepcopy(net).eval()
    batch = torch.from_numpy(np.repeat(x, ROWS, axis=0))
    batch = batch if batch.is_floating_point() else batch.long()
    channels, form = _tried(module, batch, features)
    init = TorchModule(module, channels)
    apply = _applied(init, form)
    if not buffers(module):
        return Model(init, lambda params, x, _key: apply(params, x))

    def train(variables: Variables, x: jax.Array, _key: jax.Array) -> tuple[jax.Array, Any, Any]:
        return apply(variables, x), variables.state, None

    return Model(init, lambda v, x, _key: apply(v, x), train=train, state="average")


def _check(net: torch.nn.Module) -> None:
    """Refuse a module whose parameters are not floats of 32 bits on a CPU."""
    if not trained(net):
        raise FedMomError(f"net is {short(net)}, which has no parameters that require gradients.")
    for name, value in {**trained(net), **buffers(net)}.items():
        if value.device.type != "cpu":
            raise FedMomError(f"{name} of the module is on {value.device}. Move it: module.cpu().")
        if value.dtype != torch.float32 and (value.is_complex() or value.is_floating_point()):
            raise FedMomError(
                f"{name} of the module is {value.dtype}. It must be torch.float32: module.float()."
            )


def _tried(
    module: torch.nn.Module, batch: torch.Tensor, features: Features
) -> tuple[Channels, tuple[int, ...]]:
    """Return how the module takes its inputs, and the shape of its output for one of them."""
    places: tuple[Channels, ...] = ("none",)
    if features.kind == "image":
        places = ("absent", "none") if len(features.shape) == 2 else ("last",)
    failed: Exception | None = None
    for channels in places:
        try:
            with torch.no_grad():
                found = torch_calls.outputs(module, torch_calls.given(batch, channels))
        except Exception as error:  # of the user's module; the first is told
            failed = failed or error
            continue
        if not isinstance(found, torch.Tensor) or found.shape[:1] != (ROWS,):
            raise FedMomError(
                f"The module returns {short(found)} for {ROWS} inputs. It must return a tensor with"
                " a row for every input."
            )
        return channels, tuple(found.shape[1:])
    shape = tuple(torch_calls.given(batch, places[0]).shape)
    raise FedMomError(
        f"The module cannot be applied to a batch of shape {shape}:"
        f" {str(failed).partition(chr(10))[0].rstrip('.')}."
    ) from failed


def _applied(init: TorchModule, form: tuple[int, ...]) -> Any:
    """Return ``apply(params, x)``, which calls PyTorch from a compiled program."""
    module, lock = init.module, threading.Lock()  # parameters are put into one module in turn

    def called(params: Any, x: Any) -> NDArray[np.float32]:
        has = {**params.trained, **params.state} if isinstance(params, Variables) else params
        tensors = {name: _tensor(value) for name, value in has.items()}
        batch = torch_calls.given(_tensor(x), init.channels)
        with lock, torch.no_grad():
            found = torch.func.functional_call(module, tensors, (batch,))
            return getattr(found, "logits", found).float().numpy()

    @jax.custom_jvp
    def apply(params: Any, x: jax.Array) -> jax.Array:
        out = jax.ShapeDtypeStruct((len(x), *form), jnp.float32)  # type: ignore[no-untyped-call]
        return jax.pure_callback(called, out, params, x, vmap_method="sequential")

    def refused(*_: Any) -> Any:
        raise FedMomError(
            "This model is a PyTorch module that JAX has no gradients of. Train it with"
            ' runtime="torch:workers=2", without diagnostics.'
        )

    apply.defjvp(refused)
    return apply


def _tensor(value: Any) -> torch.Tensor:
    found = torch.from_numpy(np.array(value))
    return found if found.is_floating_point() or found.dtype == torch.bool else found.long()


def _array(value: torch.Tensor) -> jax.Array:
    return jnp.array(value.numpy())  # whole numbers get 32 bits
