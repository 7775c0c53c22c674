"""The operations of PyTorch's graphs, by name, each as a function of JAX arrays."""

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError

Op = Callable[..., Any]
OWN: dict[str, Op] = {}  # those that a user has registered
_BUILT_IN: dict[str, Op] = {}
_FILES = "elementwise shapes indexing reductions layers convolutions pooling resizing recurrent"


@checked
def torch_op(name: str) -> Callable[[Op], Op]:
    """Register a function for an operation of PyTorch modules, before such a module is given.

    The function is called as the operation is, with JAX arrays in place of tensors, and must be one
    that JAX can differentiate. An argument called ``key`` gets a random key in training, and None
    in evaluation.

    Args:
        name: The operation, such as ``aten.erfinv``: as the refusal of a module names it. With an
            overload (``aten.sum.dim_IntList``) it counts for this one only.

    Returns:
        A decorator, which returns the function as it is.

    Examples:
        >>> import jax
        >>> @torch_op("aten.erfinv")
        ... def erfinv(x):
        ...     return jax.scipy.special.erfinv(x)
    """
    if "." not in name:
        raise FedMomError(f"torch_op: name is {name!r}. It must be like aten.erfinv.")

    def register(function: Op) -> Op:
        if not callable(function):
            raise FedMomError(f"torch_op: {name} is not a function. Decorate a function with it.")
        OWN[name] = function
        return function

    return register


def op(*names: str, home: str = "aten") -> Callable[[Op], Op]:
    """Register a built-in function for operations."""

    def register(function: Op) -> Op:
        _BUILT_IN.update({f"{home}.{name}": function for name in names})
        return function

    return register


def find(name: str) -> str | None:
    """Return the name that an operation has in the tables, maybe without its overload."""
    keys = [name, name.rpartition(".")[0]] if name.count(".") > 1 else [name]
    return next((key for table in (OWN, built_in()) for key in keys if key in table), None)


@cache
def built_in() -> dict[str, Op]:
    """Return the built-in operations by name."""
    for file in _FILES.split():
        importlib.import_module(f"fedmom.models.torch.{file}")
    return _BUILT_IN


@cache
def takes_key(function: Op) -> bool:
    """Return whether an operation draws random numbers."""
    try:
        return "key" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
