"""Which numbers are accepted from users, and what fits in this machine's memory."""

import math
import os
from typing import Annotated, Any, NamedTuple, get_args

from fedmom.core.errors import FedMomError

# Numbers of rounds, steps, samples and clients are whole numbers of 32 bits in programs.
MOST = 2**31 - 1
# Other numbers are floats of 32 bits: one beyond these would be inf, or 0.
LEAST_FLOAT, MOST_FLOAT = 2.0**-126, (2 - 2.0**-23) * 2.0**127
# Next to one copy of the parameters there are gradients, the server's state and clients' copies.
COPIES = 4


class Between(NamedTuple):
    """The range of an option, where it is not the usual one: ``Annotated[int, Between(1, 9)]``.

    Without it, whole numbers and floats have 32 bits.
    """

    least: float
    most: float


WHOLE = Between(-MOST, MOST)
Count = Annotated[int, Between(0, 2**63 - 1)]  # of rounds, samples
Seed = Count  # as NumPy takes it
Finite = Annotated[float, Between(-MOST_FLOAT, MOST_FLOAT)]


def check_number(what: str, value: Any, hint: Any = None) -> None:
    """Refuse a number out of the range that its option has.

    Args:
        what: The number as the user wrote it, such as ``"mlp: layers=9"``.
        value: Its value; anything but a number passes.
        hint: The option's type, which may be annotated with ``Between``.

    Examples:
        >>> check_number("mlp: layers=3000000000", 3000000000)
        Traceback (most recent call last):
        fedmom.core.errors.FedMomError: mlp: layers=3000000000 is not between \
-2,147,483,647 and 2,147,483,647.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    own = next((part for part in get_args(hint) if isinstance(part, Between)), None)
    usual = WHOLE if isinstance(value, int) else None
    if (allowed := own or usual) and not allowed.least <= value <= allowed.most:
        raise FedMomError(
            f"{what} is not between {_text(allowed.least)} and {_text(allowed.most)}."
        )
    if not own and not math.isfinite(value):
        raise FedMomError(f"{what} is not a finite number.")
    if not own and abs(value) > MOST_FLOAT:
        raise FedMomError(f"{what} is too large for a float of 32 bits (at most {MOST_FLOAT:.2g}).")


def _text(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def machine_memory() -> int | None:
    """Return the bytes of memory that this machine has, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(what: str, size: int, remedy: str) -> None:
    """Refuse what cannot fit in this machine's memory, before any of it is asked for.

    Args:
        what: What needs the memory, as the user wrote it.
        size: How many bytes it needs at least.
        remedy: What to do, as a sentence.
    """
    memory = machine_memory()
    if memory is not None and size > memory:
        raise FedMomError(
            f"{what} needs at least {size / 1e9:,.1f} GB, and this machine has"
            f" {memory / 1e9:,.1f} GB. {remedy}"
        )


def check_parameters(model: str, numbers: int) -> None:
    """Refuse a model whose parameters, and the copies that training makes, cannot fit."""
    check_memory(
        f"{model} with {numbers:,} parameters", 4 * COPIES * numbers, "Use a smaller model."
    )
