"""A self-contained HTML page and its parts: words, figures, tables, verdicts, settings.

Any text in a part may come from a stranger's folder: it is escaped, never markup.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fedmom.reports.charts import Figure, Grid


@dataclass(frozen=True)
class Words:
    """Plain text; a blank line begins a new paragraph."""

    text: str

    def paragraphs(self) -> list[str]:
        """Return the paragraphs."""
        return [text for text in re.split(r"\n\s*\n", self.text.strip()) if text]


class Status(StrEnum):
    """What measuring said about a claim."""

    HOLDS = "holds"
    PART = "holds in part"
    FAILS = "does not hold"
    OPEN = "not settled"
    FEW = "not enough seeds"
    UNKNOWN = "not measured"


@dataclass(frozen=True)
class Verdict:
    """A claim, what became of it, and the measured numbers that say so."""

    claim: str
    status: Status
    numbers: str


@dataclass(frozen=True)
class Settings:
    """Names with values, folded until asked for: a configuration, or versions."""

    title: str
    values: Mapping[str, str]


Part = Words | Figure | Grid | Verdict | Settings


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, in order."""

    title: str
    parts: Sequence[Part]
