"""Nets of haiku: functions that ``transform`` or ``transform_with_state`` has made pure."""

from typing import Any

import haiku as hk
import jax

from fedmom.core.types import Params
from fedmom.models.nets import FLAGS, Net, Path, flags, marked


def net(transformed: Any, x: jax.Array) -> Net:
    """Return a transformed function as two functions; ``x`` is an example of a batch."""
    if isinstance(transformed, hk.Transformed):
        transformed = hk.with_empty_state(transformed)
    names = _flag(transformed, x)

    def init(key: jax.Array) -> tuple[Params, Any]:
        return transformed.init(key, x, **flags(names, training=True))

    def apply(params: Params, state: Any, x: jax.Array, key: jax.Array | None) -> Any:
        training = key is not None
        outputs, changed = transformed.apply(
            params, state, key, x, **flags(names, training=training)
        )
        return outputs, changed if training else state

    return Net(init, apply, _norms)


def _flag(transformed: hk.TransformedWithState, x: jax.Array) -> list[str]:
    """Return the argument that tells the net whether it is trained; its signature is hidden."""
    for name in FLAGS:
        try:
            jax.eval_shape(
                lambda key, name=name: transformed.init(key, x, **flags([name], training=True)),
                jax.random.key(0),
            )
        except TypeError:  # it takes no such argument, or fails whatever it takes
            continue
        return [name]
    return []


def _norms(params: Params, state: Any) -> Params:
    """A module with state has a part of its name in common with that of its parameters."""
    modules: set[Path] = set()
    for name in state:
        above = [module for module in params if f"{name}/".startswith(f"{module}/")]
        modules |= {(max(above, key=len),)} if above else set()
    return marked(params, modules)
