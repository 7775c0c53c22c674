"""Write packed stores, client after client; a store gets its name only when it is complete.

``cached`` packs a source into the cache once, ``save_store`` writes any dataset as a store.
"""

import contextlib
import hashlib
import json
import os
import shutil
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.files import cache_folder, naming
from fedmom.data.federated import Columns, Features, FederatedData, Split, Tokens
from fedmom.data.store import FILES, FORMAT, LARGEST_MANIFEST, MANIFEST, TABLES

Range = tuple[int, int]  # the first, and how many
Ranges = list[Range]
ClientRows = tuple[dict[str, NDArray[Any]], Ranges]


def cached(name: str, identity: Any, pack: Callable[[Path], None]) -> FederatedData:
    """Open the cached store of a source, packing it first where there is none.

    Args:
        name: The first part of the store's name in the cache.
        identity: All that the store depends on (files with sizes and times, options), in JSON.
        pack: Writes the store to a folder.

    Returns:
        The dataset, mapped into memory.
    """
    from fedmom.data.store.reader import is_store, load_store  # loads pydantic

    digest = hashlib.sha256(json.dumps([FORMAT, identity], sort_keys=True).encode()).hexdigest()
    folder = cache_folder() / f"{name}-{digest[:16]}"
    if not is_store(folder):
        pack(folder)
    return load_store(folder)


def save_store(data: FederatedData, folder: Path, source: Mapping[str, Any]) -> None:
    """Write all samples of a dataset, client after client, so that each lies side by side."""
    columns = {n: (a.dtype.str, a.shape[1:]) for n, a in data.arrays.items() if n != "at"}
    cut: Callable[[FederatedData, int, Sequence[Split]], ClientRows] = _rows
    if data.features.kind == "text":
        cut = _text
        if "at" in data.arrays:
            cut, columns["at"] = _windows, ("int32", ())
    own_test = [data.test] if data.test_users is None else []
    names = data.class_names, data.columns, data.tokens
    known = data.name, data.features, columns, source, *names
    with Packer(folder, *known) as packer:
        for k, user in enumerate(data.users):
            arrays, ranges = cut(data, k, [data.train, *own_test])
            packer.add(user, arrays, train=ranges[0], test=ranges[1] if own_test else (0, 0))
        for k, user in enumerate(data.test_users or ()):
            arrays, ranges = cut(data, k, [data.test])
            packer.add(user, arrays, train=None, test=ranges[0])


def _positions(k: int, parts: Sequence[Split]) -> tuple[NDArray[np.int64], Ranges]:
    """Return a client's positions, part after part, and the range of each part in them."""
    positions = [np.arange(p.start[k], p.start[k] + p.size[k]) for p in parts]
    ends = np.cumsum([len(p) for p in positions])
    ranges = [(int(e) - len(p), len(p)) for e, p in zip(ends, positions, strict=True)]
    return np.concatenate(positions), ranges


def _rows(data: FederatedData, k: int, parts: Sequence[Split]) -> ClientRows:
    """Copy the rows of a client's samples."""
    rows, ranges = _positions(k, parts)
    rows = data.arrays["at"][rows] if "at" in data.arrays else rows
    return {n: data.arrays[n][rows] for n in ("x", "y")}, ranges


def _text(data: FederatedData, k: int, parts: Sequence[Split]) -> ClientRows:
    """Copy the stretch of text that holds a client's windows."""
    first = min(int(p.start[k]) for p in parts)
    end = max(int(p.start[k] + p.size[k]) for p in parts) + data.features.shape[0]
    ranges = [(int(p.start[k]) - first, int(p.size[k])) for p in parts]
    return {"text": data.arrays["text"][first:end]}, ranges


def _windows(data: FederatedData, k: int, parts: Sequence[Split]) -> ClientRows:
    """Copy only the places of a client's windows; the first client brings the whole text."""
    text = data.arrays["text"]
    places, ranges = _positions(k, parts)
    at = data.arrays["at"][places].astype(np.int64)
    if k == 0 and parts[0] is data.train:
        return {"text": text, "at": at}, ranges
    return {"text": text[:0], "at": at - len(text)}, ranges


class Packer:
    """Writes a new store. Use it in a ``with``: an error or a kill leaves nothing behind.

    ``columns`` gives the type and the shape of one row of each array, such as
    ``{"x": ("uint8", (28, 28)), "y": ("uint8", ())}`` for images, or
    ``{"text": ("uint8", ())}`` for text, with ``"at": ("int32", ())`` after it where a
    client's windows do not lie side by side.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        features: Features,
        columns: Mapping[str, tuple[str, tuple[int, ...]]],
        source: Mapping[str, Any],
        class_names: Sequence[str] | None = None,
        named: Columns | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        self._folder, self._name, self._features = folder, name, features
        self._named, self._tokens = named and named.plain(), tokens and tokens._asdict()
        self._class_names = None if class_names is None else list(class_names)
        self._source = dict(source)
        self._columns = {n: (np.dtype(d), tuple(s)) for n, (d, s) in columns.items()}
        self._rows = dict.fromkeys(columns, 0)
        self._trained = 0
        self._tables = {n: array("q") for n in TABLES}  # 8 bytes a client, for millions of them

    def __enter__(self) -> "Packer":
        _refuse_others(self._folder)
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(self._folder)
        self._working = self._folder.parent / f".{self._folder.name}.packing-{os.getpid()}"
        self._working.mkdir()
        self._files = {n: _Hashed(self._working / f"{n}.bin") for n in (*self._columns, "users")}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        try:
            if kind is None:
                with naming(self._folder):
                    self._finish()
            elif isinstance(error, OSError) and error.errno and error.filename is None:
                error.filename = str(self._folder)  # a full disk names no file
        finally:
            for file in self._files.values():
                file.abandon()
            shutil.rmtree(self._working, ignore_errors=True)

    def add(
        self, user: str, arrays: Mapping[str, NDArray[Any]], *, train: Range | None, test: Range
    ) -> None:
        """Add a client: its rows, and (first, count) of its train and test samples in them.

        Samples count positions in the last column: rows of x and y, symbols of text, or
        entries of ``at``, whose values count from the client's own first symbol. Clients that
        are never trained on (``train=None``: LEAF's -t user) come after all others.
        """
        if train is None:
            train = (0, 0)
        elif train[1] < 1:
            raise FedMomError(f"{self._name}: client {user!r} has no training samples.")
        elif self._trained < len(self._tables["users_end"]):
            raise FedMomError(f"{self._name}: clients for testing only must come last.")
        else:
            self._trained += 1
        base = list(self._rows.values())[-1]
        for name, (dtype, shape) in self._columns.items():
            values = np.asarray(arrays[name])
            if values.shape[1:] != shape:
                raise FedMomError(
                    f"{self._name}: client {user!r} has {name} of shape {values.shape[1:]},"
                    f" not {shape}."
                )
            if name == "at":
                values = values.astype(np.int64) + (self._rows["text"] - len(arrays["text"]))
            self._files[name].write(_exactly(values, dtype, f"{self._name}: {user!r}").tobytes())
            self._rows[name] += len(values)
        self._files["users"].write(user.encode())
        entries = (base + train[0], train[1], base + test[0], test[1], self._files["users"].size)
        for table, entry in zip(TABLES, entries, strict=True):
            self._tables[table].append(entry)

    def _finish(self) -> None:
        """Write tables and manifest, then give the directory its name."""
        from fedmom.data.store.reader import remember  # loads pydantic, not needed for arrays

        if not self._trained:
            raise FedMomError(f"{self._name} has no clients.")
        for table, entries in self._tables.items():
            file = self._files[table] = _Hashed(self._working / f"{table}.bin")
            file.write(entries.tobytes())
        forms = {n: (d.str, [self._rows[n], *s]) for n, (d, s) in self._columns.items()}
        forms |= {n: ("<i8", [len(entries)]) for n, entries in self._tables.items()}
        forms["users"] = ("|u1", [self._files["users"].size])
        manifest = {
            "format": FORMAT,
            "name": self._name,
            **self._features._asdict(),
            "class_names": self._class_names,
            "columns": self._named,
            "tokens": self._tokens,
            "training_clients": self._trained,
            "source": self._source,
            "arrays": {
                n: {"dtype": d, "shape": s, "sha256": self._files[n].close()}
                for n, (d, s) in forms.items()
            },
        }
        content = json.dumps(manifest, indent=1).encode()
        if len(content) > LARGEST_MANIFEST:  # it could not be read back
            raise FedMomError(
                f"The names of columns and classes of {self._name} take {len(content):,} bytes."
                f" They must take at most {LARGEST_MANIFEST:,}: give shorter names, or numbers."
            )
        (self._working / MANIFEST).write_bytes(content)
        _publish(self._working, self._folder)
        remember(self._folder)


class _Hashed:
    """A file that knows its size and checksum as it is written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._hash.update(content)
        self.size += len(content)

    def close(self) -> str:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return self._hash.hexdigest()

    def abandon(self) -> None:
        """Close the file; what cannot be written any more does not matter."""
        with contextlib.suppress(OSError):
            self._file.close()


def _exactly(values: NDArray[Any], dtype: np.dtype[Any], whose: str) -> NDArray[Any]:
    """Change the type of whole numbers; one that does not fit is refused, not wrapped."""
    changed = values.astype(dtype)
    if changed.dtype != values.dtype and dtype.kind in "iu" and (changed != values).any():
        raise FedMomError(f"{whose} has values that do not fit {dtype}.")
    return changed


def _refuse_others(folder: Path) -> None:
    """Refuse to replace a folder that holds anything but a store."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    names = [path.name for path in found]
    strange = [path.name for path in found if path.is_dir() or path.name not in FILES]
    if MANIFEST in names and "users.bin" not in names:  # other programs have one of this name
        strange.append(MANIFEST)
    if strange:
        raise FedMomError(
            f"{folder} is not overwritten: {strange[0]} is not part of a store. Choose another"
            " folder."
        )


def _publish(working: Path, folder: Path) -> None:
    """Rename into place; an existing store is replaced."""
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    if folder.exists():
        folder.rename(old)
    working.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what packings of this store left behind when they were killed."""
    for left in folder.parent.glob(f".{folder.name}.packing-*"):
        process = left.name.rpartition("-")[2]
        if not (process.isascii() and process.isdecimal() and len(process) < 10):
            continue  # somebody else's
        if int(process) == os.getpid() or not _alive(int(process)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
