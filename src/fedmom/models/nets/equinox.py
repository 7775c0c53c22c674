"""Nets of equinox: modules that are applied to one sample, with or without state."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.models.nets import Net, arguments

AXIS = "batch"  # of the batch, where no layer names another


def net(make: Callable[[jax.Array], Any]) -> Net:
    """Return what a function of a key makes, a module or a module and its state, as two functions.

    Parameters are the arrays of real numbers in the module, by their place in it. All else in it is
    fixed; so is the form of its state.
    """
    module, state = _with_state(_made(make))
    form = jax.tree.structure(state)
    trained, fixed = eqx.partition(module, eqx.is_inexact_array)
    places = jax.tree.structure(trained)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(trained)]
    asks = arguments(type(module).__call__)
    layers = _layers_with_state(module)
    axes = [getattr(layer, "axis_name", None) for _, layer in layers]
    axis = next((axis for axis in axes if axis is not None), AXIS)
    own = {
        place + jax.tree_util.keystr(path)
        for place, layer in layers
        for path, _ in jax.tree_util.tree_leaves_with_path(eqx.filter(layer, eqx.is_inexact_array))
    }

    def init(key: jax.Array) -> tuple[Params, Any]:
        module, state = _with_state(make(key))
        leaves = jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array))
        return dict(zip(names, leaves, strict=True)), tuple(jax.tree.leaves(state))

    def apply(params: Params, state: Any, x: jax.Array, key: jax.Array | None) -> Any:
        leaves = [params[name] for name in names]
        whole = eqx.combine(jax.tree.unflatten(places, leaves), fixed)
        whole = eqx.nn.inference_mode(whole, value=key is None)
        keys = None if key is None or "key" not in asks else jax.random.split(key, len(x))

        def one(x: jax.Array, state: Any, key: jax.Array | None) -> Any:
            more = {"key": key} if "key" in asks else {}
            return whole(x, state, **more) if state_leaves else (whole(x, **more), state)

        state_leaves = len(state)
        given = jax.tree.unflatten(form, state)
        mapped = jax.vmap(one, in_axes=(0, None, 0), out_axes=(0, None), axis_name=axis)
        outputs, changed = mapped(x, given, keys)
        return outputs, tuple(jax.tree.leaves(changed)) if key is not None else state

    return Net(init, apply, lambda _params, _state: {name: name in own for name in names})


def _made(make: Callable[[jax.Array], Any]) -> Any:
    try:
        return make(jax.random.key(0))
    except FedMomError:
        raise
    except Exception as error:
        raise FedMomError(
            f"net cannot be made of a key: {type(error).__name__}: {str(error).rstrip('.')}. Its"
            " function is called with a key and must return an equinox module."
        ) from error


def _with_state(made: Any) -> tuple[Any, Any]:
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], eqx.nn.State):
        return made
    if not isinstance(made, eqx.Module):
        raise FedMomError(
            f"The function returns {type(made).__name__} for a key, not an equinox module or such a"
            " module and its state. To make an nnx module, call its argument rngs."
        )
    return eqx.nn.make_with_state(lambda: made)()


def _layers_with_state(module: Any) -> list[tuple[str, Any]]:
    """Return the modules that hold state themselves, such as batch norm, by their place."""

    def holds(node: Any) -> bool:
        return isinstance(node, eqx.Module) and any(
            isinstance(value, eqx.nn.StateIndex) for value in vars(node).values()
        )

    found = jax.tree_util.tree_leaves_with_path(module, is_leaf=holds)
    return [(jax.tree_util.keystr(path), node) for path, node in found if holds(node)]
