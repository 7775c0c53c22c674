"""Images in folders: one folder per client, and in it one per class."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.files import user_path
from fedmom.core.validation import Seed
from fedmom.data.federated import FederatedData
from fedmom.data.rows.assembly import Division, assemble, owners
from fedmom.data.rows.images import SUFFIXES, read_images
from fedmom.data.rows.labels import read_labels
from fedmom.data.rows.values import numbers_or_texts
from fedmom.data.source_files import file_identity
from fedmom.data.store.writer import cached, save_store

DEEPEST = 3  # client/class/picture
READER = 1  # counts changes in what is made of a folder, so that no cache hands out the former
LAYOUTS = "client/class/image, or class/image with partition="


def from_images(
    folder: str | Path,
    *,
    size: int | str | None = None,
    test_fraction: float | None = None,
    partition: str | None = None,
    seed: int = 0,
) -> FederatedData:
    """Read images in folders ``client/class/image``; or ``class/image``, to be dealt.

    Args:
        folder: The folder of folders.
        size: The side that images are brought to, such as 32 or ``"32x24"`` (height x width).
            By default all must be of one size.
        test_fraction: The share of every client's images that is drawn for testing.
        partition: Where there are no folders of clients: how images are dealt to clients, such
            as ``dirichlet:alpha=0.3,clients=100``.
        seed: The seed of ``test_fraction`` and ``partition``.

    Returns:
        The population; images are gray where all images are, else in colour. Folders that are
        called 0, 1, 2, ... are the numbers of classes; others are classes in sorted order.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> top = Path(tempfile.mkdtemp())
        >>> for place in ("ann/cat", "ann/dog", "bob/cat"):
        ...     (top / place).mkdir(parents=True)
        ...     Image.new("L", (8, 8)).save(top / place / "1.png")
        >>> data = from_images(top)
        >>> list(data.users), data.features.shape, data.class_names
        (['ann', 'bob'], (8, 8), ('cat', 'dog'))
    """
    top = user_path(str(folder), "folder")
    name = top.resolve().name
    files = list(_image_files(top))
    depths = {len(file.relative_to(top).parts) for file in files}
    if len(depths) != 1 or not depths <= {2, 3}:
        _refuse_layout(top, files)
    parts = [file.relative_to(top).parts for file in files]
    has_clients = depths == {3}
    division = Division(test_fraction, partition, seed)
    division.check(name, ids=has_clients)
    x = read_images(name, files, size)
    labels = read_labels(name, numbers_or_texts([p[-2] for p in parts]), x.shape[1:], "classes")
    return assemble(
        name,
        x,
        labels,
        owners(name, numbers_or_texts([p[0] for p in parts])) if has_clients else None,
        division,
    )


def is_images(path: Path) -> bool:
    """Return whether a path is a folder with images in its folders."""
    return path.is_dir() and any(file.parent != path for file in _image_files(path))


def load_images(
    path: Path,
    *,
    size: str | None = None,
    test_fraction: float | None = None,
    seed: Seed = 0,
    partition: str | None = None,
) -> FederatedData:
    """Open a folder of images; the first time it is packed, later only mapped."""
    options: dict[str, Any] = {
        "size": size,
        "test_fraction": test_fraction,
        "seed": seed,
        "partition": partition,
    }
    return cached(
        path.name,
        ["images", READER, file_identity(list(_image_files(path))), [*options.values()]],
        lambda folder: save_store(from_images(path, **options), folder, {"folder": str(path)}),
    )


def _image_files(top: Path) -> Iterator[Path]:
    """Yield all image files below a folder, in sorted order; hidden ones are left out."""
    if not top.is_dir():
        raise FedMomError(f"There is no folder {top}.")
    for here, folders, files in os.walk(top):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for file in sorted(files):
            if file.lower().endswith(SUFFIXES) and not file.startswith("."):
                found = Path(here) / file
                if len(found.relative_to(top).parts) > DEEPEST:  # not after a whole disk
                    _refuse_layout(top, [found])
                yield found


def _refuse_layout(top: Path, files: list[Path]) -> None:
    if not files:
        raise FedMomError(f"{top} has no images ({', '.join(SUFFIXES)}). Give {LAYOUTS}.")
    by_depth = {len(file.relative_to(top).parts): file.relative_to(top) for file in files}
    found = ", ".join(str(file) for file in by_depth.values())
    raise FedMomError(
        f"{top} has images such as {found}. All must lie in folders of one kind: {LAYOUTS}."
    )
