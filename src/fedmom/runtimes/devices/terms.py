"""What a server asks of its devices: the options of the runtime."""

from typing import NamedTuple

from fedmom.core.errors import FedMomError

LONGEST_DEADLINE = 30 * 24 * 3600


class Terms(NamedTuple):
    """What a server asks of its devices: the options of the runtime.

    Args:
        devices: How many must be there before a run begins.
        deadline: Seconds that a device has to answer.
        least: The fewest replies that make a round.
        max_samples: The most samples that are believed of a device.
    """

    devices: int
    deadline: float
    least: int
    max_samples: int


def terms(
    *, devices: int = 1, deadline: float = 600.0, least: int = 1, max_samples: int = 1_000_000
) -> Terms:
    """Return what a server asks of its devices, if that can be."""
    for name, value in (("devices", devices), ("least", least), ("max_samples", max_samples)):
        if value < 1:
            raise FedMomError(f"flower: {name}={value} is not 1 or more.")
    if not 0 < deadline <= LONGEST_DEADLINE:
        raise FedMomError(
            f"flower: deadline={deadline} is not a number of seconds greater than 0, and at most"
            f" {LONGEST_DEADLINE:,}."
        )
    return Terms(devices, deadline, least, max_samples)
