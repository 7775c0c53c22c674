"""Small nets as init/apply pairs. A model is one function and one row in ``MODELS``.

Importing this package does not import JAX: ``build`` does.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from fedmom.core.registry import Registry

if TYPE_CHECKING:
    from fedmom.data.federated import Features
    from fedmom.models.base import Model

MODELS = Registry(
    "model",
    {
        "char_lstm": "fedmom.models.recurrent:char_lstm",
        "lenet5": "fedmom.models.convolutional:lenet5",
        "leaf_cnn": "fedmom.models.convolutional:leaf_cnn",
        "logreg": "fedmom.models.linear:logreg",
        "mlp": "fedmom.models.linear:mlp",
    },
    returns="fedmom.models.base:Model",
)
METRICS = Registry(
    "metric",
    {
        "accuracy": "fedmom.models.metrics:accuracy",
        "auc": "fedmom.models.metrics:auc",
        "f1": "fedmom.models.metrics:f1",
        "mae": "fedmom.models.metrics:mae",
        "mse": "fedmom.models.metrics:mse",
        "perplexity": "fedmom.models.metrics:perplexity",
        "position_accuracy": "fedmom.models.metrics:position_accuracy",
        "rmse": "fedmom.models.metrics:rmse",
        "top": "fedmom.models.metrics:top",
    },
)


@lru_cache(maxsize=64)  # equal models are one object, so that runs share compiled programs
def build(spec: str, features: "Features") -> "Model":
    """Build a model by its name with options, fitted to the data's features.

    Args:
        spec: A name of ``MODELS`` with options, such as ``mlp:hidden=100``.
        features: What the model must accept: ``data.features``.

    Returns:
        The model; the same object for equal arguments.

    Raises:
        FedMomError: There is no such model or option, or it cannot read such data.

    Examples:
        >>> import jax
        >>> from fedmom import Features
        >>> model = build("mlp:hidden=16,layers=1", Features("vector", (60,), 10))
        >>> [layer["w"].shape for layer in model.init(jax.random.key(0))]
        [(60, 16), (16, 10)]
    """
    from fedmom.core.compilation import keep_programs
    from fedmom.models.base import fitted

    keep_programs()
    return fitted(MODELS.build(spec, features), features)
