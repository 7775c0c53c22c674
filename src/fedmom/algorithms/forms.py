"""The form of a tree of arrays: structure, shapes and types, as a value that can be compared."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves_with_path

from fedmom.core.errors import FedMomError
from fedmom.core.types import Params


def check_kept(before: Any, after: Any, what: str) -> None:
    """Refuse states that change their form: a checkpoint of them would fit no run.

    Args:
        before: The states as they begin.
        after: The states as they are returned.
        what: What returns them, to begin the message with.

    Examples:
        >>> check_kept({"n": np.int32(0)}, {"n": np.float32(1)}, "A step")
        Traceback (most recent call last):
        fedmom.core.errors.FedMomError: A step turns ['n'] from int32 of shape () into float32 of \
shape (). It must return states of the form that init returns.
    """
    forms: list[dict[str, str]] = [
        {
            jax.tree_util.keystr(path): f"{jnp.result_type(leaf)} of shape {jnp.shape(leaf)}"
            for path, leaf in tree_leaves_with_path(tree)
        }
        for tree in (before, after)
    ]
    for name in forms[0] | forms[1]:
        one, other = (form.get(name, "nothing") for form in forms)
        if one != other:
            raise FedMomError(
                f"{what} turns {name} from {one} into {other}. It must return states of the form"
                " that init returns."
            )


class Form(NamedTuple):
    """What an update must look like."""

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    bytes: int

    @classmethod
    def of(cls, update: Params) -> "Form":
        """Return the form of an update."""
        leaves, structure = jax.tree.flatten(update)
        typed = (leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in leaves)
        shapes = tuple((tuple(leaf.shape), leaf.dtype) for leaf in typed)
        return cls(structure, shapes, sum(math.prod(s) * d.itemsize for s, d in shapes))

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        return sum(math.prod(shape) for shape, _ in self.leaves)

    @property
    def tree(self) -> Params:
        """The form as a tree of shapes and types."""
        leaves = [jax.ShapeDtypeStruct(*leaf) for leaf in self.leaves]  # type: ignore[no-untyped-call]
        return jax.tree.unflatten(self.structure, leaves)

    def difference(self, other: Params) -> str:
        """Say how another tree of arrays differs from this form; nothing if it does not."""
        found = Form.of(other)
        if found.structure != self.structure:
            return f"with the structure {found.structure} instead of {self.structure}"
        places = [jax.tree_util.keystr(path) for path, _ in tree_leaves_with_path(other)]
        for place, own, wanted in zip(places, found.leaves, self.leaves, strict=True):
            for what, here, there in zip(("shape", "type"), own, wanted, strict=True):
                if here != there:
                    return f"with {place or 'an array'} of {what} {here} instead of {there}"
        return ""

    def fault(self, rows: Params, count: int) -> str:
        """Say what is wrong with stacked updates; nothing if all is well."""
        leaves, structure = jax.tree.flatten(rows)
        if structure != self.structure:
            return f"its update is {structure}, not {self.structure}"
        for leaf, (shape, dtype) in zip(leaves, self.leaves, strict=True):
            got = getattr(leaf, "shape", None)
            if got != (count, *shape):
                return f"its update has an array of shape {got}, not {(count, *shape)}"
            if leaf.dtype != dtype:
                return f"its update has an array of type {leaf.dtype}, not {dtype}"
        return ""
