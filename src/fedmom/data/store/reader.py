"""Opening a packed store: its manifest and tables are checked, its arrays mapped into memory."""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedmom.core.errors import FedMomError
from fedmom.core.files import cache_folder, open_file, read_file, write_atomic
from fedmom.core.progress import bars
from fedmom.data.federated import Columns, Features, FederatedData, Split, Task, Tokens, capacity
from fedmom.data.schema import check_columns
from fedmom.data.store import FORMAT, LARGEST_MANIFEST, MANIFEST, TABLES

EARLIER_KINDS = {"picture": "image"}  # as the first stores of this format name them
# Plain numbers, native on every machine that runs this. A file must never choose another type:
# Python would follow the "pointers" of an array of objects.
Type = Literal["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"]
Size = Annotated[int, Field(ge=0, le=2**62, strict=True)]


class StoredArray(BaseModel):
    """One file: the type and shape of its array, and its checksum."""

    model_config = ConfigDict(frozen=True)

    dtype: Type
    shape: Annotated[tuple[Size, ...], Field(min_length=1, max_length=8)]
    sha256: str

    @property
    def bytes(self) -> int:
        """How large the file must be."""
        return math.prod(self.shape) * int(self.dtype[2:])


class Manifest(BaseModel):
    """The whole of ``manifest.json``."""

    model_config = ConfigDict(frozen=True)

    format: int
    name: str
    kind: Literal["vector", "image", "text"]
    shape: tuple[Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)], ...]
    classes: Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]
    task: Task = "classes"  # stores of earlier versions have no other
    class_names: tuple[str, ...] | None = None
    columns: Columns | None = None  # of a table, in stores of later versions than the first
    tokens: Tokens | None = None  # of sequences of different lengths, in later versions still
    training_clients: Annotated[int, Field(ge=1, strict=True)]
    source: dict[str, Any]
    arrays: dict[str, StoredArray]

    @property
    def checksum(self) -> str:
        """One checksum of all that is trained on: the arrays, and how they are read."""
        arrays = {name: [a.dtype, a.shape, a.sha256] for name, a in self.arrays.items()}
        read_as: list[Any] = [self.kind, self.shape, self.classes, self.training_clients]
        if self.task != "classes":
            read_as.append(self.task)
        if self.class_names is not None:
            read_as.append(self.class_names)
        text = json.dumps([read_as, arrays], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @model_validator(mode="before")
    @classmethod
    def _known_format(cls, values: Any) -> Any:
        """Refuse another format first: whatever else differs follows from it."""
        if isinstance(values, dict) and values.get("format") != FORMAT:
            raise FedMomError(
                f"it is of format {values.get('format')!r}, and this version reads {FORMAT}."
                " Prepare it again"
            )
        if isinstance(values, dict):
            kind = values.get("kind")
            return {**values, "kind": EARLIER_KINDS.get(kind, kind) if isinstance(kind, str) else 0}
        return values

    @model_validator(mode="after")
    def _whole(self) -> "Manifest":
        """Refuse arrays that are missing, too many, or not of the shape that the data asks for."""
        samples = {"text"} if self.kind == "text" else {"x", "y"}
        if self.arrays.keys() - {"at"} != {*samples, *TABLES, "users"}:
            raise FedMomError(f"its arrays are {', '.join(sorted(self.arrays))}")
        for name, array in self.arrays.items():
            if name not in ("x", "y") and (len(array.shape) != 1 or array.dtype[1] not in "iu"):
                raise FedMomError(f"{name} is not a list of whole numbers")
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise FedMomError(f"it names {len(self.class_names)} of {self.classes} classes")
        if self.columns is not None:
            check_columns(self.columns, self.shape)
        self._check_samples()
        self._check_clients()
        return self

    def _check_samples(self) -> None:
        if self.kind == "text":
            if len(self.shape) != 1:
                raise FedMomError(f"shape {self.shape} is not the length of a window of text")
            if self.task != "classes":
                raise FedMomError(f"text has the next symbol for a label, not the task {self.task}")
            return
        x, y = self.arrays["x"].shape, self.arrays["y"].shape
        if x[1:] != self.shape or x[0] != y[0]:
            raise FedMomError(f"x of shape {x} and y of shape {y} are not one row a sample")
        self._check_labels()

    def _check_labels(self) -> None:
        y = self.arrays["y"]
        columns = {"classes": (), "sequence": self.shape[:1]}.get(self.task, (self.classes,))
        kinds = "f" if self.task == "regression" else "iu"
        if y.shape[1:] != columns or y.dtype[1] not in kinds:
            raise FedMomError(
                f"y of type {y.dtype} and shape {y.shape} does not hold the labels of"
                f" {self.task} with {self.classes}"
            )

    def _check_clients(self) -> None:
        clients = self.arrays["users_end"].shape[0]
        for name in TABLES:
            if self.arrays[name].dtype != "<i8" or self.arrays[name].shape[0] != clients:
                raise FedMomError(f"{name} is not one 64-bit number for each client")
        if self.training_clients > clients:
            raise FedMomError(f"training_clients {self.training_clients} is more than {clients}")


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a store of this format; refuse anything else."""
    try:
        return Manifest.model_validate_json(read_file(folder / MANIFEST, LARGEST_MANIFEST))
    except FileNotFoundError as error:
        raise FedMomError(f"{folder} is not a packed store: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = f"{'.'.join(map(str, first['loc']))}: " if first["loc"] else ""
        said = first["msg"].removeprefix("Value error, ").rstrip(".")
        raise FedMomError(f"{folder} is not a packed store: {where}{said}.") from None


def load_store(folder: Path) -> FederatedData:
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
    users = UserNames(characters, ends[:trained])
    test_users = UserNames(characters, ends[trained:], int(ends[trained - 1])) if others else None
    features = Features(manifest.kind, manifest.shape, manifest.classes, manifest.task)
    names = manifest.class_names, manifest.columns, manifest.tokens
    data = FederatedData(manifest.name, users, features, arrays, train, test, test_users, *names)
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
    return (path / MANIFEST).is_file()


class UserNames(Sequence[str]):
    """The clients' names, decoded one at a time."""

    def __init__(
        self, characters: NDArray[np.uint8], ends: NDArray[np.int64], first: int = 0
    ) -> None:
        self._characters, self._ends, self._first = characters, ends, first

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:  # a name, or a list of them
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        first = int(self._ends[index - 1]) if index else self._first
        return self._characters[first : int(self._ends[index])].tobytes().decode(errors="replace")


def _mapped(folder: Path, name: str, entry: StoredArray) -> NDArray[Any]:
    path = folder / f"{name}.bin"
    try:
        with open_file(path) as file:
            if (size := os.fstat(file.fileno()).st_size) != entry.bytes:
                raise FedMomError(f"{path} has {size} bytes, not {entry.bytes}. Prepare it again.")
            if not entry.bytes:
                return np.empty(entry.shape, entry.dtype)
            return np.asarray(np.memmap(file, entry.dtype, mode="r", shape=entry.shape))
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
    stats = [
        [f.name, f.lstat().st_size, f.lstat().st_mtime_ns] for f in sorted(folder.glob("*.bin"))
    ]
    manifest = hashlib.sha256(read_file(folder / MANIFEST, LARGEST_MANIFEST)).hexdigest()
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
                with open_file(folder / f"{name}.bin") as file:
                    if (size := os.fstat(file.fileno()).st_size) != entry.bytes:
                        faults.append(
                            f"{name}.bin has {size} bytes, not {entry.bytes}. Prepare it again."
                        )
                        continue
                    read = progress.wrap_file(file, total, task_id=task)  # advances as it is read
                    found = hashlib.file_digest(read, "sha256")  # type: ignore[arg-type]
                if found.hexdigest() != entry.sha256:
                    faults.append(f"{name}.bin has changed since it was packed. Prepare it again.")
            except OSError as error:
                faults.append(f"{name}.bin cannot be read: {error.strerror}.")
    return faults
