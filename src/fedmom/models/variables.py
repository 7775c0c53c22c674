"""A model that has more than trained parameters: batch norm's running statistics, and the like."""

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
