"""Small nets as init/apply pairs. A model is one function and one row in ``MODELS``."""

from collections.abc import Callable
from functools import lru_cache

import jax

from fedmom import specs
from fedmom.data.federated import Features
from fedmom.models.base import Model, Params, cross_entropy
from fedmom.models.convolutional import leaf_cnn, lenet5
from fedmom.models.linear import logreg, mlp
from fedmom.models.recurrent import char_lstm

MODELS: dict[str, Callable[..., Model]] = {
    "char_lstm": char_lstm,
    "lenet5": lenet5,
    "leaf_cnn": leaf_cnn,
    "logreg": logreg,
    "mlp": mlp,
}


@lru_cache(maxsize=64)  # equal models are one object, so that runs share compiled programs
def build(spec: str, features: Features) -> Model:
    """Return the model of a name with options, fitted to the data's features."""
    name, _ = specs.split(spec)
    model = specs.bind(specs.pick(MODELS, name, "model"), spec, features)
    return model._replace(init=_compiled_quickly(model.init))


def _compiled_quickly(init: Callable[[jax.Array], Params]) -> Callable[[jax.Array], Params]:
    """Compile the drawing of first parameters as one program, with little optimization.

    It runs once. LeNet-5's takes less than a second to compile this way, over two as a dozen
    programs, and the numbers are the same.
    """
    compiled = jax.jit(init, compiler_options={"xla_backend_optimization_level": 1})

    def draw(key: jax.Array) -> Params:
        # A program inside another has no options of its own.
        return init(key) if isinstance(key, jax.core.Tracer) else compiled(key)

    return draw


__all__ = ["MODELS", "Model", "Params", "build", "cross_entropy"]
