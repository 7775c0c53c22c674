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
        typed = (leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in leaves)
        shapes = tuple((tuple(leaf.shape), leaf.dtype) for leaf in typed)
        return cls(structure, shapes, sum(math.prod(s) * d.itemsize for s, d in shapes))

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
        for (shape, dtype), (wanted, kind) in zip(found.leaves, self.leaves, strict=True):
            if shape != wanted:
                return f"with an array of shape {shape} instead of {wanted}"
            if dtype != kind:
                return f"with an array of type {dtype} instead of {kind}"
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
