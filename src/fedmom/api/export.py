"""A trained model as files for others: parameters, a card that says what it is, maybe ONNX."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.files import write_atomic
from fedmom.core.fusion import plain_calls
from fedmom.core.types import Params

if TYPE_CHECKING:
    from fedmom.api.runs import Run

TENSORS, ONNX, CARD, SETTINGS = "model.safetensors", "model.onnx", "README.md", "config.toml"


def write_model(run: "Run", folder: Path, onnx_batch: int | None = None) -> None:
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
    }
    folder.mkdir(parents=True, exist_ok=True)
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
    return {
        "/".join(map(_step, path)) or "params": np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


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
        "## Settings",
        f"All are in `{SETTINGS}`.",
        _table(("setting", "value"), list(result.settings().items())),
        "## Versions",
        _table(("package", "version"), list((result.versions or {}).items())),
    ]
    return "\n\n".join(sections) + "\n"


def _metrics(evals: Any) -> str:
    last = {row["split"]: row for row in evals}
    names = [key for key in next(iter(last.values()), {}) if key not in ("round", "split")]
    rows = [(name, *(_number(row.get(name)) for row in last.values())) for name in names]
    return _table(("metric", *last), rows)


def _number(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _table(columns: tuple[str, ...], rows: list[Any]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def _step(key: Any) -> str:
    """Return one step into a tree as text."""
    for name in ("key", "idx", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


def onnx_bytes(run: "Run", batch: int) -> bytes:
    """Return a run's model as ONNX, for inputs of the fixed shape ``(batch, ...)``."""
    try:
        with _quiet():
            from jax2onnx import to_onnx  # type: ignore[import-untyped]
    except ImportError:
        raise FedMomError("ONNX files need an extra: pip install 'fedmom[onnx]'.") from None
    params, model, features = run.params, run.experiment.model, run.experiment.data.features
    kind = np.int32 if features.kind == "text" else np.float32
    inputs: Any = jax.eval_shape(lambda: jax.numpy.zeros((batch, *features.shape), kind))
    with _quiet(), plain_calls():
        made: Any = to_onnx(lambda x: model.apply(params, x, None), inputs=[inputs])
    content: bytes = made.SerializeToString()
    return content


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep a converter's notes to its developers from the user."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
