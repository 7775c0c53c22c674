"""Nets of flax: linen modules, and nnx modules."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from fedmom.core.prng import is_key
from fedmom.core.types import Params
from fedmom.models.nets import Net, Path, arguments, beside_state, flags, marked, paths

SOWN = "intermediates"  # what linen modules leave for observers: not state


def net(module: Any, x: jax.Array) -> Net:
    """Return a module of either kind as two functions; ``x`` is an example of a batch."""
    if isinstance(module, linen.Module):
        return _linen_net(module, x)
    return nnx_net(lambda _rngs: nnx.clone(module))


def _linen_net(module: linen.Module, x: jax.Array) -> Net:
    names = arguments(type(module).__call__)

    def init(key: jax.Array) -> tuple[Params, Any]:
        found = module.init(_keys(key), x, **flags(names, training=False))
        state = {name: value for name, value in found.items() if name not in ("params", SOWN)}
        return found.get("params", {}), state

    def apply(params: Params, state: Any, x: jax.Array, key: jax.Array | None) -> Any:
        variables = {"params": params, **state}
        told = flags(names, training=key is not None)
        if key is None:
            return module.apply(variables, x, **told), state
        outputs, changed = module.apply(variables, x, rngs=_keys(key), mutable=[*state], **told)
        return outputs, {**state, **changed}

    def norms(params: Params, state: Any) -> Params:
        return marked(params, {path[1:-1] for path in paths(state)} - {()})

    return Net(init, apply, norms)


def _keys(key: jax.Array) -> dict[str, jax.Array]:
    """One key for dropout, and one for whatever else a module calls by another name."""
    return dict(zip(("params", "dropout"), jax.random.split(key), strict=True))


def nnx_net(make: Callable[[nnx.Rngs], Any]) -> Net:
    """Return an nnx module as two functions; ``make`` makes a new one every time."""
    trained, evaluated = make(nnx.Rngs(0)), make(nnx.Rngs(0))
    trained.train()
    evaluated.eval()
    names = arguments(type(trained).__call__)
    graph, params_form, rngs_form, rest_form = nnx.split(trained, nnx.Param, nnx.RngState, ...)
    graph_of = {True: graph, False: nnx.split(evaluated, nnx.Param, nnx.RngState, ...)[0]}

    def init(key: jax.Array) -> tuple[Params, Any]:
        _, params, _, rest = nnx.split(make(nnx.Rngs(key)), nnx.Param, nnx.RngState, ...)
        return _named(params), _named(rest)

    def apply(params: Params, state: Any, x: jax.Array, key: jax.Array | None) -> Any:
        training = key is not None
        rngs = rngs_form if key is None else _reseeded(rngs_form, key)
        parts = _like(params_form, params), rngs, _like(rest_form, state)
        module = nnx.merge(graph_of[training], *parts)
        outputs = module(x, **flags(names, training=training))
        return outputs, _named(nnx.split(module, nnx.Param, nnx.RngState, ...)[3])

    return Net(init, apply, beside_state)


def _named(state: nnx.State) -> Params:
    """Return an nnx state as dicts in dicts, by the names of the attributes."""
    named: dict[str, Any] = {}
    for path, leaf in zip(_places(state), jax.tree.leaves(state), strict=True):
        inside = named
        for name in path[:-1]:
            inside = inside.setdefault(name, {})
        inside[path[-1]] = leaf
    return named


def _like(form: nnx.State, named: Params) -> nnx.State:
    """Return an nnx state of the form, with these arrays."""
    by_path = dict(zip(paths(named), jax.tree.leaves(named), strict=True))
    return jax.tree.unflatten(jax.tree.structure(form), [by_path[p] for p in _places(form)])


def _places(state: nnx.State) -> list[Path]:
    return [path[:-1] for path in paths(state)]  # without "value", of each variable


def _reseeded(rngs: nnx.State, key: jax.Array) -> nnx.State:
    """Return the state of random streams, begun anew from a key."""
    leaves, form = jax.tree.flatten(rngs)
    fresh = [
        jax.random.fold_in(key, i) if is_key(leaf) else jnp.zeros_like(leaf)
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(form, fresh)
