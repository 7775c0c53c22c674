"""A net of any library as two functions, and what the libraries' adapters share."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax

from fedmom.core.types import Params

Path = tuple[str, ...]
# The arguments by which nets are told whether they are trained, and what they are then.
FLAGS = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}


class Net(NamedTuple):
    """A net of any library as two functions.

    Args:
        init: ``init(key) -> params, state``.
        apply: ``apply(params, state, x, key) -> outputs, state``; in evaluation, key is None.
        norms: ``norms(params, state)``: a tree like the parameters that says which of them belong
            to a layer that has state.
    """

    init: Callable[[jax.Array], tuple[Params, Any]]
    apply: Callable[[Params, Any, jax.Array, jax.Array | None], tuple[jax.Array, Any]]
    norms: Callable[[Params, Any], Params]


def flags(names: Iterable[str], *, training: bool) -> dict[str, bool]:
    """Return the arguments, of those that a net takes, that tell it whether it is trained."""
    return {name: training is FLAGS[name] for name in names if name in FLAGS}


def arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters."""
    return list(inspect.signature(function).parameters)


def paths(tree: Any) -> list[Path]:
    """Return the path of every leaf, as words."""
    found = jax.tree_util.tree_leaves_with_path(tree)
    return [tuple(jax.tree_util.keystr((key,), simple=True) for key in path) for path, _ in found]


def marked(params: Params, layers: set[Path]) -> Params:
    """Say of every parameter whether it belongs to one of these layers."""
    leaves = [path[:-1] in layers for path in paths(params)]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def beside_state(params: Params, state: Any) -> Params:
    """Say of every parameter whether it lies beside state: in a dict of the same path.

    Those at the root do not: they may belong to anything.
    """
    return marked(params, {path[:-1] for path in paths(state)} - {()})
