"""A model that has more than trained parameters: batch norm's running statistics, and the like."""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import jax

from fedmom.core.types import Params

StateChoice = Literal["average", "local"]
STATE_CHOICES: tuple[StateChoice, ...] = ("average", "local")


class Variables(NamedTuple):
    """All arrays of a model that has state.

    Methods, stages and server optimizers see ``trained`` only.

    Args:
        trained: The parameters that are trained, sent and aggregated.
        state: What is not trained, such as running statistics: after a round, the mean of what
            the clients return.
        own_trained: Parameters that every client trains for itself and never sends; on the
            server, those that new clients start with.
        own_state: State that every client keeps for itself; on the server, as above.

    Examples:
        >>> whole = Variables({"w": 1.0}, state={"mean": 0.5})
        >>> whole.trained
        {'w': 1.0}
    """

    trained: Params
    state: Any = None
    own_trained: Any = None
    own_state: Any = None


class Whole(NamedTuple):
    """All parameters of a model of which a part is frozen.

    Args:
        params: What ``init`` returns: what is trained, and the model's state if it has any.
        frozen: The parameters that are not trained, nor sent.

    Examples:
        >>> Whole({"w": 1.0}, frozen={"v": 2.0}).frozen
        {'v': 2.0}
    """

    params: Any
    frozen: Params


def whole(params: Any, frozen: Params | None) -> Any:
    """Return what a model is applied with: parameters, with the frozen ones where it has some.

    Examples:
        >>> whole(1.0, None), whole(1.0, frozen=2.0)
        (1.0, Whole(params=1.0, frozen=2.0))
    """
    return params if frozen is None else Whole(params, frozen)


def parameter_names(params: Params) -> list[str]:
    """Return the name of every parameter: its place in the tree.

    Examples:
        >>> parameter_names([{"w": 1.0, "b": 2.0}])
        ['0/b', '0/w']
    """
    paths = jax.tree_util.tree_leaves_with_path(params)
    return [jax.tree_util.keystr(path, simple=True, separator="/") or "params" for path, _ in paths]


def listed(names: Iterable[str]) -> str:
    """Return the names of parameters for a message."""
    return ", ".join(names) or "none"


def divide(tree: Params, chosen: Params) -> tuple[Params, Params]:
    """Return a tree twice: without its chosen leaves, and with these only. None stands for others.

    Examples:
        >>> divide({"scale": 2, "w": 1}, {"scale": True, "w": False})
        ({'scale': None, 'w': 1}, {'scale': 2, 'w': None})
    """
    rest = jax.tree.map(lambda leaf, yes: None if yes else leaf, tree, chosen)
    return rest, jax.tree.map(lambda leaf, yes: leaf if yes else None, tree, chosen)


def unite(rest: Params, chosen: Params) -> Params:
    """Undo ``divide``.

    Examples:
        >>> unite({"scale": None, "w": 1}, {"scale": 2, "w": None})
        {'scale': 2, 'w': 1}
    """
    return jax.tree.map(
        lambda a, b: b if a is None else a, rest, chosen, is_leaf=lambda x: x is None
    )
