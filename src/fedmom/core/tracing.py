"""What users' functions return, found without computing anything: JAX calls them with shapes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.core.validation import MOST


def traced(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns when it is called with shapes and types.

    Args:
        function: The function; its own exceptions are passed on.
        *arguments: Arrays, or what stands for them.
    """
    found: list[Any] = []

    def keep(*given: Any) -> None:
        found.append(function(*given))

    jax.eval_shape(keep, *arguments)
    return found[0]


def of_numbers(what: str, tree: Any) -> Params:
    """Return the shapes and types of a tree of numbers; refuse what is none.

    Args:
        what: Who returns it, as the beginning of a sentence.
        tree: What was returned.
    """
    if not all(map(is_numeric, jax.tree.leaves(tree))):
        raise FedMomError(
            f"{what} {short(tree)}. It must be made of numbers: arrays, or lists, tuples and dicts"
            " of arrays."
        )
    return jax.tree.map(_shape_and_type, tree)


def one_number(what: str, found: Any) -> None:
    """Refuse what is not one real number."""
    if not is_numeric(found) or np.shape(found) != () or not _is_real(jnp.result_type(found)):
        raise FedMomError(f"{what} {short(found)}. It must be one number.")


def is_numeric(value: Any) -> bool:
    """Return whether a value is an array of numbers, a number, or what stands for one."""
    if isinstance(value, int):
        return abs(value) <= MOST
    if not isinstance(value, _ARRAYS):
        return isinstance(value, float | complex)
    dtype: Any = value.dtype
    of_jax = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jax.dtypes.extended)
    numeric = getattr(dtype, "kind", "V") in "biufc" or of_jax
    return numeric and not isinstance(value, np.ma.MaskedArray)


def _is_real(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)


_ARRAYS = (np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct)


def _shape_and_type(leaf: Any) -> jax.ShapeDtypeStruct:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or isinstance(dtype, np.dtype):
        dtype = jnp.result_type(leaf)  # as JAX holds it
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype)  # type: ignore[no-untyped-call]
