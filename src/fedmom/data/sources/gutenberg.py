"""Shakespeare's speaking roles from Project Gutenberg's text of the complete works, as in LEAF.

LEAF's rules, in order:

- The first line is dropped; of the rest, lines 0 to 124,195 are read.
- A line with "by William Shakespeare" opens a play. The first such line belongs to the title
  page, so the second opens the first play. The title is the nearest line with words among
  those 2 to 7 lines above.
- Two spaces, a name of letters and spaces, a full stop and a space: someone begins to speak.
  Names are taken in capitals. A line indented by four or more spaces continues the speech;
  any other line is dropped, and the speech may continue after it.
- "THE COMEDY OF ERRORS" is not indented in the edition of 1994. There a name begins its line,
  every other line continues the speech, and "ACT ..." or a line from "<" ends it.
- A play with one speaker is dropped; a role of one or two lines is dropped. Roles with the same
  id are one role.
- A role's lines are joined by single spaces, runs of spaces become one, and a space stays at
  the end. Each 80 characters with the one after them are a sample, so a role of 80 characters
  or less has none and is dropped.

These rules were made for the edition of 1994. On the edition of June 2018 they give 563 roles
and 2,140,051 samples, with these peculiarities, which are kept because they are LEAF's:

- Only some plays there have the author's line, and Hamlet's is the second: the six plays before
  it are not read (so the exception for the Comedy of Errors finds no use). Line 124,195 lies in
  the fourth act of Titus Andronicus: the rest of it and all works after it are not read.
- The plays without an author's line go under the title of the play before them. So Costard is
  found in King Lear, and the messengers of several plays are one role.
- Hamlet, Julius Caesar and Romeo and Juliet do not indent their speakers and have no role.
- Stage directions that are indented ("Exeunt", "Enter a Messenger.") count as speech, and a
  line of prose such as "  knowledge. When I burned" makes a role of its own.
"""

import re
import unicodedata
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from fedmom.core.errors import FedMomError
from fedmom.data.federated import FederatedData
from fedmom.data.source_files import file_identity, read_text
from fedmom.data.sources.shakespeare import WINDOW, encode, from_roles
from fedmom.data.store.writer import cached, save_store

_AUTHOR = "by William Shakespeare"
_LAST_LINE = 124_195
_BEGINNING = 16_384  # bytes that tell the complete works from another text
_TYPOGRAPHIC = str.maketrans("‘’“”–—æÆœŒ\t", "''\"\"--eEeE ")


class _Layout(NamedTuple):
    """How a play is set: who begins to speak, what continues the speech, what ends it."""

    speaker: re.Pattern[str]
    more: re.Pattern[str]
    end: re.Pattern[str]


def _layout(speaker: str, more: str, end: str) -> _Layout:
    return _Layout(*(re.compile(rule, re.ASCII | re.IGNORECASE) for rule in (speaker, more, end)))


_INDENTED = _layout(r" {2}([A-Z][A-Z ]*)\. (.*)", r" {4}(.*)", end=r"(?!)")  # nothing ends it
_FLUSH = _layout(r"([A-Z][A-Z ]*)\. (.*)", r"(.*)", end=r"<|ACT [A-Z ]*\. ")


def is_gutenberg(path: Path) -> bool:
    """Return whether a file is a .txt or .txt.gz that begins like Shakespeare's complete works."""
    if not path.name.lower().endswith((".txt", ".txt.gz")) or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_BEGINNING)
        if path.suffix.lower() == ".gz":
            head = zlib.decompressobj(wbits=31).decompress(head, _BEGINNING)
    except (OSError, zlib.error):
        return False
    return b"complete works of william shakespeare" in b" ".join(head.lower().split())


def gutenberg_roles(path: Path) -> dict[str, str]:
    """Return the text of every role with a sample at least, by LEAF's id.

    They come in the order in which they first speak (LEAF's own is that of a directory).
    """
    lines: dict[str, list[str]] = {}
    text = read_text(path).replace("\r\n", "\n").replace("\r", "\n")
    for title, body in _plays(path, text.splitlines()[1:]):
        said = _said(body, _FLUSH if title == "THE COMEDY OF ERRORS" else _INDENTED)
        for name in said if len(said) > 1 else ():
            if len(said[name]) > 2:
                role = re.sub(r"\W+", "_", f"{title}_{name}".replace(" ", "_"))
                lines.setdefault(role, []).extend(said[name])
    texts = {role: re.sub(" +", " ", " ".join([*said, ""])) for role, said in lines.items()}
    texts = {role: text for role, text in texts.items() if len(text) > WINDOW}
    if not texts:
        raise FedMomError(
            f"{path} has no speaking roles by LEAF's rules, which need a line {_AUTHOR!r} below"
            " a play's title and speakers indented by two spaces. Use Project Gutenberg's"
            " text 100 in the edition of 1994, or 100-0.txt of 2018."
        )
    return texts


def load_gutenberg(path: Path) -> FederatedData:
    """Read the complete works; all roles are clients, each split as LEAF splits it.

    A role of fewer than 791 samples has none for testing. LEAF drops such roles when it
    splits; `fedmom data prepare -t sample` does, too, after any sampling, in LEAF's order.
    Typographic quotes, dashes and accents are none of LEAF's symbols and become the plain
    character nearest to them, one for one (the roles of the 2018 edition have none). Another
    strange character is refused.
    """
    try:
        identity = file_identity([path])
    except OSError as error:
        raise FedMomError(f"{path} cannot be read: {error.strerror}.") from None
    return cached("shakespeare", ["gutenberg", identity], lambda folder: _pack(path, folder))


def _pack(path: Path, folder: Path) -> None:
    texts = {role: _plain(words) for role, words in gutenberg_roles(path).items()}
    for role, text in texts.items():
        try:
            encode(text)
        except FedMomError as error:
            raise FedMomError(f"{path}, role {role}: {error} Replace it in the file.") from None
    source = {"reader": "gutenberg", "files": file_identity([path])}
    save_store(from_roles("shakespeare (gutenberg)", texts), folder, source)


def _plain(text: str) -> str:
    """Exchange typographic and accented characters for plain ones, one for one."""
    unaccented = {ord(c): unicodedata.normalize("NFD", c)[0] for c in set(text)}
    return text.translate({**unaccented, **_TYPOGRAPHIC})


def _plays(path: Path, lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each play's title and the lines below its author's."""
    marks = [number for number, line in enumerate(lines) if _AUTHOR in line]
    for mark, following in pairwise([*(marks[1:] or marks), len(lines)]):
        if mark > _LAST_LINE:
            return
        above = (line.strip() for line in reversed(lines[max(0, mark - 7) : max(0, mark - 1)]))
        title = next(filter(None, above), None)
        if title is None:
            raise FedMomError(
                f"{path}, line {mark + 2}: {_AUTHOR!r} has no title 2 to 7 lines above it."
                " Put the play's title there, or remove the line."
            )
        yield title, lines[mark + 1 : min(following, _LAST_LINE + 1)]


def _said(lines: list[str], layout: _Layout) -> dict[str, list[str]]:
    """Return the lines that each speaker of a play says, in order."""
    said: dict[str, list[str]] = {}
    name = None
    for line in lines:
        if layout.end.match(line):
            name = None
        elif speaks := layout.speaker.match(line):
            name = speaks[1].upper()
            said.setdefault(name, []).append(speaks[2])
        elif name and (more := layout.more.match(line)):
            said[name].append(more[1])
    return said
