"""MNIST's idx files: images and labels without users, so a partition makes the clients."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.validation import Seed
from fedmom.data.federated import Features, FederatedData, Split
from fedmom.data.partition import repartition
from fedmom.data.source_files import read_content

# (images, labels) of the official training rows, then of the official test rows.
FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
_NAMES = tuple(name for pair in FILES for name in pair)
_UNSIGNED_BYTE = 8


def is_idx(path: Path) -> bool:
    """Return whether a path is one of MNIST's idx files, or a folder that has one."""
    if path.is_dir():
        return any(_find(path, name) for name in _NAMES)
    return path.is_file() and path.name.removesuffix(".gz") in _NAMES


def load_idx(path: Path, *, partition: str = "iid:clients=100", seed: Seed = 0) -> FederatedData:
    """Read the four idx files of a folder, gzipped or not, and make clients by a partition.

    Images stay in the order of the files, training before test, and their bytes are kept
    as they are: in MNIST, 255 is ink and 0 is paper.
    """
    folder = path if path.is_dir() else path.parent
    pairs = [(_read(folder, x, 3), _read(folder, y, 1)) for x, y in FILES]
    for (images, labels), (x_name, y_name) in zip(pairs, FILES, strict=True):
        if len(images) != len(labels):
            raise FedMomError(
                f"{folder}: {x_name} has {len(images)} images, but {y_name} has {len(labels)}"
                " labels. They are not of one dataset; fetch the files again."
            )
    shapes = [images.shape[1:] for images, _ in pairs]
    if shapes[0] != shapes[1]:
        raise FedMomError(
            f"{folder}: training images are {shapes[0]} and test images {shapes[1]}; they"
            " must be of one shape. The files are not of one dataset; fetch them again."
        )
    x, y = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    train, test = (np.array([len(labels)]) for _, labels in pairs)
    features = Features("image", shapes[0], int(y.max()) + 1)
    parts = Split(np.array([0]), train), Split(train, test)
    name = folder.resolve().name
    everyone = FederatedData(name, ["everyone"], features, {"x": x, "y": y}, *parts)
    return repartition(everyone, partition, seed)


def _find(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def _read(folder: Path, name: str, dimensions: int) -> NDArray[Any]:
    """Read one idx file: 0, 0, the type, the number of dimensions; each length; the bytes."""
    path = _find(folder, name)
    if path is None:
        raise FedMomError(
            f"{folder} has no {name} and no {name}.gz. MNIST is four files in one folder:"
            f" {', '.join(_NAMES)}."
        )
    content = read_content(path)
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    head = 4 + 4 * dimensions
    if content[:4] != magic or len(content) < head:
        raise FedMomError(
            f"{path} begins with the bytes '{content[:4].hex(' ')}', not with"
            f" '{magic.hex(' ')}' and {dimensions} lengths: it is not an idx file of unsigned"
            f" bytes in {dimensions} dimensions. Fetch it again."
        )
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", dimensions, 4))
    expected = int(np.prod(shape, dtype=object))  # lengths of a damaged file may overflow
    if len(content) - head != expected or not expected:
        raise FedMomError(
            f"{path} has {len(content) - head} bytes after its head, but the lengths"
            f" {' x '.join(map(str, shape))} there need {expected}, and at least one. It is cut"
            " short or damaged; fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)
