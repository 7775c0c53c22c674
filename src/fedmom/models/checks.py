"""A user's own model, tried on the shapes of the data before a run: nothing is computed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.data.federated import Features
from fedmom.models.base import Model
from fedmom.models.losses import cross_entropy, sequence_cross_entropy
from fedmom.models.variables import Variables

ROWS = 2  # of the batch: more than one, to tell a loss per sample from a mean


def check(model: Model, features: Features, x: NDArray[Any]) -> None:
    """Refuse a model that cannot be applied to the data, or whose outputs its loss cannot use.

    Args:
        model: The model.
        features: What it must accept and predict.
        x: A batch of one input.

    Raises:
        FedMomError: It does not fit.

    Examples:
        >>> net = Model(lambda key: jnp.zeros((4, 3)), lambda w, x, key: x @ w)
        >>> check(net, Features("vector", (4,), 5), np.zeros((1, 4), np.float32))
        Traceback (most recent call last):
        ...
        fedmom.core.errors.FedMomError: The data has 5 classes, and the model's outputs have \
size 3. Its last layer must return a number for every class.
    """
    batch = np.repeat(x, ROWS, axis=0)
    params = _first(model)
    _check_floats(params)
    try:
        outputs = jax.eval_shape(lambda p, x: model.apply(p, x, None), params, batch)
    except FedMomError:
        raise
    except Exception as error:
        raise FedMomError(
            f"The model cannot be applied to a batch of {ROWS} inputs of shape {x.shape[1:]}"
            f" ({x.dtype}): {str(error).rstrip('.')}. A model's apply takes parameters, inputs and"
            " a key."
        ) from error
    if model.loss in (cross_entropy, sequence_cross_entropy):
        _check_classes(outputs, features)
    jax.eval_shape(model.losses, outputs, _labels(features))


def _first(model: Model) -> Any:
    """Return the shapes of the first parameters; a function that JAX cannot trace is called."""
    key = jax.random.key(0)
    try:
        return jax.eval_shape(model.init, key)
    except jax.errors.JAXTypeError:
        return model.init(key)


def _check_floats(params: Any) -> None:
    trained = params.trained if isinstance(params, Variables) else params
    for path, leaf in jax.tree_util.tree_leaves_with_path(trained):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise FedMomError(
                f"The model's parameter{jax.tree_util.keystr(path)} is {leaf.dtype}. Parameters"
                " are trained, so they must be floats."
            )


def _check_classes(outputs: Any, features: Features) -> None:
    places = () if features.task == "classes" else features.shape[:1]
    if outputs.shape[:-1] != (ROWS, *places):
        wanted = (ROWS, *places, features.classes)
        raise FedMomError(
            f"The model returns an array of shape {outputs.shape} for {ROWS} inputs. For"
            f" {features.classes} classes it must be {wanted}: a number for every class."
        )
    if outputs.shape[-1] < features.classes:
        raise FedMomError(
            f"The data has {features.classes} classes, and the model's outputs have size"
            f" {outputs.shape[-1]}. Its last layer must return a number for every class."
        )


def _labels(features: Features) -> NDArray[Any]:
    """Return labels of a batch, all zeros."""
    shapes = {"classes": (), "sequence": features.shape[:1]}
    shape = shapes.get(features.task, (features.classes,))
    dtype = np.float32 if features.task == "regression" else np.int32
    return np.zeros((ROWS, *shape), dtype)
