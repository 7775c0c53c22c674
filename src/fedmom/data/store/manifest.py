"""What a packed store says of itself, checked before anything of it is mapped into memory."""

import hashlib
import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedmom.core.errors import FedMomError
from fedmom.data.federated import Task
from fedmom.data.store import FORMAT, TABLES

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
        return Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    except OSError as error:
        raise FedMomError(f"{folder} is not a packed store: {error.strerror}.") from None
    except (ValidationError, FedMomError) as error:
        raise FedMomError(f"{folder} is not a packed store: {_sentence(error)}.") from None


def _sentence(error: ValidationError | FedMomError) -> str:
    if isinstance(error, FedMomError):
        return str(error).rstrip(".")
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    said = first["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{where}: {said}" if where else said
