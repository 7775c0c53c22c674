"""The form of a tree of arrays: structure, shapes and types, as a value that can be compared."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from fedmom.core.types import Params


class Form(NamedTuple):
    """What an update must look like."""

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    bytes: int

    @classmethod
    def of(cls, update: Params) -> "Form":
        """Return the form of an update."""
        leaves, structure = jax.tree.flatten(update)
        shapes = tuple((tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves)
        return cls(structure, shapes, sum(math.prod(s) * d.itemsize for s, d in shapes))

    @property
    def tree(self) -> Params:
        """The form as a tree of shapes and types."""
        leaves = [jax.ShapeDtypeStruct(*leaf) for leaf in self.leaves]  # type: ignore[no-untyped-call]
        return jax.tree.unflatten(self.structure, leaves)

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
