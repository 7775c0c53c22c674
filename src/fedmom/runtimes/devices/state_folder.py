"""What a device remembers between rounds, in files that its owner can see and delete."""

import contextlib
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedmom.core.files import write_atomic

NEW = -1  # in place of a round: a client that has no state yet


class StateFolder:
    """A client's states, one file for each round that it answered.

    The server says from which round's state to start, and which ones nobody will ask for again.
    So a device does the right thing after its own restart, and after one of the server's, which
    may repeat rounds.

    Args:
        folder: Where the device keeps what it remembers.
        run: The run's name, a few letters and digits.
    """

    def __init__(self, folder: Path, run: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise ValueError("the run's name is not of digits and the letters a to f")
        self._folder = folder / run

    def load(self, round_: int, form: Any) -> Any | None:
        """Return the state after a round, or None where there is none that can be used."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        leaves, structure = jax.tree.flatten(form)
        with contextlib.suppress(OSError, SafetensorError, ValueError):
            tensors = load(self._file(round_).read_bytes())
            kept = [tensors.get(str(i)) for i in range(len(leaves))]
            fits = (
                found is not None and found.shape == leaf.shape and found.dtype == leaf.dtype
                for found, leaf in zip(kept, leaves, strict=True)
            )
            if all(fits):
                return jax.tree.unflatten(structure, kept)
        return None

    def save(self, round_: int, state: Any, oldest: int) -> None:
        """Keep the state after a round; forget those before ``oldest``."""
        from safetensors.numpy import save

        self._folder.mkdir(parents=True, exist_ok=True)
        tensors = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        write_atomic(self._file(round_), save(tensors))
        for file in self._folder.glob("round-*.safetensors"):
            if file < self._file(oldest):
                file.unlink(missing_ok=True)

    def _file(self, round_: int) -> Path:
        return self._folder / f"round-{max(round_, 0):08d}.safetensors"
