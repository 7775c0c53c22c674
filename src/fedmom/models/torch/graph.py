"""The graph of a PyTorch module as plain data, and what runs it with JAX."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.models.torch.table import built_in, takes_key


@dataclass(frozen=True)
class Ref:
    """An argument that is the value of a node."""

    name: str


@dataclass(frozen=True)
class Operation:
    """One operation: its name in the table, and its arguments.

    ``where`` is the line of the module's code that it comes from.
    """

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    where: str = field(default="", compare=False)


@dataclass(frozen=True)
class Graph:
    """A module's forward pass, in training or in evaluation.

    Args:
        given: The node that is the module's input.
        tensors: The name of the parameter, buffer or constant, of every node that is one.
        nodes: All other nodes, in order.
        output: The node that is returned.
        changed: The node with the new value, of every buffer that the pass changes.
    """

    given: str
    tensors: dict[str, str]
    nodes: tuple[Operation, ...]
    output: str
    changed: dict[str, str]

    def run(
        self,
        tensors: Mapping[str, Any],
        x: jax.Array,
        key: jax.Array | None,
        own: Mapping[str, Callable[..., Any]],
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the output, and the new values of buffers.

        Args:
            tensors: Parameters, buffers and constants, by name.
            x: The input.
            key: For dropout and the like; None in evaluation.
            own: A user's own operations.
        """
        values: dict[str, Any] = {node: tensors[name] for node, name in self.tensors.items()}
        values[self.given] = x
        table = built_in()
        for place, node in enumerate(self.nodes):
            function = own.get(node.op) or table[node.op]
            kwargs = {name: _value(arg, values) for name, arg in node.kwargs.items()}
            if takes_key(function):
                kwargs["key"] = None if key is None else jax.random.fold_in(key, place)
            try:
                values[node.name] = function(*(_value(a, values) for a in node.args), **kwargs)
            except Exception as error:
                raise FedMomError(
                    f"{node.op} of the PyTorch module ({node.where or node.name}) cannot be"
                    f" computed in JAX: {type(error).__name__}: {str(error).rstrip('.')}."
                    f' Register a function of your own for it: @fedmom.torch_op("{node.op}").'
                ) from error
        changed = {buffer: values[name] for buffer, name in self.changed.items()}
        return values[self.output], changed


@dataclass(frozen=True, eq=False)
class Converted:
    """A PyTorch module as data.

    Args:
        params: The parameters by their names in the module's ``state_dict``.
        state: The buffers that training changes.
        constants: All other tensors.
        train: The forward pass in training.
        evaluate: The forward pass in evaluation.
        axes: The order of the data's axes, as the module wants them; -1 is an axis of size 1.
        dtype: The type of the module's inputs.
        frozen: The parameters that are not to be trained.
        own: The user's own operations.
    """

    params: dict[str, NDArray[Any]]
    state: dict[str, NDArray[Any]]
    constants: dict[str, NDArray[Any]]
    train: Graph
    evaluate: Graph
    axes: tuple[int, ...]
    dtype: str
    frozen: tuple[str, ...]
    own: dict[str, Callable[..., Any]]

    def apply(
        self, params: Mapping[str, Any], state: Mapping[str, Any], x: jax.Array, key: Any
    ) -> tuple[jax.Array, Any]:
        """Return the outputs for a batch, and the state after it."""
        tensors = {**{n: jnp.asarray(a) for n, a in self.constants.items()}, **params, **state}
        graph = self.evaluate if key is None else self.train
        given = arranged(x, self.axes).astype(canonical(self.dtype))
        output, changed = graph.run(tensors, given, key, self.own)
        if key is None:
            return output, state
        # Statistics are no part of the loss.
        new = {n: jax.lax.stop_gradient(v).astype(state[n].dtype) for n, v in changed.items()}
        return output, {**state, **new}


def arranged(x: Any, axes: tuple[int, ...]) -> Any:
    """Return inputs with their axes in another order, and new ones of size 1 for -1.

    Examples:
        >>> arranged(np.zeros((2, 28, 30)), (0, -1, 1, 2)).shape
        (2, 1, 28, 30)
    """
    moved = x.transpose([axis for axis in axes if axis >= 0])
    return moved.reshape([1 if axis < 0 else x.shape[axis] for axis in axes])


def canonical(dtype: str) -> Any:
    """Return a type by its name in PyTorch, in 32 bits unless JAX is told to use 64."""
    return jax.dtypes.canonicalize_dtype(np.dtype(dtype) if dtype != "bfloat16" else jnp.bfloat16)


def _value(arg: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(arg, Ref):
        return values[arg.name]
    if isinstance(arg, tuple):
        return tuple(_value(part, values) for part in arg)
    return arg
