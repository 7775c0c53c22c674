"""The checksums of a packed store: compared once, and again where a file has changed."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from fedmom.core.errors import FedMomError
from fedmom.core.files import cache_folder, write_atomic
from fedmom.core.progress import bars
from fedmom.data.store.manifest import read_manifest

CHUNK = 2**22  # bytes read at a time


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
                if (
                    _digest(folder / f"{name}.bin", lambda n: progress.advance(task, n))
                    != entry.sha256
                ):
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
