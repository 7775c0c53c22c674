"""Fine-tuning: models of which only a part is trained, sent and aggregated."""

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.core.validation import MOST, Between
from fedmom.models.base import Adapted, Model, first_form
from fedmom.models.variables import Variables, listed, parameter_names

# Attention kernels of flax have the shape (inputs, heads, head size).
SPLIT_OUTPUTS = ("query", "key", "value")


@checked
def lora(
    model: Model,
    *,
    rank: Annotated[int, Between(1, MOST)] = 8,
    alpha: Annotated[float, Between(1e-9, 1e9)] = 8.0,
    targets: str = "*",
    train: str = "",
) -> Model:
    """Train low-rank changes of some weights, and freeze all else (Hu et al. 2021).

    A weight W becomes ``W + alpha/rank * A B``. A is drawn at random with variance 1/inputs, and
    B is zero at first, so that round 0 is the model as it was. Only A and B are trained, sent and
    aggregated. A client's step still computes with whole weights: what is saved is traffic, and
    memory for the solver, the updates and the server's state.

    Weights of more than two dimensions count as matrices. Their outputs are the last axis; the
    first where the parameter is called ``weight``, as in PyTorch and equinox; and the last two of
    flax's ``query``, ``key`` and ``value``. All other axes are inputs.

    Args:
        model: The model, such as ``fedmom.model(net, data)``.
        rank: Columns of A, and rows of B.
        alpha: Scales the change, by alpha/rank.
        targets: Names of the weights to change, with ``*`` for anything, and ``|`` between several:
            ``*query*|*value*``. Parameters of one dimension, such as biases, do not count.
        train: Names of parameters to train as a whole, such as those of a new last layer.

    Returns:
        A model whose parameters are A and B of each target.

    Raises:
        FedMomError: No parameter has such a name, or a weight is smaller than the rank.

    Examples:
        >>> import fedmom
        >>> features = fedmom.Features("vector", (60,), 10)
        >>> small = lora(fedmom.build_model("mlp", features), rank=4, targets="0/w|1/w")
        >>> params = small.init(jax.random.key(0))
        >>> {name: (ab["a"].shape, ab["b"].shape) for name, ab in params.items()}
        {'0/w': ((60, 4), (4, 200)), '1/w': ((200, 4), (4, 200))}
    """
    return _adapted(model, "lora", train, targets, rank, alpha / rank)


@checked
def frozen(model: Model, *, train: str) -> Model:
    """Train some parameters only, and freeze all others.

    Args:
        model: The model, such as ``fedmom.model(net, data)``.
        train: Names of the parameters to train, with ``*`` for anything, and ``|`` between several:
            ``out/*|norm/*``.

    Returns:
        A model whose parameters are these only.

    Raises:
        FedMomError: No parameter has such a name.

    Examples:
        >>> import fedmom
        >>> model = fedmom.build_model("mlp", fedmom.Features("vector", (60,), 10))
        >>> sorted(frozen(model, train="2/*").init(jax.random.key(0)))
        ['2/b', '2/w']
    """
    return _adapted(model, "frozen", train)


class _Matrix(NamedTuple):
    """A weight as a matrix of inputs and outputs."""

    shape: tuple[int, ...]
    inputs: int
    outputs: int
    outputs_first: bool

    @classmethod
    def of(cls, name: str, shape: tuple[int, ...]) -> "_Matrix":
        *before, last = name.replace(".", "/").split("/")
        first = last.startswith("weight")
        split = bool(before) and before[-1] in SPLIT_OUTPUTS
        cut = 1 if first or split else len(shape) - 1
        sizes = math.prod(shape[:cut]), math.prod(shape[cut:])
        return cls(shape, *(sizes[::-1] if first else sizes), first)

    def change(self, ab: Params) -> jax.Array:
        """Return A B in the shape of the weight."""
        product = ab["a"] @ ab["b"]
        return (product.T if self.outputs_first else product).reshape(self.shape)


def _adapted(
    model: Model, what: str, train: str, targets: str = "", rank: int = 0, scale: float = 0.0
) -> Model:
    """Return a model that trains some parameters as they are, and low-rank changes of others."""
    if model.adapted is not None:
        raise FedMomError(
            f"{what}: the model has frozen parameters already. Choose either lora or frozen; lora"
            " has train= for parameters to train as a whole."
        )
    form = _trained(first_form(model))
    names, structure = parameter_names(form), jax.tree.structure(form)
    shapes = {n: tuple(leaf.shape) for n, leaf in zip(names, jax.tree.leaves(form), strict=True)}
    whole = _matching(f"{what}: train", train, names)
    rest = {name: shape for name, shape in shapes.items() if name not in whole}
    changed = _changed(what, targets, rank, rest)
    if not (whole or changed):
        raise FedMomError(
            f"{what} trains nothing: {'targets= and ' * bool(rank)}train= name no parameter. There"
            f" are: {listed(names)}."
        )

    def named(key: jax.Array) -> tuple[Any, dict[str, Any]]:
        params = model.init(key)
        return params, dict(zip(names, jax.tree.leaves(_trained(params)), strict=True))

    def init(key: jax.Array) -> Any:
        params, leaves = named(key)
        sizes = {name: (matrix.inputs, rank, matrix.outputs) for name, matrix in changed.items()}
        trained = {name: leaves[name] for name in whole} | _drawn(key, sizes)
        return params._replace(trained=trained) if isinstance(params, Variables) else trained

    def kept(key: jax.Array) -> Params:
        return {name: leaf for name, leaf in named(key)[1].items() if name not in whole}

    def merge(trained: Params, kept: Params) -> Params:
        merged = {name: trained[name] for name in whole} | kept
        for name, matrix in changed.items():
            moved = kept[name] + scale * matrix.change(trained[name])
            merged[name] = moved.astype(kept[name].dtype)
        return jax.tree.unflatten(structure, [merged[name] for name in names])

    adapted = Adapted(model, init, kept, merge)
    train_step: Any = model.train
    return model._replace(
        init=adapted,
        apply=lambda params, x, key: model.apply(adapted.merged(params), x, key),
        train=train_step and (lambda params, x, key: train_step(adapted.merged(params), x, key)),
    )


def _trained(params: Any) -> Params:
    return params.trained if isinstance(params, Variables) else params


def _changed(
    what: str, targets: str, rank: int, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, _Matrix]:
    """Return the weights of which a change of this rank is trained, as matrices."""
    names = [name for name, shape in shapes.items() if len(shape) > 1]
    chosen = _matching(f"{what}: targets", targets, names)
    found = {name: _Matrix.of(name, shapes[name]) for name in chosen}
    for name, matrix in found.items():
        if rank > min(matrix.inputs, matrix.outputs):
            raise FedMomError(
                f"{what}: rank={rank} is too large for {name}, a matrix of"
                f" {matrix.inputs}x{matrix.outputs}. Use a smaller rank, or targets= without it."
            )
    return found


def _matching(what: str, patterns: str, names: list[str]) -> list[str]:
    """Return the names that match one of the patterns; refuse a pattern that none matches."""
    wanted = [pattern.strip() for pattern in patterns.split("|") if pattern.strip()]
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise FedMomError(
                f"{what}={pattern} matches no parameter that it could. There are: {listed(names)}."
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted)]


def _drawn(key: jax.Array, sizes: Mapping[str, tuple[int, int, int]]) -> Params:
    """Return A and B of weights with these inputs, ranks and outputs."""
    return jax.jit(partial(_draw, sizes))(jax.random.fold_in(key, 1))  # one program for all


def _draw(sizes: Mapping[str, tuple[int, int, int]], key: jax.Array) -> Params:
    keys = jax.random.split(key, max(1, len(sizes)))
    return {
        name: {
            "a": jax.random.normal(own, (inputs, rank)) / np.sqrt(inputs).astype(np.float32),
            "b": jnp.zeros((rank, outputs)),
        }
        for own, (name, (inputs, rank, outputs)) in zip(keys, sizes.items(), strict=False)
    }
