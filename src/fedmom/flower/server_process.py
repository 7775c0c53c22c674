"""A deployment's server: a SuperLink that is watched, and started again should it crash."""

import subprocess
import time

from fedmom.core.errors import FedMomError
from fedmom.core.types import Say
from fedmom.flower import launch
from fedmom.flower.control import Control
from fedmom.flower.layout import Deployment

LOG = "superlink.log"
SECONDS_TO_START = 90.0
SECONDS_BETWEEN_LOOKS = 2.0
FEWEST_SECONDS = 10.0  # a SuperLink that ends sooner does so again


def serve(deployment: Deployment, say: Say) -> None:
    """Run the SuperLink until it is interrupted.

    Args:
        deployment: The deployment.
        say: Told what happens.
    """
    while True:
        began = time.monotonic()
        home = launch.environment(deployment.server / "flwr")
        log = deployment.server / LOG
        with launch.running(launch.superlink(deployment), log, home, deployment.path) as it:
            _attend(deployment, it, say)
        if time.monotonic() - began < FEWEST_SECONDS:
            raise FedMomError(f"Flower's SuperLink ended at once. {log} says why.")
        say("The SuperLink has crashed; it is started again.")


def _attend(deployment: Deployment, process: "subprocess.Popen[bytes]", say: Say) -> None:
    """Let devices in, and tell who comes and goes, until the SuperLink ends."""
    with Control(deployment) as control:
        deadline = time.monotonic() + SECONDS_TO_START
        while not control.is_up():
            if process.poll() is not None:
                return
            if time.monotonic() > deadline:
                raise FedMomError(
                    f"Flower's SuperLink does not answer. {deployment.server / LOG} may say why."
                )
            time.sleep(0.2)
        control.update_keys()
        known = ", ".join(deployment.keys) or "any device of this machine"
        say(f"The server is ready at {deployment.address}. It lets in: {known}.")
        there: set[str] = set()
        while process.poll() is None:
            there = _news(control, there, say)
            _let_in(control, say)
            time.sleep(SECONDS_BETWEEN_LOOKS)


def _let_in(control: Control, say: Say) -> None:
    """Follow the folder of keys: a device whose key is new or gone may or may not take part."""
    try:
        new, gone = control.update_keys()
    except FedMomError:  # the SuperLink is busy, or ends
        return
    for name in new:
        say(f"{time.strftime('%H:%M:%S')} {name} may take part from now on.")
    for name in gone:
        say(f"{time.strftime('%H:%M:%S')} {name} may no longer take part.")


def _news(control: Control, before: set[str], say: Say) -> set[str]:
    """Tell which devices have come and gone; return those that are there."""
    try:
        now = {node.name for node in control.nodes() if node.online}
    except FedMomError:  # the SuperLink is busy, or ends
        return before
    clock = time.strftime("%H:%M:%S")
    for name in sorted(now - before):
        say(f"{clock} {name} is online.")
    for name in sorted(before - now):
        say(f"{clock} {name} is offline.")
    return now
