"""What of a user's net stays slow on a CPU after the pass, for the start of a run."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn
from numpy.typing import NDArray

from fedmom.models.base import Model, first_form
from fedmom.models.rewriting import BUILT_IN, REPLACEMENTS
from fedmom.models.rewriting.convolutions import DTYPES, HALF, MOST_GROUPS, MOST_TERMS
from fedmom.models.rewriting.walk import contains, operations, replaced
from fedmom.models.variables import Variables


def notices(model: Model, x: NDArray[Any]) -> list[str]:
    """Return what of a net is slow on a CPU, and what to do, a text for each.

    The gradient is traced and rewritten as in training; nothing is compiled or computed.

    Args:
        model: The model. There is nothing to say of built-in ones, nor on accelerators.
        x: A batch of inputs.
    """
    model = model.plain
    if model.apply.__module__ in BUILT_IN or jax.default_backend() != "cpu":
        return []
    try:
        program = jax.make_jaxpr(_gradient, static_argnums=0)(model, first_form(model), x)
    except Exception:  # it has no gradient; if one is needed, training says why there is none
        return []
    if not contains(program, REPLACEMENTS):
        return []
    better = replaced(program, REPLACEMENTS)
    if isinstance(better, Exception):
        why = (str(better).splitlines() or [""])[0][:200]
        return [
            "The net could not be brought into the form that is fast on a CPU, so it is computed as"
            " it stands, and a step may take many times as long. Another version of jax (this is"
            f" {jax.__version__}) or of fedmom may help. The reason: {type(better).__name__}: {why}"
        ]
    found = dict.fromkeys(filter(None, map(_slow, operations(better))))
    return [f"The net has {what}, which is slow on a CPU: {remedy}." for what, remedy in found]


def _gradient(model: Model, params: Any, x: jax.Array) -> Any:
    def total(trained: Any) -> jax.Array:
        whole = params._replace(trained=trained) if isinstance(params, Variables) else trained
        return jnp.sum(model.apply(whole, x, None))

    return jax.grad(total)(params.trained if isinstance(params, Variables) else params)


def _slow(operation: JaxprEqn) -> tuple[str, str] | None:
    """Return what is slow of an operation that is left after the pass, and what to do."""
    if operation.primitive.name != "conv_general_dilated":
        return None
    forms: Any = [v.aval for v in operation.invars]
    x, w = forms
    numbers, groups = operation.params["dimension_numbers"], operation.params["feature_group_count"]
    taps = [w.shape[axis] for axis in numbers.rhs_spec[2:]]
    if x.dtype not in (*DTYPES, *HALF):
        return f"a convolution of {x.dtype} numbers", "take float32"
    if len(taps) > 3:
        return f"a convolution over {len(taps)} axes", "take at most 3"
    if groups <= MOST_GROUPS:
        return None
    what = f"a convolution with {groups} groups and filters of {'x'.join(map(str, taps))}"
    remedy = f"take at most {MOST_GROUPS} groups"
    if groups == x.shape[numbers.lhs_spec[1]]:  # depthwise
        return what, f"{remedy}, or filters of at most {MOST_TERMS} numbers"
    return what, f"{remedy}, or one for every channel"
