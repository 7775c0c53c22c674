"""Which files are FedMom's: a new run has a folder of its own, and no other file is removed."""

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from fedmom.core.files import LOCK

IMAGES = ("png", "svg", "pdf")
OF_RUNS = (
    *(
        "config.toml",
        "versions.json",
        "started.json",
        "schema.json",
        "changes.jsonl",
        "theory.json",
    ),
    *("rounds.jsonl", "rounds.jsonl.cut", "evals.jsonl", "evals.jsonl.cut"),
    *("stopped.json", "diverged.json", "devices.json", "devices.jsonl", "predictions.csv"),
    *("compare.json", "compare.html", "sweep.json", "sweep.html", "sweep.csv", "creation.json"),
    *("report.html", *(f"{page}.{kind}" for page in ("compare", "report-*") for kind in IMAGES)),
)
_ROUND = "round-" + 8 * "[0-9]" + ".safetensors"
OF_FOLDERS = {
    "checkpoint": tuple(
        f"{name}{aside}"
        for name in (_ROUND, "checkpoint.json", "previous.json")
        for aside in ("", ".aside-[0-9]*")
    ),
    "tensorboard": ("events.out.tfevents.*",),
    "export": ("model.safetensors", "model.onnx", "schema.json", "README.md", "config.toml"),
}
TEMPORARY = re.compile(r"\.(.+)\.tmp")


def foreign(folder: Path, runs: Sequence[Path] = ()) -> Path | None:
    """Return something in the folder of a run, or of several, that FedMom has not written.

    Args:
        folder: The folder.
        runs: The folders of its runs, if it is one of several.
    """
    for place in dict.fromkeys([folder, *runs]):
        for path in sorted(place.iterdir()):
            if path in runs:
                continue
            if path.is_dir() and not path.is_symlink() and path.name in OF_FOLDERS:
                files = sorted(path.iterdir())
                strange = [f for f in files if not _is_ours(f, OF_FOLDERS[path.name])]
                if strange:
                    return strange[0]
            elif not _is_ours(path, OF_RUNS):
                return path
    return None


def foreign_to_new(folder: Path, besides: Sequence[Path] = ()) -> Path | None:
    """Return something in a folder where a run is to begin; a kill may have left its lock there."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return next((path for path in found if path not in besides and not _is_ours(path, ())), None)


def is_ours(name: str) -> bool:
    """Return whether FedMom itself writes a file or folder of this name."""
    names = (*OF_RUNS, *OF_FOLDERS)
    return any(fnmatch(name.casefold(), pattern) for pattern in names)


def _is_ours(path: Path, names: Sequence[str]) -> bool:
    if path.is_dir() and not path.is_symlink():
        return False
    temporary = TEMPORARY.fullmatch(path.name)
    if path.name == LOCK or (temporary and re.fullmatch("[0-9a-f]{16}", temporary[1])):
        return True
    name = temporary[1] if temporary else path.name  # earlier versions' have a file's name inside
    return any(fnmatch(name, pattern) for pattern in names)
