"""Images in folders, one per client and in it one per class; and how image files are read."""

import contextlib
import io
import os
import struct
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.files import user_path
from fedmom.core.progress import track
from fedmom.core.validation import Seed, check_memory
from fedmom.data.federated import FederatedData
from fedmom.data.rows.assembly import Division, assemble, owners
from fedmom.data.rows.values import numbers_or_texts, read_labels
from fedmom.data.source_files import check_splits, file_identity, said
from fedmom.data.store.writer import cached, save_store

DEEPEST = 3  # client/class/picture
READER = 2  # counts changes in what is made of a folder, so that no cache hands out the former
LAYOUTS = "client/class/image, or class/image with partition="
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
GRAY, COLOUR = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
MOST_PIXELS = 2**26  # of one image before it is resized
MOST_SIDE = 2**14
# What Pillow raises on files that are damaged or not what they say.
DAMAGE = (
    *(OSError, SyntaxError, ValueError, EOFError, TypeError, KeyError, IndexError, OverflowError),
    *(MemoryError, NotImplementedError, struct.error, Warning),
)

ImageFile = Path | bytes


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
        The population; images are gray where all images are, else in colour. Classes are
        in the order of their folders' names; those called 0, 1, 2, ... have no other names.

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
    check_splits(top, {folder for place in parts for folder in place[:-1]})
    has_clients = depths == {3}
    division = Division(test_fraction, partition, seed)
    division.check(name, ids=has_clients)
    x = read_images(name, files, size)
    labels = read_labels(name, numbers_or_texts([p[-2] for p in parts]), x.shape[1:], "classes")
    clients = owners(name, numbers_or_texts([p[0] for p in parts])) if has_clients else None
    return assemble(name, x, labels, clients, division)


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
    options = {name: value for name, value in locals().items() if name != "path"}
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


def read_images(name: str, sources: Sequence[ImageFile], size: int | str | None) -> NDArray[Any]:
    """Decode images: (N, height, width) where all are gray, else (N, height, width, 3).

    Args:
        name: What the data is called in messages.
        sources: Files, or the bytes of files.
        size: The side that all are brought to, or "height x width" (``"32x24"``). By default all
            must be of one size.
    """
    from PIL import Image

    wanted = None if size is None else _size(name, size)
    gray, shape = True, wanted
    called = [
        f"the image of row {row}" if isinstance(source, bytes) else str(source)
        for row, source in enumerate(sources)
    ]
    for what, source in zip(called, track(sources, f"looking at {name}"), strict=True):
        mode, found = _header(f"{name}: {what}", source)
        gray &= mode in GRAY
        if wanted is None and shape not in (None, found):
            raise FedMomError(
                f"{name}: {called[0]} has {_text(shape)} pixels, and {what} has {_text(found)}"
                f" (height x width). Bring all to one size: size={_text(shape)}."
            )
        shape = shape or found
    if shape is None:
        raise FedMomError(f"{name} has no images.")
    whole = (len(sources), *shape) if gray else (len(sources), *shape, 3)
    check_memory(f"{name} with {len(sources):,} images", int(np.prod(whole)), "Use size=.")
    out = np.empty(whole, np.uint8)
    for row, source in enumerate(track(sources, f"decoding {name}")):
        with _opened(f"{name}: {called[row]}", source) as image:
            pixels = image.convert("L" if gray else "RGB")
            if pixels.size != shape[::-1]:
                pixels = pixels.resize(shape[::-1], Image.Resampling.BILINEAR)
            out[row] = pixels
    return out


def _size(name: str, size: int | str) -> tuple[int, int]:
    parts = str(size).lower().split("x")
    sides = [int(part) for part in parts if part.isdecimal() and len(part) < 9]
    if len(sides) < len(parts) or len(parts) > 2 or not all(1 <= s <= MOST_SIDE for s in sides):
        raise FedMomError(
            f"{name}: size={size} is not a size. Write a side from 1 to {MOST_SIDE}, such as"
            " size=32, or height and width, such as size=32x24."
        )
    return sides[0], sides[-1]


def _header(what: str, source: ImageFile) -> tuple[str, tuple[int, int]]:
    """Return the mode, and height and width, without decoding."""
    with _opened(what, source) as image:
        if image.mode not in (*GRAY, *COLOUR):
            raise FedMomError(
                f"{what} has pixels of the kind {image.mode}. Save it as gray levels or colours of"
                " 8 bits."
            )
        if image.width * image.height > MOST_PIXELS:
            raise FedMomError(
                f"{what} has {image.height}x{image.width} pixels; at most {MOST_PIXELS:,} are"
                " read. Make it smaller."
            )
        return image.mode, (image.height, image.width)


@contextlib.contextmanager
def _opened(what: str, source: ImageFile) -> Iterator[Any]:
    """Open an image; whatever Pillow raises on it becomes a sentence."""
    from PIL import Image

    file = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(file, formats=IMAGE_FORMATS)
        with image:
            yield image
    except FedMomError:
        raise
    except (*DAMAGE, Image.DecompressionBombError) as error:
        raise FedMomError(
            f"{what} is not a readable image: {said(error)}. It may be {', '.join(IMAGE_FORMATS)}."
        ) from None


def _text(shape: tuple[int, int] | None) -> str:
    return "x".join(map(str, shape or ()))
