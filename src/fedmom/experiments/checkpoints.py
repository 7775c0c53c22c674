"""Checkpoints: written whole, proven readable, and checked whole before a run goes on from one.

round-00000012.safetensors    model, server's states and runtime's tensors, in one file, so
                              that a kill cannot part them
checkpoint.json               the newest: its round, file, checksum, and lines of the logs
previous.json                 the same of the one before, which is kept for the case that
                              the newest is damaged
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.files import parse_json, write_atomic

NEWEST, PREVIOUS = "checkpoint.json", "previous.json"
CLIENTS = "clients/"  # before the names of the runtime's tensors
Tensors = dict[str, NDArray[Any]]


class Checkpoint(NamedTuple):
    """What a run goes on from: the loop's state, and what the runtime keeps."""

    state: Any  # fedmom.training.loop.State
    runtime: Tensors


class Pointer(NamedTuple):
    """What ``checkpoint.json`` says; earlier versions wrote neither checksum nor lines."""

    round: int
    sha256: str | None = None
    lines: Mapping[str, int] | None = None  # of each log, when the checkpoint was written

    @property
    def tensors(self) -> str:
        """The name of the file with the tensors."""
        return f"round-{self.round:08d}.safetensors"

    def json(self) -> bytes:
        """Return the content of the file."""
        known = {"sha256": self.sha256, "lines": self.lines}
        more = {key: value for key, value in known.items() if value is not None}
        return json.dumps({"round": self.round, "tensors": self.tensors, **more}).encode()


def save(folder: Path, checkpoint: Checkpoint, lines: Mapping[str, int] | None = None) -> None:
    """Write a checkpoint: first the tensors under a new name, then what points to them.

    Args:
        folder: The folder of checkpoints.
        checkpoint: What to write.
        lines: How many lines each log has, by its name.
    """
    from safetensors.numpy import save as packed

    folder.mkdir(exist_ok=True)
    tensors = named_leaves(checkpoint.state)
    tensors |= {CLIENTS + key: np.asarray(t) for key, t in checkpoint.runtime.items()}
    content = packed(tensors)
    pointer = Pointer(checkpoint.state.round, hashlib.sha256(content).hexdigest(), lines)
    write_atomic(folder / pointer.tensors, content)
    if (folder / pointer.tensors).read_bytes() != content:
        raise FedMomError(
            f"{folder / pointer.tensors} does not hold what was written to it. Check the disk; the"
            " checkpoint before it is still there."
        )
    kept = {pointer.tensors, _keep_previous(folder, pointer)}
    write_atomic(folder / NEWEST, pointer.json())
    for old in folder.glob("*.safetensors"):
        if old.name not in kept:
            old.unlink()


def _keep_previous(folder: Path, new: Pointer) -> str:
    """Let ``previous.json`` be what is the newest until now; return the file it points to."""
    with contextlib.suppress(FedMomError, FileNotFoundError):
        newest = read_pointer(folder / NEWEST)
        if newest.round != new.round:  # otherwise its tensors have just been written over
            temporary = folder / f".{PREVIOUS}.tmp"
            temporary.unlink(missing_ok=True)
            try:
                os.link(folder / NEWEST, temporary)  # on the disk already: nothing to wait for
                temporary.replace(folder / PREVIOUS)
            except OSError:  # not every file system has links
                write_atomic(folder / PREVIOUS, (folder / NEWEST).read_bytes())
            return newest.tensors
    with contextlib.suppress(FedMomError, FileNotFoundError):
        return read_pointer(folder / PREVIOUS).tensors
    return new.tensors


def read_pointer(path: Path) -> Pointer:
    """Read ``checkpoint.json`` or ``previous.json``.

    Raises:
        FileNotFoundError: There is no such file.
        FedMomError: It is not what a run has written.
    """
    try:
        found = parse_json(path.read_bytes())
        pointer = Pointer(found["round"], found.get("sha256"), found.get("lines"))
        round_, checksum, lines = pointer
        whole = (
            type(round_) is int
            and 0 <= round_ < 2**62
            and found["tensors"] == pointer.tensors
            and isinstance(checksum, str | None)
            and isinstance(lines, dict | None)
            and all(type(count) is int for count in (lines or {}).values())
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FedMomError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise FedMomError(f"{path} is damaged: it does not name a round and its file")
    return pointer


def load(folder: Path, pointer: Pointer, template: Any) -> Checkpoint:
    """Read a checkpoint, and check all of it against the form that the run's state has.

    Args:
        folder: The folder of checkpoints.
        pointer: Which one.
        template: A state of the run, such as its first.

    Returns:
        The checkpoint, its state in the form of ``template``.
    """
    import jax

    path = folder / pointer.tensors
    tensors = _read_tensors(path, pointer.sha256)
    clients = {n.removeprefix(CLIENTS): t for n, t in tensors.items() if n.startswith(CLIENTS)}
    expected = named_leaves(template)
    kept = {name: t for name, t in tensors.items() if not name.startswith(CLIENTS)}
    _check_form(path, kept, expected)
    _, structure = jax.tree.flatten(tuple(template[1:]))
    whole = jax.tree.unflatten(structure, [kept[name] for name in expected])
    state = type(template)(pointer.round, *jax.device_put(whole, jax.devices()[0]))
    return Checkpoint(state, clients)


def _read_tensors(path: Path, checksum: str | None) -> Tensors:
    from safetensors import SafetensorError
    from safetensors.numpy import load as unpacked

    try:
        content = path.read_bytes()
        if checksum is not None and hashlib.sha256(content).hexdigest() != checksum:
            raise FedMomError(f"{path} is damaged: its checksum is not the one it was written with")
        found: Tensors = unpacked(content)
    except OSError as error:
        raise FedMomError(f"{path} cannot be read: {error.strerror}") from None
    except (SafetensorError, KeyError, TypeError, OverflowError) as error:
        raise FedMomError(f"{path} is damaged: {error}".rstrip(".")) from None
    return found


def _check_form(path: Path, found: Tensors, expected: Tensors) -> None:
    """Refuse tensors that are not those of the run's model and server, or not finite."""
    for name in found.keys() | expected.keys():
        here, wanted = (_form(tensors.get(name)) for tensors in (found, expected))
        if here != wanted:
            raise FedMomError(
                f"{path} does not fit the model of config.toml: {name} is {here}, not {wanted}"
            )
        if "float" in here.split()[0] and not np.isfinite(found[name]).all():
            raise FedMomError(f"{path} cannot be used: {name} is not finite")


def _form(tensor: NDArray[Any] | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} of shape {tensor.shape}"


def named_leaves(state: Any) -> Tensors:
    """Return the state's leaves, but for the round, by their path in the tree, in its order."""
    import jax

    return {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tuple(state[1:]))
    }
