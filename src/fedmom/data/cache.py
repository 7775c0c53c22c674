"""Prepared datasets: each source is packed once, and only mapped afterwards."""

import hashlib
import json
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.files import cache_folder
from fedmom.data.federated import FederatedData


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
    from fedmom.data.manifest import FORMAT
    from fedmom.data.store import is_store, open_store

    digest = hashlib.sha256(json.dumps([FORMAT, identity], sort_keys=True).encode()).hexdigest()
    folder = cache_folder() / f"{name}-{digest[:16]}"
    if not is_store(folder):
        pack(folder)
    return open_store(folder)


def check_regular(path: Path, mode: int) -> None:
    """Refuse pipes, devices and sockets: reading them may never come to an end."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FedMomError(f"{path} is no file, but a pipe or a device. Save the data to a file.")


def file_identity(paths: Sequence[Path]) -> list[Any]:
    """Return the path, size and time of change of every file: a changed file is another one."""
    stats = [(p.resolve(), p.stat()) for p in paths]
    for path, status in stats:
        check_regular(path, status.st_mode)
    return [[str(p), s.st_size, s.st_mtime_ns] for p, s in stats]
