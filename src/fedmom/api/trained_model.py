"""A trained model: its outputs, predictions and text; and its files for others, maybe as ONNX."""

import contextlib
import functools
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.files import make_folder, write_atomic
from fedmom.core.fusion import plain_calls
from fedmom.core.types import Params
from fedmom.data.batches import place, read_at
from fedmom.data.federated import FederatedData
from fedmom.data.given import encoded, inputs_for
from fedmom.data.rows.values import listed
from fedmom.data.schema import Schema
from fedmom.experiments.execute import warn
from fedmom.models.base import Model
from fedmom.models.variables import parameter_names

if TYPE_CHECKING:
    from fedmom.api.runs import Run

AT_ONCE = 256  # inputs in a call
TENSORS, ONNX, CARD, SETTINGS = "model.safetensors", "model.onnx", "README.md", "config.toml"
SCHEMA = "schema.json"


def outputs(run: "Run", x: Any, tokenizer: Any = None) -> NDArray[Any]:
    """Return a model's outputs for inputs, one per row; strings for a model of text."""
    return _outputs(run, inputs_for(run.schema, x, warn, tokenizer))


def _outputs(run: "Run", rows: NDArray[Any]) -> NDArray[Any]:
    apply = _applied(run.experiment.model.plain)
    parts = []
    for first in range(0, len(rows), AT_ONCE):
        part = rows[first : first + AT_ONCE]
        padded = np.pad(part, [(0, AT_ONCE - len(part)), *[(0, 0)] * (part.ndim - 1)], mode="edge")
        parts.append(np.asarray(apply(run.params, padded))[: len(part)])
    return np.concatenate(parts)


def predicted(schema: Schema, found: NDArray[Any]) -> NDArray[Any]:
    """Return what a model's outputs mean, in the labels that its data has.

    Returns:
        Classes, by name where the data names them; a regression's numbers; True for every label
        that applies.
    """
    if schema.task == "regression":
        return found
    if schema.task == "multilabel":
        return found > 0
    return labelled(schema, np.argmax(found, axis=-1))


def labelled(schema: Schema, classes: NDArray[Any]) -> NDArray[Any]:
    """Return classes by their names, where the data names them; "" where no label counts."""
    if schema.class_names is None:
        return classes
    names = schema.class_names + tuple(map(str, range(schema.classes, classes.max(initial=0) + 1)))
    texts = np.array([*names, ""], object if "\0" in "".join(names) else str)
    return texts[np.where(classes < 0, -1, classes)]


class Predictions(NamedTuple):
    """Predictions for some samples, their labels, and whose samples they are.

    ``right``, of the labels that count, and ``known``, whether the model has a label's class, are
    empty where predictions cannot be compared with the labels.
    """

    clients: NDArray[np.str_]
    split: str
    labels: NDArray[Any]
    predicted: NDArray[Any]
    right: NDArray[np.bool_]
    known: NDArray[np.bool_]


def why_incomparable(schema: Schema, data: FederatedData) -> str:
    """Return why predictions cannot be compared with the labels of data; empty if they can."""
    given = Schema.of(data)
    if given.task != schema.task:
        return f"The labels of {data.name} are {given.task}, and the model predicts {schema.task}."
    if schema.task == "multilabel":
        return "" if _labels(given) == _labels(schema) else _different(schema, given, data.name)
    names = given.class_names or schema.class_names or ()
    other = schema if given.class_names else given
    if names and schema.task != "regression" and not any(other.has_class(name) for name in names):
        return _different(schema, given, data.name)
    return ""


def _different(schema: Schema, given: Schema, name: str) -> str:
    return f"The labels of {name} are {_labels(given)}, and the model predicts {_labels(schema)}."


def _labels(schema: Schema) -> str:
    return listed(schema.class_names) if schema.class_names else f"0 to {schema.classes - 1}"


def over_data(run: "Run", data: FederatedData, splits: Sequence[str]) -> Iterator[Predictions]:
    """Predict the samples of the ``splits`` of a dataset, in the order of its clients.

    Args:
        run: The run.
        data: The dataset, in the form of the run's schema.
        splits: The splits.
    """
    given, arrays = Schema.of(data), place(data.arrays)
    compare = run.schema.task != "regression" and not why_incomparable(run.schema, data)
    for split in splits:
        users = data.users if split == "train" else data.test_users or data.users
        start, size = data.split(split)
        owners = np.repeat(np.array(users), size)
        # Clients share calls: a call for each would be mostly empty, or compiled for its size.
        ends = np.cumsum(size)
        positions = np.arange(len(owners)) + np.repeat(start - ends + size, size)
        for first in range(0, len(owners), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            x, y = read_at(data.features, arrays, positions[part])
            labels = labelled(given, y) if given.task in ("classes", "sequence") else y
            found = predicted(run.schema, _outputs(run, x))
            compared = NOT_COMPARED
            if compare:
                counted = y >= 0 if given.task == "sequence" else np.ones(y.shape, bool)
                compared = _compared(run.schema, labels, found, counted)
            yield Predictions(owners[part], split, labels, found, *compared)


NOT_COMPARED = np.zeros(0, bool), np.zeros(0, bool)


def _compared(
    schema: Schema, labels: NDArray[Any], found: NDArray[Any], counted: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which labels that count are predicted, and which are classes of the model."""
    if schema.task == "multilabel":
        return labels == found, np.ones(labels.shape, bool)
    texts = labels.astype(str)  # the class 1 of one may be called "1" by the other
    known = [text for text in np.unique(texts[counted]).tolist() if schema.has_class(text)]
    return (texts == found.astype(str))[counted], np.isin(texts, known) | ~counted


def write(run: "Run", prompt: str, length: int, temperature: float, seed: int) -> str:
    """Return a prompt and ``length`` characters that a character model has added to it."""
    experiment, params = run.experiment, run.params
    features = experiment.data.features
    if features.kind != "text":
        raise FedMomError(
            f"{experiment.config.model} does not write text: its data is {features.kind}."
        )
    (window,) = features.shape
    apply, rng = _applied(experiment.model.plain), np.random.default_rng(seed)
    symbols = run.schema.class_names or ()
    codes = encoded(run.schema, prompt or "".join(symbols[:1]), "the prompt")
    codes = np.pad(codes, (window, 0))[-window:]
    written = []
    for _ in range(length):
        logits = np.asarray(apply(params, codes[None]))[0]
        code = _drawn(logits.astype(np.float64), temperature, rng)
        codes = np.append(codes[1:], np.array(code, codes.dtype))
        written.append(symbols[code])
    return prompt + "".join(written)


def _drawn(logits: NDArray[np.float64], temperature: float, rng: np.random.Generator) -> int:
    if temperature == 0:
        return int(np.argmax(logits))
    # The Gumbel trick: the largest of logits plus noise is a draw from their softmax.
    return int(np.argmax(logits / temperature + rng.gumbel(size=logits.shape)))


@functools.lru_cache(maxsize=8)
def _applied(model: Model) -> Any:
    return jax.jit(lambda params, x: model.apply(params, x, None))


def write_files(run: "Run", folder: Path, onnx_batch: int | None = None) -> None:
    """Write a run's model, a model card and its settings into a new folder."""
    from safetensors.numpy import save

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedMomError(f"{folder} is not an empty folder. Choose another --out.")
    tensors = named_tensors(run.params)
    onnx = {} if onnx_batch is None else {ONNX: onnx_bytes(run, onnx_batch)}
    files = {
        TENSORS: save(tensors, {"format": "fedmom", "model": run.result.config.model}),
        **onnx,
        CARD: card(run, tensors).encode(),
        SETTINGS: run.result.config.toml().encode(),
        SCHEMA: run.schema.to_json(),
    }
    make_folder(folder)
    try:
        for name, content in files.items():
            write_atomic(folder / name, content)
    except BaseException:  # a full disk, Ctrl-C: the same folder can be given again
        for name in files:
            (folder / name).unlink(missing_ok=True)
        raise


def named_tensors(params: Params) -> dict[str, NDArray[Any]]:
    """Return a model's parameters by their place in the tree.

    Examples:
        >>> sorted(named_tensors([{"w": np.ones(2), "b": np.zeros(1)}]))
        ['0/b', '0/w']
    """
    arrays = map(np.asarray, jax.tree.leaves(params))
    return dict(zip(parameter_names(params), arrays, strict=True))


def card(run: "Run", tensors: Mapping[str, NDArray[Any]]) -> str:
    """Return the model card, in Markdown."""
    data, result = run.experiment.data, run.result
    size = sum(tensor.size for tensor in tensors.values())
    facts = {
        "data": f"{data.name}: {data.clients:,} clients, {int(data.train.size.sum()):,} training"
        f" and {int(data.test.size.sum()):,} test samples",
        "model": f"{result.config.model}, {size:,} parameters",
        "algorithm": result.config.algorithm,
        "rounds": f"{result.done:,} of {result.config.rounds:,}, {result.status}",
        "differential privacy": "none",
    }
    sections = [
        f"# {result.config.model} on {data.name}",
        "Trained by federated learning with FedMom.",
        _table(("", ""), list(facts.items())),
        "## Metrics",
        f"Of the last evaluation, after round {result.done:,}. Means are weighted by samples;"
        " percentiles are over clients.",
        _metrics(result.evals),
        "## Tensors",
        f"`{TENSORS}` holds the parameters:",
        _table(("name", "shape"), [(f"`{k}`", str(v.shape)) for k, v in tensors.items()]),
        "```python\nfrom safetensors.numpy import load_file\n\n"
        f'params = load_file("{TENSORS}")\n```',
        "## Inputs and outputs",
        f"`{SCHEMA}` has all columns and names.",
        _table(("", ""), list(_described(run.schema).items())),
        "## Settings",
        f"All are in `{SETTINGS}`.",
        _table(("setting", "value"), list(result.settings().items())),
        "## Versions",
        _table(("package", "version"), list((result.versions or {}).items())),
    ]
    return "\n\n".join(sections) + "\n"


def _described(schema: Schema) -> dict[str, str]:
    """Return what a model is given and returns, for its card."""
    shape, scaled = ", ".join(map(str, schema.shape)), ""
    if schema.divided_by > 1:
        scaled = f", bytes divided by {schema.divided_by}"
    found = {"inputs": f"{schema.kind}, {schema.dtype} of shape (inputs, {shape}){scaled}"}
    if schema.columns is not None:
        found["columns"] = listed([column.name for column in schema.columns.inputs])
    outputs = {"classes": "class", "sequence": "class at every position", "multilabel": "label"}
    what = f"a number for every {outputs[schema.task]}" if schema.task in outputs else "values"
    found["outputs"] = f"{what}: {schema.classes:,}"
    if schema.class_names is not None:
        found["names of outputs"] = listed(schema.class_names)
    return found


def _metrics(evals: Any) -> str:
    last = {row["split"]: row for row in evals}
    numbers = (k for k, v in next(iter(last.values()), {}).items() if not isinstance(v, list))
    names = [name for name in numbers if name not in ("round", "split")]
    rows = [(name, *(_number(row.get(name)) for row in last.values())) for name in names]
    return _table(("metric", *last), rows)


def _number(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _table(columns: tuple[str, ...], rows: list[Any]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def onnx_bytes(run: "Run", batch: int) -> bytes:
    """Return a run's model as ONNX, for inputs of the fixed shape ``(batch, ...)``."""
    try:
        with _quiet():
            from jax2onnx import to_onnx  # type: ignore[import-untyped]
    except ImportError:
        raise FedMomError("ONNX files need an extra: pip install 'fedmom[onnx]'.") from None
    params, model, schema = run.params, run.experiment.model.plain, run.schema
    form = (batch, *schema.shape)
    inputs: Any = jax.eval_shape(lambda: jax.numpy.zeros(form, schema.dtype))
    with _quiet(), plain_calls():
        made = to_onnx(lambda x: model.apply(params, x, None), inputs=[inputs])
    return made.SerializeToString()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep a converter's notes to its developers from the user."""
    with warnings.catch_warnings(action="ignore"):
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
