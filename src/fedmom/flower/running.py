"""Runs that a deployment has under way: what was asked for, and the restart of those that died.

The server keeps a file for each of them, so a run outlives the command that has started it.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedmom.core.errors import FedMomError
from fedmom.core.files import inner_folder, make_folder, read_file, remove_file, write_atomic
from fedmom.core.types import Say
from fedmom.experiments.folder import RunFolder
from fedmom.flower.control import Control, RunStatus
from fedmom.flower.layout import Deployment

OUT = "out"  # the key, in an app's settings, of the run's folder
TRIES = 5  # server apps in a row that end without a round
ENDED = ("completed", "failed", "stopped")  # the statuses of runs that do no more
EXCEPTION = "ServerApp failed with exception: "


@dataclass(frozen=True)
class Order:
    """A run that somebody has asked for.

    Args:
        run: Flower's number of it, a new one at each restart.
        out: Its folder.
        settings: What was asked for.
        tries: How many times it may be restarted without a round in between.
        done: The rounds it had at its last restart.
        fault: Why it is restarted no more.
    """

    run: int
    out: str
    settings: dict[str, Any]
    tries: int = TRIES
    done: int = 0
    fault: str = ""

    def write(self, deployment: Deployment) -> None:
        """Let the server know of it."""
        make_folder(_folder(deployment))
        write_atomic(_file(deployment, Path(self.out)), json.dumps(asdict(self)).encode())


ORDER = TypeAdapter(Order)


def find(deployment: Deployment, out: Path) -> Order | None:
    """Return the run that a deployment has under way in a folder; None for none."""
    return _read(_file(deployment, out))


def forget(deployment: Deployment, out: Path) -> Order | None:
    """Let the server no longer look after a run; return what it was."""
    file = _file(deployment, out)
    order = _read(file)
    remove_file(file)
    return order


def done(out: Path) -> int:
    """Return the rounds of a run's newest checkpoint."""
    return RunFolder(out).saved_round() or 0


def has_died(status: RunStatus) -> bool:
    """Return whether a run's server app has ended without being done, stopped or refused."""
    return status.status not in ("completed", "stopped") and not status.details.startswith(
        EXCEPTION
    )


class Supervisor:
    """Restarts runs whose server apps have died.

    Args:
        deployment: The deployment.
        control: Its SuperLink's Control API.
        say: Told of it.
    """

    def __init__(self, deployment: Deployment, control: Control, say: Say) -> None:
        self._deployment, self._control, self._say = deployment, control, say

    def look(self) -> None:
        """Look after every run, each by itself."""
        faults = []
        for file in sorted(_folder(self._deployment).glob("*.json")):
            order = _read(file)
            if order is None:
                remove_file(file)
            elif not order.fault:
                try:
                    self._look_after(file, order)
                except FedMomError as error:
                    faults.append(error)
        if faults:
            raise faults[0]

    def _look_after(self, file: Path, order: Order) -> None:
        status = self._control.run(order.run)
        if status.status not in ENDED:
            return
        if _read(file) != order:  # it was asked for anew meanwhile
            return
        if not has_died(status):
            remove_file(file)
            return
        out, rounds = Path(order.out), done(Path(order.out))
        order = replace(order, tries=TRIES if rounds > order.done else order.tries, done=rounds)
        if not order.tries:
            logs = self._deployment.server
            fault = f"The server app died {TRIES} times without a round; {logs} has the logs."
            replace(order, fault=fault).write(self._deployment)
            return
        self._say(f"The server app of {out} has died ({status.details}). It is restarted.")
        run = self._control.start({**order.settings, OUT: order.out})
        if file.exists():
            replace(order, run=run, tries=order.tries - 1).write(self._deployment)
        else:  # somebody has stopped it meanwhile
            self._control.stop(run)


def _folder(deployment: Deployment) -> Path:
    return inner_folder(deployment.server / "running")


def _file(deployment: Deployment, out: Path) -> Path:
    return _folder(deployment) / f"{hashlib.sha256(str(out).encode()).hexdigest()[:32]}.json"


def _read(file: Path) -> Order | None:
    try:
        return ORDER.validate_json(read_file(file))
    except (FileNotFoundError, ValidationError, FedMomError):
        return None
