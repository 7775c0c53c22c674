"""Computing in fewer bits."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from fedmom.core.arguments import checked
from fedmom.core.types import Params
from fedmom.models.base import Model
from fedmom.models.variables import Variables, Whole


@checked
def bfloat16(model: Model) -> Model:
    """Compute a model in bfloat16, with parameters and aggregation in float32.

    Parameters, and inputs that are floats, are rounded for the forward and the backward pass.
    Gradients, the solver, updates and the server's state have 32 bits, and so have state such as
    batch norm's, outputs and losses. Parts that a net casts to a type of its own keep it.

    Args:
        model: The model, such as ``fedmom.model(net, data)``.

    Returns:
        A model with the same parameters.

    Examples:
        >>> import fedmom
        >>> model = fedmom.build_model("logreg", fedmom.Features("vector", (4,), 2))
        >>> half, x = bfloat16(model), jnp.full((1, 4), 1.001)
        >>> params = [{"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}]
        >>> float(half.apply(params, x, None)[0, 0]), half.apply(params, x, None).dtype
        (4.0, dtype('float32'))
    """
    train: Any = model.train

    def apply(params: Params, x: jax.Array, key: jax.Array | None) -> jax.Array:
        return _cast(model.apply(_rounded(params), _cast(x, jnp.bfloat16), key), jnp.float32)

    def train_step(params: Params, x: jax.Array, key: jax.Array) -> Any:
        outputs, *state = train(_rounded(params), _cast(x, jnp.bfloat16), key)
        return _cast(outputs, jnp.float32), *_cast(state, jnp.float32)

    return model._replace(apply=apply, train=train and train_step)


def _rounded(params: Any) -> Any:
    """Return all parameters in bfloat16, and the state as it is."""
    if isinstance(params, Whole):
        return Whole(_rounded(params.params), _cast(params.frozen, jnp.bfloat16))
    if isinstance(params, Variables):
        trained, own = _cast((params.trained, params.own_trained), jnp.bfloat16)
        return params._replace(trained=trained, own_trained=own)
    return _cast(params, jnp.bfloat16)


def _cast(tree: Any, dtype: Any) -> Any:
    def cast(leaf: Any) -> Any:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, tree)


def is_slow_here() -> bool:
    """Return whether this machine's processor has no matrix unit for bfloat16.

    AVX512-BF16 is not enough: XLA casts around it, and a transformer took 1.3 times as long.
    """
    if jax.default_backend() != "cpu":
        return False
    cpu = Path("/proc/cpuinfo")
    return not (cpu.exists() and "amx_bf16" in cpu.read_text())
