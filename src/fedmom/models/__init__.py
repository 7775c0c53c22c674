"""Small nets as init/apply pairs. A model is one function and one row in ``MODELS``.

``ADAPTATIONS`` are functions of a model that return another one, such as ``lora``.

Importing this package does not import JAX: ``build`` does.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmom.core.arguments import checked, short
from fedmom.core.errors import FedMomError
from fedmom.core.name_caches import cached_by_name
from fedmom.core.registry import Registry, joined, split

if TYPE_CHECKING:
    from fedmom.data.federated import Features
    from fedmom.models.base import Model

_MODELS = "char_lstm lenet5 leaf_cnn logreg mlp"
_PLACES = {name: f"fedmom.models.built_in:{name}" for name in _MODELS.split()}
_PLACES["char_gpt"] = "fedmom.models.char_gpt:char_gpt"
MODELS = Registry("model", _PLACES, takes=("features",))
_METRICS = "accuracy auc f1 mae mse perplexity position_accuracy position_top rmse top"
METRICS = Registry("metric", {name: f"fedmom.models.metrics:{name}" for name in _METRICS.split()})
ADAPTATIONS = Registry(
    "adaptation",
    {
        "bfloat16": "fedmom.models.precision:bfloat16",
        "frozen": "fedmom.models.fine_tuning:frozen",
        "lora": "fedmom.models.fine_tuning:lora",
        "pretrained": "fedmom.models.pretrained:pretrained",
    },
    returns="fedmom.models.base:Model",
    takes=("model",),
)


@checked
def build(
    spec: str, features: "Features", *, integers: bool = False, convert: bool = True
) -> "Model":
    """Build a model by its name with options, fitted to the data's features.

    Args:
        spec: A name of ``MODELS`` with options, such as ``mlp:hidden=100``.
        features: What the model must accept: ``data.features``.
        integers: Whether inputs are whole numbers, which features do not say: flax draws the
            parameters of a net with an example of its inputs.
        convert: False leaves a PyTorch module what it is, for the runtime ``torch``.

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
    from fedmom.data.federated import Features

    if not isinstance(features, Features):
        raise FedMomError(f"features is {short(features)}. It must be data.features.")
    return _build(spec, features, integers=integers, convert=convert)


@cached_by_name  # equal models are one object, so that runs share compiled programs
def _build(spec: str, features: "Features", *, integers: bool, convert: bool) -> "Model":
    from fedmom.core.compilation import keep_programs
    from fedmom.models.base import Model, fitted

    keep_programs()
    made = _called(spec, features)
    if isinstance(made, Model):
        return fitted(made, features)
    from fedmom.models.adapters import example, of_net

    return of_net(made, features, example(features, integers=integers), convert=convert)


@cached_by_name
def adapted(model: "Model", specs: str) -> "Model":
    """Return a model that has passed through adaptations, such as ``lora:rank=4``, joined by +."""
    for spec in joined(specs):
        model = ADAPTATIONS.build(spec, model)
    return model


def identified(specs: str) -> str:
    """Return adaptations with the checksums of the files that they load."""
    found = []
    for spec in joined(specs):
        name, given = split(spec)
        if name == "pretrained" and "file" in given and "sha256" not in given:
            from fedmom.models.pretrained import checksum

            given |= {"file": str(Path(given["file"]).resolve()), "sha256": checksum(given["file"])}
            spec = f"{name}:{','.join(f'{key}={value}' for key, value in given.items())}"
        found.append(spec)
    return "+".join(found)


def _seeded(make: Callable[[], Any]) -> Any:
    """Return what a function makes; a PyTorch module with the same weights in every process."""
    made = make()
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(made, torch.nn.Module):
        return made
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def _called(spec: str, features: "Features") -> object:
    """Call the function that a spec names; if a user's function fails, say how it is called."""
    try:
        return _seeded(lambda: MODELS.build(spec, features))
    except FedMomError as error:
        if error.__cause__ is None:
            raise
        raise FedMomError(
            "The function given as the model is called with data.features and must return a model"
            f" or a net. {error} One that makes a net of a key or of rngs"
            " is given as fedmom.model(function, data)."
        ) from error.__cause__
