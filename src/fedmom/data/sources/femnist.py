"""FEMNIST from NIST's own archives: handwritten characters of Special Database 19, by writer.

Two archives of the second edition (2016) hold the same PNG files, 128 x 128, black on white,
sorted in two ways:

    by_class/<code>/hsf_<n>/<file>.png                  code: the character's, in hexadecimal
    by_write/hsf_<n>/<writer>/<kind><form>/<file>.png   writer: such as f0320_41

``by_class`` also has folders ``train_<code>``, which repeat images, and lists (``.mit``);
they are passed over, as LEAF does. LEAF's steps, followed here:

1. An image of ``by_write`` has the label of the file of ``by_class`` with the same bytes (the
   same MD5); where two are the same, the first one's. Labels are 0-9, 10-35 A-Z, 36-61 a-z.
2. The images are grouped by writer.
3. Each is made grey and reduced to 28 x 28 with Lanczos' filter; 255 stays paper.
4. Nine tenths of a writer's images, drawn at random and rounded down, are for training.
   A writer with one image cannot be split and is left out.

Where this differs from LEAF's scripts:

- When its grouping passes to the next writer, LEAF enters that writer's first image twice. The
  copy, which can land in the test set, is a slip and is not repeated here: every writer but
  LEAF's first has one sample less.
- Writers and images come in the order of their names, not in that of the directory listing.
- Pillow's ``thumbnail``, which LEAF calls, halves an image before it filters since Pillow 7
  (2020). Here the filter works on the full image, as it did when LEAF was published. Files
  made with LEAF exist of both kinds; they differ by a few grey levels at the edges.
"""

import hashlib
import io
import re
import string
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedmom.core.errors import FedMomError
from fedmom.data.download import checksum, download
from fedmom.data.federated import Features
from fedmom.data.sources.arrays import DAMAGE
from fedmom.data.store.writer import Packer

ORIGIN = "NIST Special Database 19, second edition"
NIST_URL = "https://s3.amazonaws.com/nist-srd/SD19"
# NIST publishes MD5 sums and no others. The store's manifest records the SHA-256 found.
NIST_MD5 = {
    "by_class.zip": "79572b1694a8506f2b722c7be54130c4",
    "by_write.zip": "a29f21babf83db0bb28a2f77b2b456cb",
}
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
ORIGINAL, SIDE = 128, 28
TRAIN_FRACTION = 0.9

_CLASSED = re.compile(r"by_class/([0-9a-f]{2})/hsf_[^/.]*/[^/]+\.png")
_WRITTEN = re.compile(r"by_write/[^/]+/([^/]+)/[^/]+/[^/]+\.png")
_LARGEST = 2**20  # bytes of one of its pictures; real ones have a few hundred
# What Pillow raises for a file that is not a PNG, a damaged one, or one of another size.
_UNDRAWABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


def fetch(
    into: Path, base_url: str = NIST_URL, md5s: Mapping[str, str] = NIST_MD5
) -> tuple[Path, Path]:
    """Download by_class.zip and by_write.zip from NIST unless they are there already."""
    by_class, by_write = (
        download(f"{base_url}/{name}", into / name, md5=md5s.get(name)) for name in NIST_MD5
    )
    return by_class, by_write


def pack(folder: Path, by_class: Path, by_write: Path, *, seed: int = 0) -> None:
    """Write the packed store of FEMNIST from the two archives, which are not unpacked on disk.

    Memory holds the archives' directories, a digest of every labelled image and one writer's
    images at a time.
    """
    from fedmom.core.progress import track

    if seed < 0:
        raise FedMomError(f"femnist: seed={seed} must be at least 0.")
    writers = _writers(by_write)  # first, so that a fault in either archive shows early
    labels = _labels(by_class)
    sums = {"by_class": checksum(by_class), "by_write": checksum(by_write)}
    rng = np.random.default_rng(seed)
    features = Features("image", (SIDE, SIDE), len(CHARACTERS))
    columns = {"x": ("uint8", (SIDE, SIDE)), "y": ("uint8", ())}
    source = {"origin": ORIGIN, "sha256": sums, "seed": seed}
    with (
        _opened(by_write) as archive,
        Packer(folder, "femnist", features, columns, source) as packer,
    ):
        for writer, members in track(writers, "Packing writers"):
            x, y = _images(archive, members, labels)
            train = int(TRAIN_FRACTION * len(y))
            drawn = rng.permutation(len(y))
            order = np.concatenate([np.sort(drawn[:train]), np.sort(drawn[train:])])
            rows = {"x": x[order], "y": y[order]}
            packer.add(writer, rows, train=(0, train), test=(train, len(y) - train))


def reduced(png: bytes) -> NDArray[np.uint8]:
    """Decode an image of NIST's and reduce it to 28 x 28 grey levels, as LEAF does."""
    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        if image.size != (ORIGINAL, ORIGINAL):
            raise ValueError(f"it is {image.size[0]} x {image.size[1]}, not 128 x 128")
        grey = image.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.asarray(grey, np.uint8)


def _labels(by_class: Path) -> dict[bytes, int]:
    """Return the label of every image of by_class, by its digest."""
    from fedmom.core.progress import track

    labels: dict[bytes, int] = {}
    with _opened(by_class) as archive:
        names = sorted(filter(_CLASSED.fullmatch, archive.namelist()))
        if not names:
            raise _unlike(by_class, "by_class/<code>/hsf_<n>/<file>.png")
        for name in track(names, "Reading labels"):
            character = chr(int(name.split("/")[1], 16))
            if character not in CHARACTERS:
                raise FedMomError(
                    f"{by_class}: {name} is of the class {character!r}, which is neither a digit"
                    " nor a letter from A to Z. Fetch the archive again."
                )
            labels.setdefault(_digest(_content(archive, name)), CHARACTERS.index(character))
    return labels


def _writers(by_write: Path) -> list[tuple[str, list[str]]]:
    """Return the members of every writer with at least two images, in the order of names."""
    written: dict[str, list[str]] = {}
    with _opened(by_write) as archive:
        for name in archive.namelist():
            if match := _WRITTEN.fullmatch(name):
                written.setdefault(match[1], []).append(name)
    writers = [(writer, sorted(written[writer])) for writer in sorted(written)]
    writers = [(writer, names) for writer, names in writers if len(names) > 1]
    if not writers:
        form = "by_write/hsf_<n>/<writer>/<kind>/<file>.png, two or more for a writer"
        raise _unlike(by_write, form)
    return writers


def _images(
    archive: zipfile.ZipFile, names: Sequence[str], labels: Mapping[bytes, int]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    x = np.empty((len(names), SIDE, SIDE), np.uint8)
    y = np.empty(len(names), np.uint8)
    for i, name in enumerate(names):
        png = _content(archive, name)
        label = labels.get(_digest(png))
        if label is None:
            raise FedMomError(
                f"{archive.filename}: no file of by_class is the same as {name}, so it has no"
                " label. The two archives must be of the same edition; fetch both again."
            )
        try:
            x[i], y[i] = reduced(png), label
        except _UNDRAWABLE as error:
            raise FedMomError(
                f"{archive.filename}: {name} is not an image of NIST's: {error}."
                " Fetch the archive again."
            ) from None
    return x, y


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except OSError as error:
        raise FedMomError(
            f"{path} cannot be read: {error.strerror}. It must be NIST's archive of that name."
        ) from None
    except zipfile.BadZipFile as error:
        raise FedMomError(
            f"{path} is not a whole zip archive ({error}). Remove it and fetch it again."
        ) from None


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read a member; zipfile compares its CRC."""
    if archive.getinfo(name).file_size > _LARGEST:
        raise FedMomError(
            f"{archive.filename}: {name} has {archive.getinfo(name).file_size:,} bytes, which no"
            " picture of NIST's has. Remove the archive and fetch it again."
        )
    try:
        return archive.read(name)
    except DAMAGE as error:
        raise FedMomError(
            f"{archive.filename}: {name} is damaged ({error}). Remove the archive and fetch it"
            " again."
        ) from None


def _digest(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def _unlike(path: Path, form: str) -> FedMomError:
    return FedMomError(f"{path} has no {form}. It must be NIST's archive of that name.")
