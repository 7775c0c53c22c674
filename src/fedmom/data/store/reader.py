"""Opening a packed store: its tables are checked, its arrays mapped into memory."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.files import cache_folder, write_atomic
from fedmom.core.progress import bars
from fedmom.data.federated import Features, FederatedData, Split, capacity
from fedmom.data.store.manifest import Manifest, StoredArray, read_manifest

CHUNK = 2**22  # bytes read at a time


def open_store(folder: Path) -> FederatedData:
    """Map a store into memory. Its tables are checked now, its checksums on its first use."""
    manifest = read_manifest(folder)
    arrays = {n: _mapped(folder, n, entry) for n, entry in manifest.arrays.items()}
    _check_tables(folder, manifest, arrays)
    verify_once(folder)
    ends, characters = arrays.pop("users_end"), arrays.pop("users")
    trained = manifest.training_clients
    others = trained < len(ends)  # clients that are only tested come after the trained ones
    tested = slice(trained, None) if others else slice(None)
    train = Split(arrays.pop("train_start")[:trained], arrays.pop("train_size")[:trained])
    test = Split(arrays.pop("test_start")[tested], arrays.pop("test_size")[tested])
    data = FederatedData(
        name=manifest.name,
        users=UserNames(characters, ends[:trained]),
        features=Features(manifest.kind, manifest.shape, manifest.classes, manifest.task),
        arrays=arrays,
        train=train,
        test=test,
        test_users=UserNames(characters, ends[trained:], int(ends[trained - 1]))
        if others
        else None,
        class_names=manifest.class_names,
    )
    object.__setattr__(data, "checksum", manifest.checksum)  # frozen for everybody else
    return data


def _check_tables(folder: Path, manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse clients whose samples lie outside the arrays: they would be trained on others'."""
    room = capacity(arrays, manifest.shape)
    for split in ("train", "test"):
        start, size = arrays[f"{split}_start"], arrays[f"{split}_size"]
        # Not start + size, which may be too large for a number.
        wrong = (size < 0) | ((size > 0) & ((start < 0) | (start > room) | (size > room - start)))
        if wrong.any():
            client = int(np.argmax(wrong))
            raise FedMomError(
                f"{folder}: client {client} has {size[client]} {split} samples from position"
                f" {start[client]} on, but there are {room}. Prepare it again."
            )
    ends = arrays["users_end"]
    if (np.diff(ends, prepend=0) < 0).any() or ends[-1] > len(arrays["users"]):
        raise FedMomError(f"{folder}: users_end is not in order. Prepare it again.")


def is_store(path: Path) -> bool:
    """Return whether a path is a packed store."""
    return (path / "manifest.json").is_file()


class UserNames(Sequence[str]):
    """The clients' names, decoded one at a time."""

    def __init__(
        self, characters: NDArray[np.uint8], ends: NDArray[np.int64], first: int = 0
    ) -> None:
        self._characters, self._ends, self._first = characters, ends, first

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        first = int(self._ends[index - 1]) if index else self._first
        return self._characters[first : int(self._ends[index])].tobytes().decode(errors="replace")


def _mapped(folder: Path, name: str, entry: StoredArray) -> NDArray[Any]:
    path = folder / f"{name}.bin"
    try:
        if path.stat().st_size != entry.bytes:
            raise FedMomError(
                f"{path} has {path.stat().st_size} bytes, not {entry.bytes}. Prepare it again."
            )
        if not entry.bytes:
            return np.empty(entry.shape, entry.dtype)
        return np.asarray(np.memmap(path, entry.dtype, mode="r", shape=entry.shape))
    except OSError as error:
        raise FedMomError(f"{path} cannot be read: {error.strerror}.") from None


def verify_once(folder: Path) -> None:
    """Compare checksums, unless this store with files of these sizes and times has passed."""
    mark = _mark(folder)
    if not mark.exists():
        faults = check_store(folder)
        if faults:
            raise FedMomError(f"{folder}: {' '.join(faults)}")
        remember(folder)


def remember(folder: Path) -> None:
    """Write down that a store's checksums are right."""
    mark = _mark(folder)
    mark.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_atomic(mark, str(folder).encode())
    except FileNotFoundError:  # another process was at it, and has taken the new file away
        if not mark.exists():
            raise


def _mark(folder: Path) -> Path:
    files = sorted(folder.glob("*.bin"))
    stats = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    manifest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    identity = json.dumps([str(folder.resolve()), manifest, stats])
    return cache_folder() / "verified" / hashlib.sha256(identity.encode()).hexdigest()


def check_store(folder: Path) -> list[str]:
    """Compare a store's files with their checksums; return a sentence for each fault."""
    faults = []
    arrays = read_manifest(folder).arrays
    total = sum(array.bytes for array in arrays.values())
    with bars() as progress:
        task = progress.add_task(f"checking {folder.name}", total=total)
        for name, entry in arrays.items():
            try:
                found = _digest(folder / f"{name}.bin", lambda n: progress.advance(task, n))
                if found != entry.sha256:
                    faults.append(f"{name}.bin has changed since it was packed. Prepare it again.")
            except OSError as error:
                faults.append(f"{name}.bin cannot be read: {error.strerror}.")
    return faults


def _digest(path: Path, advanced: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            digest.update(part)
            advanced(len(part))
    return digest.hexdigest()
