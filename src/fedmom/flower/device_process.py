"""A device's end as a program: a SuperNode, and in plain words what is asked of the device."""

import os
import subprocess
import time
from pathlib import Path

from fedmom.core.compilation import kept_in
from fedmom.core.errors import FedMomError
from fedmom.core.files import locked
from fedmom.core.types import Say
from fedmom.flower import launch
from fedmom.flower.device_end import SAID, own_data
from fedmom.flower.layout import DeviceFolder

LOG = "supernode.log"
SECONDS_BETWEEN_LOOKS = 0.3
# A server treats a killed device as online until its heartbeat is overdue, for about a minute, and
# does not let it in before.
SECONDS_TO_RETURN = 150.0
SECONDS_BETWEEN_TRIES = 5.0
# What SuperNodes say when they cannot take part, and what that means.
REFUSALS = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not signed by the CA in ca.pem. Copy the"
    " device's folder from the server again",
    "WRONG_VERSION_NUMBER": "it does not speak TLS at this address. Check the port",
    "Invalid SuperNode authentication": "it does not accept this device's key, or the clocks"
    " differ by minutes",
    "All SuperNodes must be registered": "it lets in devices with a key only",
    "Unable to parse the private key": "device.key is not a key. Copy the device's folder from the"
    " server again",
}
BUSY = "Failed to activate SuperNode"


def participate(device: DeviceFolder, data: str, client: str | None, say: Say) -> None:
    """Take part until interrupted.

    Args:
        device: The folder that the device was given.
        data: The device's data, a path or a dataset's name.
        client: Which client of it this device is, if it has several.
        say: Told what is asked of the device, and what leaves it.
    """
    from fedmom.data import locate

    device.path.chmod(0o700)  # a copy of the data is kept here
    os.environ |= _cache(device)  # prepared data, too, is with the device and nowhere else
    mine = own_data({"data": data, **({} if client is None else {"client": client})})
    say(
        f"{device.name}: {int(mine.train.size[0])} training and {int(mine.test.size[0])} test"
        f" samples of {mine.name}. They stay here. What leaves is written down in"
        f" {device.path / SAID}."
    )
    with locked(device.path):
        since = time.monotonic()
        while True:
            command = launch.supernode(device, launch.free_port(), str(locate(data)), client)
            refusal, was_let_in = _attend(device, command, say)
            since = time.monotonic() if was_let_in else since
            if time.monotonic() - since > SECONDS_TO_RETURN:
                raise FedMomError(f"{device.address} does not let this device in: {refusal}.")
            say(f"{refusal}. Trying again.")
            time.sleep(SECONDS_BETWEEN_TRIES)


def _cache(device: DeviceFolder) -> dict[str, str]:
    """Return what makes processes keep prepared data and compiled programs in a device's folder."""
    cache = device.path / "cache"
    return {**kept_in(cache), "FEDMOM_CACHE": str(cache)}


def _attend(device: DeviceFolder, command: list[str], say: Say) -> tuple[str, bool]:
    """Run a SuperNode and tell what it does; return why it has ended, and if it was let in."""
    home = launch.environment(device.path / "flwr", **_cache(device))
    log, said = Tail(device.path / LOG), Tail(device.path / SAID)
    text, connected = "", False
    with launch.running(command, device.path / LOG, home, device.path) as process:
        while process.poll() is None:
            text = (text + log.news())[-20_000:]
            if not connected and "SuperNode ID" in text:
                connected = True
                say(f"{time.strftime('%H:%M:%S')} Connected to the server. Waiting to be asked.")
            for line in said.news().splitlines():
                say(line.partition(" ")[2])  # without the day
            time.sleep(SECONDS_BETWEEN_LOOKS)
    text += log.news()
    return _why(device, text, process), connected


def _why(device: DeviceFolder, text: str, process: "subprocess.Popen[bytes]") -> str:
    """Return why a SuperNode has ended; raise if it would end again."""
    for sign, meaning in REFUSALS.items():
        if sign in text:
            raise FedMomError(f"The server at {device.address}: {meaning}.")
    if BUSY in text:
        return "The server does not know this device's key, or still treats it as online"
    return f"The SuperNode ended with code {process.returncode} ({device.path / LOG} says more)"


class Tail:
    """What is added to a file from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0

    def news(self) -> str:
        """Return what was added since the last call."""
        if not self._path.exists():
            return ""
        with self._path.open("rb") as file:
            file.seek(self._at)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode(errors="replace")
