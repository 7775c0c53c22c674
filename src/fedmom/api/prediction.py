"""A trained model at work: outputs, predictions, and text written by a character model."""

import functools
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.data.federated import Features
from fedmom.data.sources.shakespeare import SYMBOLS, encode
from fedmom.experiments.build import Experiment
from fedmom.models.base import Model

AT_ONCE = 256  # inputs in a call


def outputs(experiment: Experiment, params: Params, x: Any) -> NDArray[Any]:
    """Return a model's outputs for inputs, one per row.

    Args:
        experiment: The run's parts.
        params: The model's parameters.
        x: Inputs, of the shape of the training data's; strings for a model of text.
    """
    rows = _rows(x, experiment.data.features)
    apply = _applied(experiment.model)
    parts = []
    for first in range(0, len(rows), AT_ONCE):
        part = rows[first : first + AT_ONCE]
        padded = np.pad(part, [(0, AT_ONCE - len(part)), *[(0, 0)] * (part.ndim - 1)], mode="edge")
        parts.append(np.asarray(apply(params, padded))[: len(part)])
    return np.concatenate(parts)


def predicted(experiment: Experiment, found: NDArray[Any]) -> NDArray[Any]:
    """Return the predictions that a model's outputs mean."""
    del experiment
    classes: NDArray[Any] = np.argmax(found, axis=-1)
    return classes


def write(
    experiment: Experiment,
    params: Params,
    prompt: str,
    length: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
) -> str:
    """Let a character model go on with a text.

    Args:
        experiment: The run's parts; its data must be text.
        params: The model's parameters.
        prompt: How the text begins.
        length: How many characters to add.
        temperature: Below 1, likely characters become likelier; 0 takes the likeliest.
        seed: The seed of the draw.

    Returns:
        The prompt and what follows.
    """
    features = experiment.data.features
    if features.kind != "text":
        raise FedMomError(
            f"{experiment.config.model} does not write text: its data is {features.kind}."
        )
    if not 0 <= temperature < np.inf:
        raise FedMomError(f"temperature {temperature} is not a number from 0 on. Take 0.5, say.")
    (window,) = features.shape
    apply, rng = _applied(experiment.model), np.random.default_rng(seed)
    codes = encode(prompt or "\n")
    codes = np.concatenate([np.zeros(max(0, window - len(codes)), codes.dtype), codes])
    written = []
    for _ in range(length):
        logits = np.asarray(apply(params, codes[None, -window:].astype(np.int32)))[0]
        code = _drawn(logits.astype(np.float64), temperature, rng)
        codes = np.append(codes[1:], np.array(code, codes.dtype))
        written.append(SYMBOLS[code])
    return prompt + "".join(written)


def _drawn(logits: NDArray[np.float64], temperature: float, rng: np.random.Generator) -> int:
    if temperature == 0:
        return int(np.argmax(logits))
    # The Gumbel trick: the largest of logits plus noise is a draw from their softmax.
    return int(np.argmax(logits / temperature + rng.gumbel(size=logits.shape)))


def _rows(x: Any, features: Features) -> NDArray[Any]:
    """Return inputs as an array that the model takes."""
    if features.kind == "text" and not isinstance(x, np.ndarray):
        return np.stack([_window(text, features.shape[0]) for text in x])
    rows = np.asarray(x)
    if rows.dtype.kind == "f":
        rows = rows.astype(np.float32)
    if rows.ndim == 0 or rows.shape[1:] != features.shape or not len(rows):
        wanted = ", ".join(map(str, features.shape))
        raise FedMomError(
            f"The inputs have the shape {rows.shape}. Give one input per row: (inputs, {wanted})."
        )
    return rows


def _window(text: str, length: int) -> NDArray[Any]:
    """Return the last characters of a text as numbers; a short one is filled up in front."""
    codes = encode(text)[-length:]
    return np.pad(codes, (length - len(codes), 0)).astype(np.int32)


@functools.lru_cache(maxsize=8)
def _applied(model: Model) -> Any:
    return jax.jit(lambda params, x: model.apply(params, x, None))
