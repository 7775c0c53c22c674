"""A trained model as an ONNX file, which runs without Python or JAX."""

import contextlib
import logging
import warnings
from typing import Any

import jax
import numpy as np

from fedmom.api.runs import Run
from fedmom.core.errors import FedMomError
from fedmom.core.fusion import plain_calls


def onnx_bytes(run: Run, batch: int) -> bytes:
    """Return a run's model as ONNX: inputs ``(batch, ...)`` to outputs, with its parameters.

    Args:
        run: The run.
        batch: Inputs in a call. The file's shapes are fixed.
    """
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
def _quiet() -> Any:
    """Keep a converter's notes to its developers from the user."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
