"""Nets that convolve, on images without a channel axis: they are given the axis they expect.

A net that takes (N, height, width), such as one that flattens its inputs, stays as it is. One that
fails on such images, or that takes a batch of them for one image of many channels, is tried with
the axis last and then first. A place is right if the net's first convolution finds one channel.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.models.base import Model

PLACES = (-1, 1)  # as in NHWC, and as in NCHW
CHANNEL = "If it has convolutions, give them a channel: begin with x = x[..., None]."


def with_channel(make: Callable[[NDArray[Any]], Model], x: NDArray[Any]) -> Model:
    """Return a model of images without a channel axis, whose net may want one.

    Args:
        make: Makes the model of an example of a batch, in the form that the net is given.
        x: An example of a batch, (1, height, width).
    """
    try:
        model = make(x)
        if not _mixes(model, x):
            return model
        cause: Exception | None = None
    except Exception as error:  # of the user's net
        cause = error
    for place in PLACES:
        given = np.expand_dims(x, place)
        try:
            model = make(given)
            if _channels(model, given) == 1 and not _mixes(model, given):
                return _expanded(model, place)
        except Exception:  # the net does not fit; the first error is told
            continue
    if cause is None:
        raise FedMomError(
            f"The net mixes the images of a batch, which have no channel axis. {CHANNEL}"
        )
    if isinstance(cause, FedMomError):
        raise cause
    shape = ", ".join(map(str, x.shape[1:]))
    raise FedMomError(
        f"The net cannot be applied to images of shape (N, {shape}): {str(cause).rstrip('.')}."
        f" {CHANNEL}"
    ) from cause


def _expanded(model: Model, place: int) -> Model:
    """Return a model that is given its images with an axis more."""
    apply, train = model.apply, model.train

    def applied(params: Any, x: jax.Array, key: jax.Array | None) -> jax.Array:
        return apply(params, jnp.expand_dims(x, place), key)

    if train is None:
        return model._replace(apply=applied)

    def trained(variables: Any, x: jax.Array, key: jax.Array) -> Any:
        return train(variables, jnp.expand_dims(x, place), key)

    return model._replace(apply=applied, train=trained)


def _mixes(model: Model, x: NDArray[Any]) -> bool:
    """Return whether an image's output depends on the others of its batch.

    A convolution of flax takes three axes for the height, width and channels of one image.
    """
    key = jax.random.key(0)
    both = (2 * jax.random.uniform(key, (2, *x.shape[1:]))).astype(x.dtype)
    params = model.init(key)
    alone, together = (model.apply(params, rows, None) for rows in (both[:1], both))
    if not hasattr(together, "shape"):
        return False  # which ``check`` tells
    return together.shape[1:] != alone.shape[1:] or not np.allclose(
        together[:1], alone, rtol=1e-3, atol=1e-4, equal_nan=True
    )


def _channels(model: Model, x: NDArray[Any]) -> int | None:
    """Return how many channels the first convolution of a net finds; None if it has none."""
    program = jax.make_jaxpr(lambda params: model.apply(params, jnp.asarray(x), None))(
        jax.eval_shape(model.init, jax.random.key(0))
    )
    for equation in _equations(program):
        if equation.primitive.name == "conv_general_dilated":
            axis = equation.params["dimension_numbers"].lhs_spec[1]
            return int(equation.invars[0].aval.shape[axis])
    return None


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the operations of a program, and of those inside it, in their order."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(equation.params):
            if hasattr(inner, "eqns"):
                yield from _equations(inner)
