"""A trained model at work: outputs, predictions, and text written by a character model."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.types import Params
from fedmom.data.batches import place, read_at
from fedmom.data.federated import FederatedData
from fedmom.data.sources.shakespeare import SYMBOLS
from fedmom.experiments.build import Experiment
from fedmom.models.base import Model

AT_ONCE = 256  # inputs in a call


def outputs(experiment: Experiment, params: Params, x: Any) -> NDArray[Any]:
    """Return a model's outputs for inputs, one per row; strings for a model of text."""
    rows = _rows(x, experiment.data)
    apply = _applied(experiment.model)
    parts = []
    for first in range(0, len(rows), AT_ONCE):
        part = rows[first : first + AT_ONCE]
        padded = np.pad(part, [(0, AT_ONCE - len(part)), *[(0, 0)] * (part.ndim - 1)], mode="edge")
        parts.append(np.asarray(apply(params, padded))[: len(part)])
    return np.concatenate(parts)


def predicted(experiment: Experiment, found: NDArray[Any]) -> NDArray[Any]:
    """Return what a model's outputs mean, in the labels that the data has.

    Returns:
        Classes, by name where the data names them; a regression's numbers; True for every label
        that applies.
    """
    task = experiment.data.features.task
    if task == "regression":
        return found
    if task == "multilabel":
        applies: NDArray[Any] = found > 0
        return applies
    return labelled(experiment.data, np.argmax(found, axis=-1))


def labelled(data: FederatedData, classes: NDArray[Any]) -> NDArray[Any]:
    """Return classes by their names, where the data names them."""
    names = _symbols(data) if data.features.kind == "text" else data.class_names
    return classes if names is None else np.array(list(names))[classes]


class Predictions(NamedTuple):
    """Predictions for some samples, their labels, and whose samples they are."""

    clients: NDArray[np.str_]
    split: str
    labels: NDArray[Any]
    predicted: NDArray[Any]


def over_data(
    experiment: Experiment, params: Params, data: FederatedData, splits: Sequence[str]
) -> Iterator[Predictions]:
    """Predict the samples of the ``splits`` of a dataset, in the order of its clients."""
    wanted, given = experiment.data.features, data.features
    if (given.kind, given.shape) != (wanted.kind, wanted.shape):
        raise FedMomError(
            f"{data.name} has {given.kind} inputs of shape {given.shape}, but the model was trained"
            f" on {wanted.kind} inputs of shape {wanted.shape}."
        )
    arrays = place(data.arrays)
    for split in splits:
        users = data.users if split == "train" else data.test_users or data.users
        start, size = data.split(split)
        owners = np.repeat(np.array(users), size)
        # Clients share calls: a call for each would be mostly empty, or compiled for its size.
        ends = np.cumsum(size)
        positions = np.arange(len(owners)) + np.repeat(start - ends + size, size)
        for first in range(0, len(owners), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            x, y = read_at(given, arrays, positions[part])
            labels = labelled(data, y) if given.task in ("classes", "sequence") else y
            found = predicted(experiment, outputs(experiment, params, x))
            yield Predictions(owners[part], split, labels, found)


def write(
    experiment: Experiment,
    params: Params,
    prompt: str,
    length: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
) -> str:
    """Return a prompt and ``length`` characters that a character model has added to it."""
    features = experiment.data.features
    if features.kind != "text":
        raise FedMomError(
            f"{experiment.config.model} does not write text: its data is {features.kind}."
        )
    if not 0 <= temperature < np.inf:
        raise FedMomError(f"temperature {temperature} is not a number from 0 on. Take 0.5, say.")
    (window,) = features.shape
    apply, rng = _applied(experiment.model), np.random.default_rng(seed)
    symbols = _symbols(experiment.data)
    codes = _encoded(prompt or symbols[0], symbols)
    codes = np.concatenate([np.zeros(max(0, window - len(codes)), codes.dtype), codes])
    written = []
    for _ in range(length):
        logits = np.asarray(apply(params, codes[None, -window:].astype(np.int32)))[0]
        code = _drawn(logits.astype(np.float64), temperature, rng)
        codes = np.append(codes[1:], np.array(code, codes.dtype))
        written.append(symbols[code])
    return prompt + "".join(written)


def _drawn(logits: NDArray[np.float64], temperature: float, rng: np.random.Generator) -> int:
    if temperature == 0:
        return int(np.argmax(logits))
    # The Gumbel trick: the largest of logits plus noise is a draw from their softmax.
    return int(np.argmax(logits / temperature + rng.gumbel(size=logits.shape)))


def _rows(x: Any, data: FederatedData) -> NDArray[Any]:
    """Return inputs as an array that the model takes."""
    features = data.features
    if features.kind == "text" and not isinstance(x, np.ndarray):
        return np.stack([_window(text, _symbols(data), features.shape[0]) for text in x])
    rows = np.asarray(x)
    if rows.ndim == 0 or rows.shape[1:] != features.shape or not len(rows):
        wanted = ", ".join(map(str, features.shape))
        raise FedMomError(
            f"The inputs have the shape {rows.shape}. Give one input per row: (inputs, {wanted})."
        )
    if rows.dtype == np.uint8 and features.kind == "image":  # as in training
        return rows.astype(np.float32) / 255
    return rows.astype(np.float32) if rows.dtype.kind == "f" else rows


def _window(text: str, symbols: Sequence[str], length: int) -> NDArray[Any]:
    """Return the last characters of a text as numbers; a short one is filled up in front."""
    codes = _encoded(text[-length:], symbols)
    return np.pad(codes, (length - len(codes), 0))


def _symbols(data: FederatedData) -> Sequence[str]:
    """Return the characters of a text dataset; by default LEAF's."""
    return data.class_names or SYMBOLS


def _encoded(text: str, symbols: Sequence[str]) -> NDArray[np.int32]:
    places = {symbol: place for place, symbol in enumerate(symbols)}
    strange = [c for c in text if c not in places]
    if strange:
        raise FedMomError(
            f"{strange[0]!r} is none of the {len(symbols)} characters that the model was trained"
            f" on: {''.join(symbols)!r}."
        )
    return np.array([places[c] for c in text], np.int32)


@functools.lru_cache(maxsize=8)
def _applied(model: Model) -> Any:
    return jax.jit(lambda params, x: model.apply(params, x, None))
