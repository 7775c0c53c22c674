"""Image files -> arrays of bytes, each looked at before it is decoded."""

import io
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import FedMomError
from fedmom.core.progress import track
from fedmom.core.validation import check_memory
from fedmom.data.source_files import said

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
GRAY, COLOUR = ("1", "L", "LA"), ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
MOST_PIXELS = 2**26  # of one image before it is resized
MOST_SIDE = 2**14
# What Pillow raises on files that are damaged or not what they say.
DAMAGE = (OSError, SyntaxError, ValueError, EOFError, TypeError, KeyError, IndexError)
DAMAGE_TOO = (OverflowError, MemoryError, NotImplementedError, struct.error, Warning)

ImageFile = Path | bytes


def read_images(name: str, sources: Sequence[ImageFile], size: int | str | None) -> NDArray[Any]:
    """Decode images: (N, height, width) where all are gray, else (N, height, width, 3).

    Args:
        name: What the data is called in messages.
        sources: Files, or the bytes of files.
        size: The side that all are brought to, or "height x width" (``"32x24"``). By default all
            must be of one size.
    """
    wanted = None if size is None else _size(name, size)
    gray, shape = True, wanted
    first = 0
    for place, source in enumerate(track(sources, f"looking at {name}")):
        mode, found = _header(name, source, place)
        gray &= mode in GRAY
        if wanted is None and shape not in (None, found):
            raise FedMomError(
                f"{name}: {_called(sources[first], first)} has {_text(shape)} pixels, and"
                f" {_called(source, place)} has {_text(found)} (height x width). Bring all to one"
                f" size: size={_text(shape)}."
            )
        shape = shape or found
    if shape is None:
        raise FedMomError(f"{name} has no images.")
    whole = (len(sources), *shape) if gray else (len(sources), *shape, 3)
    check_memory(f"{name} with {len(sources):,} images", int(np.prod(whole)), "Use size=.")
    out = np.empty(whole, np.uint8)
    for place, source in enumerate(track(sources, f"decoding {name}")):
        out[place] = _decoded(name, source, place, shape, "L" if gray else "RGB")
    return out


def _size(name: str, size: int | str) -> tuple[int, int]:
    parts = str(size).lower().split("x")
    try:
        sides = [int(part) for part in parts]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2) or not all(1 <= side <= MOST_SIDE for side in sides):
        raise FedMomError(
            f"{name}: size={size} is not a size. Write a side from 1 to {MOST_SIDE}, such as"
            " size=32, or height and width, such as size=32x24."
        )
    return sides[0], sides[-1]


def _header(name: str, source: ImageFile, place: int) -> tuple[str, tuple[int, int]]:
    """Return the mode, and height and width, without decoding."""
    with _opened(name, source, place) as image:
        if image.mode not in (*GRAY, *COLOUR):
            raise FedMomError(
                f"{name}: {_called(source, place)} has pixels of the kind {image.mode}. Save it as"
                " gray levels or colours of 8 bits."
            )
        if image.width * image.height > MOST_PIXELS:
            raise FedMomError(
                f"{name}: {_called(source, place)} has {image.height}x{image.width} pixels; at"
                f" most {MOST_PIXELS:,} are read. Make it smaller."
            )
        return image.mode, (image.height, image.width)


def _decoded(
    name: str, source: ImageFile, place: int, shape: tuple[int, int], mode: str
) -> NDArray[np.uint8]:
    from PIL import Image

    with _opened(name, source, place) as image:
        try:
            pixels = image.convert(mode)
            if pixels.size != (shape[1], shape[0]):
                pixels = pixels.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
            return np.asarray(pixels, np.uint8)
        except (*DAMAGE, *DAMAGE_TOO) as error:
            raise _damaged(name, source, place, error) from None


def _opened(name: str, source: ImageFile, place: int) -> Any:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(
                io.BytesIO(source) if isinstance(source, bytes) else source, formats=IMAGE_FORMATS
            )
    except (*DAMAGE, *DAMAGE_TOO, Image.DecompressionBombError) as error:
        raise _damaged(name, source, place, error) from None


def _damaged(name: str, source: ImageFile, place: int, error: BaseException) -> FedMomError:
    return FedMomError(
        f"{name}: {_called(source, place)} is not a readable image: {said(error)}. It may be"
        f" {', '.join(IMAGE_FORMATS)}."
    )


def _called(source: ImageFile, place: int) -> str:
    return f"the image of row {place}" if isinstance(source, bytes) else str(source)


def _text(shape: tuple[int, int] | None) -> str:
    return "x".join(map(str, shape or ()))
