"""Checkpoints: written whole, proven readable, and checked whole before a run resumes from one.

round-00000012.safetensors    model, server's states and runtime's tensors, in one file, so
                              that a kill cannot part them
checkpoint.json               the newest: its round, file, checksum, and lines of the logs
previous.json                 the same of the one before, which is kept for the case that
                              the newest is damaged

A run resumes from the newest one that is whole, with logs that reach it. Everything is read and
checked first. Only then is the folder touched, and what is no longer used is kept next to it.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fedmom.core.errors import FedMomError
from fedmom.core.files import (
    LARGEST,
    inner_folder,
    make_folder,
    open_file,
    parse_json,
    read_file,
    remove_file,
    sha256,
    temporary_name,
    write_atomic,
)
from fedmom.core.tensor_files import packed, unpacked
from fedmom.core.types import Say
from fedmom.experiments import logs
from fedmom.experiments.logs import EVALS, ROUNDS, Log, LogRows

FOLDER, NEWEST, PREVIOUS = "checkpoint", "checkpoint.json", "previous.json"
LONGEST_HEADER = 10**8  # bytes, as in the format
CLIENTS = "clients/"  # before the names of the runtime's tensors
Tensors = dict[str, NDArray[Any]]


class Checkpoint(NamedTuple):
    """What a run resumes from: the loop's state, and what the runtime keeps."""

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
        more = {key: value for key, value in self._asdict().items() if value is not None}
        return json.dumps({"round": self.round, "tensors": self.tensors, **more}).encode()


def save(folder: Path, checkpoint: Checkpoint, lines: Mapping[str, int] | None = None) -> None:
    """Write a checkpoint: first the tensors under a new name, then what points to them.

    Args:
        folder: The folder of checkpoints.
        checkpoint: What to write.
        lines: How many lines each log has, by its name.
    """
    make_folder(folder)
    tensors = named_leaves(checkpoint.state)
    tensors |= {CLIENTS + key: np.asarray(t) for key, t in checkpoint.runtime.items()}
    content = packed(tensors)
    digest = hashlib.sha256()
    for part in content:
        digest.update(part)
    pointer = Pointer(checkpoint.state.round, digest.hexdigest(), lines)
    write_atomic(folder / pointer.tensors, *content)
    if sha256(folder / pointer.tensors) != pointer.sha256:
        raise FedMomError(
            f"{folder / pointer.tensors} does not hold what was written to it. Check the disk; the"
            " checkpoint before it is still there."
        )
    kept = {pointer.tensors, _keep_previous(folder, pointer)}
    write_atomic(folder / NEWEST, pointer.json())
    for old in _files(folder):
        if old.name not in kept and _has(old, named_leaves(checkpoint.state)):
            remove_file(old)


def _files(folder: Path) -> list[Path]:
    """Return the files of tensors in the folder of checkpoints, by their names."""
    files = folder.glob("round-*.safetensors")
    return [f for f in files if re.fullmatch(r"round-\d{8,}", f.stem) and f.is_file()]


def _has(file: Path, tensors: Iterable[str]) -> bool:
    """Return whether a file's header names these tensors: a user's own file does not."""
    with contextlib.suppress(ValueError), open_file(file) as opened:
        size = int.from_bytes(opened.read(8), "little")
        return size < LARGEST and set(tensors) <= set(parse_json(opened.read(size)))
    return False


def put_aside(folder: Path) -> None:
    """Rename the tensors of a run that lost what points to them: it starts again."""
    for old in _files(folder):
        old.rename(_free(old))


def _keep_previous(folder: Path, new: Pointer) -> str:
    """Let ``previous.json`` be what is the newest until now; return the file it points to."""
    with contextlib.suppress(FedMomError, FileNotFoundError):
        newest = read_pointer(folder / NEWEST)
        if newest.round != new.round:  # otherwise its tensors have just been written over
            temporary = temporary_name(folder / PREVIOUS)
            try:
                os.link(folder / NEWEST, temporary)  # on the disk already: nothing to wait for
                temporary.replace(folder / PREVIOUS)
                temporary.unlink(missing_ok=True)  # still there if both are one file already
            except OSError:  # not every file system has links
                write_atomic(folder / PREVIOUS, read_file(folder / NEWEST))
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
        found = parse_json(read_file(path))
        known = {name: found[name] for name in Pointer._fields if name in found}
        pointer = TypeAdapter(Pointer).validate_python(known, strict=True)
        whole = 0 <= pointer.round < 2**62 and found["tensors"] == pointer.tensors
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
    leaves, structure = jax.tree.flatten(tuple(template[1:]))
    found = [_of_kind(leaf, kept[name]) for leaf, name in zip(leaves, expected, strict=True)]
    whole = jax.tree.unflatten(structure, found)
    state = type(template)(pointer.round, *jax.device_put(whole, jax.devices()[0]))
    return Checkpoint(state, clients)


def _read_tensors(path: Path, checksum: str | None) -> Tensors:
    try:
        _check_header(path)
        content = read_file(path, most=None)
        if checksum is not None and hashlib.sha256(content).hexdigest() != checksum:
            raise FedMomError(f"{path} is damaged: its checksum is not the one it was written with")
        return unpacked(content)
    except OSError as error:
        raise FedMomError(f"{path} cannot be read: {error.strerror}") from None
    except FedMomError:
        raise
    except ValueError as error:
        raise FedMomError(f"{path} is damaged: {error}".rstrip(".")) from None


def _check_header(path: Path) -> None:
    """Refuse a file that is not as long as its header says, before all of it is read."""
    with open_file(path) as file:
        size, head = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
        try:
            tensors: Any = parse_json(file.read(head)) if head <= LONGEST_HEADER else None
            ends = [about["data_offsets"][1] for about in tensors.values() if "dtype" in about]
            whole = size == 8 + head + max(ends, default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            whole = False
    if not whole:
        raise FedMomError(f"{path} is damaged: its length is not the one that its header says")


def _check_form(path: Path, found: Tensors, expected: Tensors) -> None:
    """Refuse tensors that are not those of the run's model and server, or not finite."""
    forms = [
        {name: f"{tensor.dtype} of shape {tensor.shape}" for name, tensor in tensors.items()}
        for tensors in (found, expected)
    ]
    for name in found.keys() | expected.keys():
        here, wanted = (form.get(name, "missing") for form in forms)
        if here != wanted:
            raise FedMomError(
                f"{path} does not fit the model of config.toml: {name} is {here}, not {wanted}"
            )
        if "float" in here.split()[0] and not np.isfinite(found[name]).all():
            raise FedMomError(f"{path} cannot be used: {name} is not finite")


def named_leaves(state: Any) -> Tensors:
    """Return the state's leaves, but for the round, by their path in the tree, in its order."""
    import jax

    from fedmom.core.prng import is_key

    return {
        jax.tree_util.keystr(path): np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tuple(state[1:]))
    }


def _of_kind(leaf: Any, tensor: NDArray[Any]) -> Any:
    """Return an array as what a state has in its place: a random key, or the array itself."""
    import jax

    from fedmom.core.prng import is_key

    if not is_key(leaf):
        return tensor
    return jax.random.wrap_key_data(jax.numpy.asarray(tensor), impl=jax.random.key_impl(leaf))


class FoundCheckpoint(NamedTuple):
    """A checkpoint to resume from, and the logs; ``fault`` says what is wrong with a newer one."""

    path: Path  # of the run
    checkpoint: Checkpoint
    pointer: Pointer
    logs: dict[str, Log]
    fault: str = ""

    def settle(self, say: Say) -> tuple[LogRows, LogRows]:
        """Cut the logs back to the checkpoint: later rounds are run again, to the same bits.

        Args:
            say: Called with a sentence if the newest checkpoint cannot be used.

        Returns:
            What is left of the rounds and of the evaluations.
        """
        if self.fault:
            say(
                f"{self.fault}. Resuming from the checkpoint before it, of round"
                f" {self.pointer.round}; later rounds are run again."
            )
            _put_newest_aside(inner_folder(self.path / FOLDER), self.pointer)
        rounds, evals = (
            logs.cut_after(self.path / name, self.logs[name], self.pointer.round)
            for name in (ROUNDS, EVALS)
        )
        return rounds, evals


def has_checkpoint(path: Path) -> bool:
    """Whether a run has written a checkpoint."""
    return any((inner_folder(path / FOLDER) / name).exists() for name in (NEWEST, PREVIOUS))


def find(path: Path, template: Any, last_round: int) -> FoundCheckpoint:
    """Find the checkpoint to resume from, without touching anything.

    Args:
        path: The run's folder.
        template: A state of the run, whose form the checkpoint's must have.
        last_round: The run's number of rounds.

    Returns:
        The newest checkpoint that is whole.

    Raises:
        FedMomError: A log has a bad line, or no checkpoint can be used.
    """
    read = {name: logs.read(path / name) for name in (ROUNDS, EVALS)}
    for name, log in read.items():
        logs.check_order(path / name, log)
    faults: list[str] = []
    for name in (NEWEST, PREVIOUS):
        file = inner_folder(path / FOLDER) / name
        try:
            pointer = read_pointer(file)
            _check_place(path, file, pointer, read, last_round)
            checkpoint = load(file.parent, pointer, template)
            return FoundCheckpoint(path, checkpoint, pointer, read, "; ".join(faults))
        except FileNotFoundError:
            if name == NEWEST:
                faults.append(f"{file} is missing")
        except FedMomError as error:
            faults.append(str(error))
    raise FedMomError(
        f"{'; '.join(faults)}. Restore the file from a copy, or start again in another folder:"
        f" fedmom run --config {path / 'config.toml'}"
    )


def _check_place(
    path: Path, file: Path, pointer: Pointer, read: dict[str, Log], last_round: int
) -> None:
    """Refuse a round that the run does not have, or that its logs do not reach."""
    if pointer.round > last_round:
        raise FedMomError(
            f"{file} is of round {pointer.round}, but config.toml has rounds = {last_round}"
        )
    check_lines(path, pointer, {name: len(log.rows) for name, log in read.items()})


def check_lines(path: Path, pointer: Pointer, found: Mapping[str, int]) -> None:
    """Refuse logs that have fewer lines than when the checkpoint was written.

    Args:
        path: The run's folder.
        pointer: The checkpoint.
        found: How many lines each log has, by its name.
    """
    needed = {ROUNDS: pointer.round, **(pointer.lines or {})}
    for name, lines in needed.items():
        if name in found and found[name] < lines:
            raise FedMomError(
                f"{path / name} has {found[name]} whole lines, fewer than the {lines} of"
                f" its checkpoint of round {pointer.round}"
            )


def _put_newest_aside(folder: Path, used: Pointer) -> None:
    """Let ``checkpoint.json`` point to what is used; keep what it was, and its tensors."""
    for old in _files(folder):
        if old.name != used.tensors:
            old.rename(_free(old))
    if (folder / NEWEST).exists():
        write_atomic(_free(folder / NEWEST), read_file(folder / NEWEST))
    write_atomic(folder / NEWEST, used.json())


def _free(path: Path) -> Path:
    """Return an unused name next to a file."""
    places = (path.with_name(f"{path.name}.aside-{number}") for number in itertools.count(1))
    return next(place for place in places if not place.exists())
