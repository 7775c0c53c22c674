"""A device of a deployment: its SuperNode, and the client app, which trains on the device's data.

The data stay on the device, and what is asked of it is written down in plain words.
"""

import json
import os
import subprocess
import time
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedmom.core.compilation import kept_in
from fedmom.core.errors import FedMomError
from fedmom.core.files import locked, open_file, user_path
from fedmom.core.types import Say
from fedmom.flower import launch, node
from fedmom.flower.layout import DeviceFolder
from fedmom.flower.node import SAID, note

if TYPE_CHECKING:
    from fedmom.runtimes.devices.client import Owner

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
DATA, CLIENT, FOLDER = "data", "client", "folder"  # keys of a SuperNode's --node-config
TROUBLE = "errors.log"
ALL_ONES = "partition=iid:clients=1"  # all rows of a file are one client's
HELD_OUT = 0.2  # of the rows of a device's own file, where it is not said which are for testing

client_app = ClientApp()


def participate(device: DeviceFolder, data: str, client: str | None, say: Say) -> None:
    """Take part until interrupted.

    Args:
        device: The folder that the device was given.
        data: The device's data, a path or a dataset's name.
        client: Which client of it this device is, if it has several.
        say: Told what is asked of the device, and what leaves it.
    """
    from fedmom.data import locate

    os.umask(0o077)  # a copy of the data is kept here
    device.path.chmod(0o700)
    cache = device.path / "cache"  # prepared data and compiled programs, too, are here only
    os.environ |= {**kept_in(cache), "FEDMOM_CACHE": str(cache)}
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


def _attend(device: DeviceFolder, command: list[str], say: Say) -> tuple[str, bool]:
    """Run a SuperNode and tell what it does; return why it has ended, and if it was let in."""
    home = launch.environment(device.path / "flwr", **{node.FOLDER: str(device.path)})
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
            for name in (LOG, SAID, TROUBLE):
                launch.shorten(device.path / name)
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
        with open_file(self._path) as file:
            if os.fstat(file.fileno()).st_size < self._at:  # it was put aside
                self._at = 0
            file.seek(self._at)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode(errors="replace")


@client_app.query()
@client_app.train()
@client_app.evaluate()
def respond(message: Message, context: Context) -> Message:
    """Do what a message asks for."""
    # Every message starts a new process, so that every compiled program is worth keeping.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    from fedmom.core.compilation import prepare_process

    prepare_process()
    from fedmom.runtimes.devices.client import answer, failed

    try:
        owner = _owner(context)
    except Exception as error:  # Flower would send its text, which may have paths in it
        traceback.print_exception(error)
        return failed(message, error)
    return answer(message, owner)


def _owner(context: Context) -> "Owner":
    """Return what this device's owner has set up."""
    from fedmom.runtimes.devices.client import Owner

    folder = user_path(str(context.node_config.get(FOLDER, "device")), FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    data = partial(own_data, context.node_config)
    return Owner(
        data=data,
        open=lambda task: open_client(task, data(), folder),
        say=partial(note, folder / SAID),
        trouble=lambda error: note(
            folder / TROUBLE, "".join(traceback.format_exception(error)).rstrip()
        ),
    )


def own_data(node_config: Any) -> Any:
    """Return the data of this device, a population of one client.

    Args:
        node_config: The SuperNode's: ``data``, a dataset's path or name; and ``client``, the
            number or name of the client that this device plays, where the dataset has several.
            A file that names no clients is this device's alone.

    Raises:
        FedMomError: There is no such client, or none was named and there are several.
    """
    from fedmom.data.federated import Split
    from fedmom.data.rows.assembly import numbered_as_labelled

    if DATA not in node_config:
        raise FedMomError("The device was started without data: add --data.")
    data = numbered_as_labelled(_loaded(str(node_config[DATA])))
    if data.test_users is not None:
        raise FedMomError(f"{data.name}: its test clients are not its training clients.")
    k = _number(data, node_config.get(CLIENT))
    train, test = (Split(s.start[k : k + 1], s.size[k : k + 1]) for s in (data.train, data.test))
    return replace(data, users=[data.users[k]], train=train, test=test)


def _loaded(spec: str) -> Any:
    """Return a dataset. In a file without clients all rows are one client's, some of them held out.

    Rows are held out at random, with a fixed seed, unless the file or its options say which.
    """
    from fedmom.data import load, path_of
    from fedmom.data.rows.assembly import NoClientsError

    try:
        return load(spec)
    except NoClientsError:
        path, given = path_of(spec) or (spec, "")
    given = f"{given}," if given else ""
    data = load(f"{path}:{given}{ALL_ONES}")
    if data.test.size.any() or "test_fraction" in given:
        return data
    return load(f"{path}:{given}test_fraction={HELD_OUT},{ALL_ONES}")


def _number(data: Any, client: Any) -> int:
    """Return the number of the client that is meant."""
    if client is None:
        if data.clients > 1:
            raise FedMomError(
                f"{data.name} has {data.clients} clients, and a device is one. Give --client, a"
                f" number from 0 to {data.clients - 1} or a name."
            )
        return 0
    text = str(client)
    if text.isdigit() and int(text) < data.clients:
        return int(text)
    if text in data.users:
        return list(data.users).index(text)
    raise FedMomError(
        f"--client {text} is not a client of {data.name}: give a number from 0 to"
        f" {data.clients - 1}, or a name."
    )


def open_client(task: ConfigRecord, data: Any, folder: Path) -> Any:
    """Return the client that a task is for: the server's settings, on this device's data."""
    from fedmom.algorithms.workload import Workload
    from fedmom.data.given import conformed, relabelled
    from fedmom.data.schema import Schema
    from fedmom.experiments import settings
    from fedmom.experiments.build import parts
    from fedmom.models.adapters import has_integers
    from fedmom.runtimes.devices.client import DeviceClient, StateFolder

    config = settings.parse(json.loads(str(task["settings"])))
    if "schema" in task:
        schema = Schema.from_json(str(task["schema"]).encode(), "The schema of the run")
        data = relabelled(conformed(data, schema), schema)
    else:  # a run of an earlier version
        data = _of_features(data, *json.loads(str(task["features"])))
    integers = "schema" in task and has_integers(data)
    model, algorithm = parts(config, data.features, integers=integers)
    workload = Workload(data, model, algorithm, config.seed)
    number, states = int(str(task["client"])), StateFolder(folder / "state", str(task["run"]))
    return DeviceClient(workload, number, states)


def _of_features(data: Any, kind: Any, shape: Any, *labels: Any) -> Any:
    from fedmom.data.federated import Features

    features, mine = Features(kind, tuple(shape), *labels), data.features
    if features._replace(classes=mine.classes) != mine or features.classes < mine.classes:
        raise FedMomError(f"The run is about {features}, but the data here is {mine}.")
    return replace(data, features=features)
