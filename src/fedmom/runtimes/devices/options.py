"""The options of the runtime on devices, checked."""

from typing import NamedTuple

from fedmom.core.errors import FedMomError

LONGEST_DEADLINE = 30 * 24 * 3600


class DeviceOptions(NamedTuple):
    """What a server asks of its devices.

    Args:
        devices: How many must be there before a run begins.
        deadline: Seconds that a device has to answer.
        least: The fewest replies that make a round.
        max_samples: The most samples that a device may claim.
    """

    devices: int = 1
    deadline: float = 600.0
    least: int = 1
    max_samples: int = 1_000_000


def checked(options: DeviceOptions) -> DeviceOptions:
    """Return the options, if they are possible."""
    for name in ("devices", "least", "max_samples"):
        value = getattr(options, name)
        if value < 1:
            raise FedMomError(f"flower: {name}={value} must be at least 1.")
    if not 0 < options.deadline <= LONGEST_DEADLINE:
        raise FedMomError(
            f"flower: deadline={options.deadline} must be a number of seconds greater than 0, at"
            f" most {LONGEST_DEADLINE:,}."
        )
    return options
