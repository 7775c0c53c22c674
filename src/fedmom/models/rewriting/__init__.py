"""Users' nets in forms that are fast on a CPU: a pass over their programs, and what it replaces."""

from collections.abc import Callable
from typing import Any

from fedmom.models.base import Model
from fedmom.models.rewriting.convolutions import convolution
from fedmom.models.rewriting.pooling import unpooled
from fedmom.models.rewriting.products import product
from fedmom.models.rewriting.scans import scan
from fedmom.models.rewriting.sums import total
from fedmom.models.rewriting.walk import Replacement, rewritten

# By the operation's name in JAX's programs. A replacement is one function and one row.
REPLACEMENTS: dict[str, Replacement] = {
    "conv_general_dilated": convolution,
    "dot_general": product,
    "reduce_sum": total,
    "scan": scan,
    "select_and_scatter_add": unpooled,
}
BUILT_IN = ("fedmom.models.built_in", "fedmom.models.char_gpt")  # nets that are fast as they are


def fast(function: Callable[..., Any], model: Model) -> Callable[..., Any]:
    """Return a program that computes with a model, in a form that is fast on a CPU.

    Args:
        function: The program, derivatives included. What is given by keyword is static.
        model: The model. Programs of built-in ones stay as they are.
    """
    if model.apply.__module__ in BUILT_IN:
        return function
    return rewritten(function, REPLACEMENTS)
