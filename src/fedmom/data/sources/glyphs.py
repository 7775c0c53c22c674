"""Synthetic characters, offline: a generated stand-in for FEMNIST, printed from fonts.

A client is a made-up writer with a hand of its own: a font that matplotlib ships, the pen,
size, width, slant and tilt of its letters, and how each letter is bent. Every image varies
that hand a little. Which characters a writer writes how often is its own as well. Nothing
here was written by a person, and the names of data and writers say so.
"""

import functools
import importlib.metadata
import string
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.validation import Between, Seed
from fedmom.data.federated import Features, FederatedData, Integers
from fedmom.data.store.writer import Packer, cached

GENERATOR = 1  # counts changes in what is drawn, so that no cache hands out an older drawing
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase  # FEMNIST's order
SIDE = 28
# The fonts with plain forms of all 62 characters, by the thickest pen that keeps them legible.
BY_PEN = (
    "DejaVuSans-Bold DejaVuSans-BoldOblique DejaVuSansMono-Bold DejaVuSansMono-BoldOblique"
    " DejaVuSerif-Bold DejaVuSerif-BoldItalic",
    "STIXGeneralBol STIXGeneralBolIta cmb10",
    "DejaVuSerif DejaVuSerif-Italic cmr10 cmtt10",
    "DejaVuSans DejaVuSans-Oblique DejaVuSansMono DejaVuSansMono-Oblique STIXGeneral"
    " STIXGeneralItalic cmss10 cmti10",
)
FONTS = dict(sorted((font, pen) for pen, fonts in enumerate(BY_PEN) for font in fonts.split()))
# FEMNIST's shares of digits, capitals and small letters, spread evenly in each. A writer's own
# mix is a Dirichlet draw around them; as many units as classes make mixes differ clearly.
EXPECTED = np.repeat([0.54 / 10, 0.245 / 26, 0.215 / 26], [10, 26, 26])
CONCENTRATION = len(CHARACTERS) * EXPECTED
EM, CANVAS, BASELINE = 64, 104, 70  # type is drawn this large once, and sampled for every image
AT_ONCE = 32  # images in one go: what they need in between stays in the processor's cache


@checked
def glyphs(
    *,
    writers: Annotated[int, Between(1, 10**6)] = 200,
    samples: Annotated[int, Between(2, 10**5)] = 200,
    seed: Seed = 0,
) -> FederatedData:
    """Synthetic writers of 62 characters, generated from fonts: FEMNIST's offline stand-in.

    Writers have about ``samples`` images each, as unevenly as in FEMNIST, nine tenths of
    them for training. A writer's hand and mix of characters depend on ``seed`` and its number
    only, so that a larger population begins with the smaller one.
    """
    identity: dict[str, int | str] = {"writers": writers, "samples": samples, "seed": seed}
    # What is drawn can also change with this file, the fonts and the library that renders them.
    identity["generator"] = GENERATOR
    identity |= {name: importlib.metadata.version(name) for name in ("matplotlib", "pillow")}

    def pack(folder: Path) -> None:
        features = Features("image", (SIDE, SIDE), len(CHARACTERS))
        columns = {"x": ("uint8", (SIDE, SIDE)), "y": ("uint8", ())}
        source = {"kind": "synthetic, drawn from fonts; nobody's handwriting", **identity}
        with Packer(folder, "glyphs (synthetic)", features, columns, source) as packer:
            _add_writers(packer, writers, samples, seed)

    return cached("glyphs", identity, pack)


def _add_writers(packer: Packer, writers: int, samples: int, seed: int) -> None:
    from fedmom.core.progress import track  # slow to import, and needed once only

    for number in track(range(writers), "Drawing synthetic writers"):
        x, y = _written(number, samples, seed)
        train = len(y) * 9 // 10  # two samples or more leave at least one for each split
        name, test = f"synthetic-{number + 1:04d}", (train, len(y) - train)
        packer.add(name, {"x": x, "y": y}, train=(0, train), test=test)
    _type.cache_clear()


class _Hand(NamedTuple):
    """How a writer writes."""

    font: str
    pen: int  # how much thicker than the font, in pixels of type on either side
    size: float  # of the em, in pixels of the image
    width: float  # of a letter, as a multiple of the font's
    slant: float  # pixels to the right per pixel of height
    tilt: float  # radians
    bend: NDArray[np.float64]  # per character: phases of the waves that displace it


def _written(number: int, samples: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the images and labels of a writer."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    hand = _hand(rng)
    mix = rng.dirichlet(CONCENTRATION)
    # In FEMNIST a writer has 0.4 to 2 times the mean, with a standard deviation of 0.39 means.
    size = max(2, round(samples * (0.4 + 1.6 * rng.beta(1.1, 11 / 6))))
    labels = rng.choice(len(CHARACTERS), size, p=mix)
    parts = [_draw(hand, labels[i : i + AT_ONCE], rng) for i in range(0, size, AT_ONCE)]
    return np.concatenate(parts), labels.astype(np.uint8)


def _hand(rng: np.random.Generator) -> _Hand:
    font = list(FONTS)[rng.integers(len(FONTS))]
    return _Hand(
        font=font,
        pen=int(rng.integers(FONTS[font] + 1)),
        size=rng.uniform(18, 22),
        width=rng.uniform(0.8, 1.05),
        slant=rng.uniform(-0.2, 0.3),
        tilt=rng.normal(0, 0.05),
        bend=rng.uniform(0, 2 * np.pi, (len(CHARACTERS), 2)),
    )


def _draw(hand: _Hand, labels: Integers, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw characters in a hand, each a little differently: 255 is paper, 0 is ink."""
    ink = _sampled(_type(hand.font, hand.pen), labels, _places(hand, labels, rng))
    pressure = rng.uniform(1, 1.5, (len(labels), 1, 1))  # soft edges fill up: a thicker stroke
    return (255 - np.minimum(255, pressure * ink)).round().astype(np.uint8)


def _places(hand: _Hand, labels: Integers, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the point (x, y) of the type under every pixel of every image: (n, 2, 28 * 28)."""
    n = len(labels)
    size = hand.size * rng.normal(1, 0.04, n) / EM
    width = hand.width * rng.normal(1, 0.05, n)
    slant = hand.slant + rng.normal(0, 0.05, n)
    tilt = hand.tilt + rng.normal(0, 0.05, n)
    shift = rng.normal(0, 0.7, (n, 2, 1))
    bend = hand.bend[labels] + rng.normal(0, 0.5, (n, 2))
    # Pixels from the middle of the image; y points down in images as in type.
    middle = np.mgrid[:SIDE, :SIDE][::-1].reshape(2, -1) - (SIDE - 1) / 2
    points = middle - shift
    wave = np.sin(points[:, ::-1] * (2 * np.pi / 20) + bend[..., None])
    turn = np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]])
    lean = np.array([[width * size, -slant * size], [np.zeros(n), size]])
    inverse = np.linalg.inv(np.einsum("ijn,jkn->nik", turn, lean))
    # Half way from descenders to ascenders, 0.26 em above the baseline, is the image's middle.
    return inverse @ (points + wave) + np.array([[CANVAS / 2], [BASELINE - 0.26 * EM]])


def _sampled(
    forms: NDArray[np.uint8], which: Integers, where: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Interpolate forms (m, CANVAS, CANVAS), one for each image, between their pixels."""
    where = np.clip(where, 0, CANVAS - 1.001)  # the rim of the canvas is empty
    cell = where.astype(np.int64)
    (right, down), (left, up) = (np.moveaxis(a, 1, 0) for a in (where - cell, 1 - where + cell))
    corner = (which[:, None] * CANVAS + cell[:, 1]) * CANVAS + cell[:, 0]
    ink = forms.reshape(-1)
    total = ink[corner] * (left * up) + ink[corner + 1] * (right * up)
    total += ink[corner + CANVAS] * (left * down) + ink[corner + CANVAS + 1] * (right * down)
    return total.reshape(-1, SIDE, SIDE)


@functools.cache
def _type(font: str, pen: int) -> NDArray[np.uint8]:
    """Return the 62 characters of a font in a pen, large, 255 for ink, on a common baseline."""
    import matplotlib as mpl  # slow to import, and seldom needed
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    path = Path(mpl.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    try:
        face = ImageFont.truetype(path, EM, layout_engine=ImageFont.Layout.BASIC)
    except OSError:
        raise FedMomError(
            f"glyphs: the font {path} cannot be read. It comes with matplotlib; install that again."
        ) from None
    forms = np.empty((len(CHARACTERS), CANVAS, CANVAS), np.uint8)
    for form, character in zip(forms, CHARACTERS, strict=True):
        sheet = Image.new("L", (CANVAS, CANVAS))
        at = (CANVAS // 2, BASELINE)
        ImageDraw.Draw(sheet).text(at, character, 255, face, anchor="ms", stroke_width=pen)
        # An image takes about every third pixel: soften the type, lest strokes fall between.
        form[:] = np.asarray(sheet.filter(ImageFilter.GaussianBlur(1.3)))
    return forms
