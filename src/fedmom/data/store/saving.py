"""Datasets -> packed stores: a source packed into the cache, or a view saved as its own store."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.files import cache_folder
from fedmom.data.federated import FederatedData, Split

Ranges = list[tuple[int, int]]
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
    # Slow to load, and not needed for data that is in memory.
    from fedmom.data.store.manifest import FORMAT
    from fedmom.data.store.reader import is_store, open_store

    digest = hashlib.sha256(json.dumps([FORMAT, identity], sort_keys=True).encode()).hexdigest()
    folder = cache_folder() / f"{name}-{digest[:16]}"
    if not is_store(folder):
        pack(folder)
    return open_store(folder)


def save_store(data: FederatedData, folder: Path, source: Mapping[str, Any]) -> None:
    """Write all samples of a dataset, client after client, so that each lies side by side."""
    from fedmom.data.store.packer import Packer  # slow to load, and not needed for data in memory

    columns = {n: (a.dtype.str, a.shape[1:]) for n, a in data.arrays.items() if n != "at"}
    cut: Callable[[FederatedData, int, Sequence[Split]], ClientRows] = _rows
    if data.features.kind == "text":
        cut = _text
        if "at" in data.arrays:
            cut, columns["at"] = _windows, ("int32", ())
    own_test = [data.test] if data.test_users is None else []
    with Packer(
        folder,
        name=data.name,
        features=data.features,
        columns=columns,
        source=source,
        class_names=data.class_names,
    ) as packer:
        for k, user in enumerate(data.users):
            arrays, ranges = cut(data, k, [data.train, *own_test])
            packer.add(user, arrays, train=ranges[0], test=ranges[1] if own_test else (0, 0))
        for k, user in enumerate(data.test_users or ()):
            arrays, ranges = cut(data, k, [data.test])
            packer.add_test_only(user, arrays, ranges[0])


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
