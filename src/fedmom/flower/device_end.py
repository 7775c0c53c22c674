"""A device's end of a deployed run: it trains on its own data, which stays where it is."""

import json
import os
import time
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedmom.core.errors import FedMomError
from fedmom.core.files import user_path

if TYPE_CHECKING:
    from fedmom.runtimes.devices.answer import Owner

DATA, CLIENT, FOLDER = "data", "client", "folder"  # keys of a SuperNode's --node-config
SAID, TROUBLE = "device.log", "errors.log"
ALL_ONES = "partition=iid:clients=1"  # all rows of a file are one client's
HELD_OUT = 0.2  # of the rows of a device's own file, where it is not said which are for testing

client_app = ClientApp()


@client_app.query()
@client_app.train()
@client_app.evaluate()
def respond(message: Message, context: Context) -> Message:
    """Do what a message asks for."""
    # Every message starts a new process, so that every compiled program is worth keeping.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    from fedmom.core.compilation import prepare_process

    prepare_process()
    from fedmom.runtimes.devices.answer import answer, failed

    try:
        owner = _owner(context)
    except Exception as error:  # Flower would send its text, which may have paths in it
        traceback.print_exception(error)
        return failed(message, error)
    return answer(message, owner)


def _owner(context: Context) -> "Owner":
    """Return what this device's owner has set up."""
    from fedmom.runtimes.devices.answer import Owner

    folder = user_path(str(context.node_config.get(FOLDER, "device")), FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    data = partial(own_data, context.node_config)
    return Owner(
        data=data,
        open=lambda task: open_client(task, data(), folder),
        say=partial(_write, folder / SAID),
        trouble=lambda error: _write(
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

    if DATA not in node_config:
        raise FedMomError("The device was started without data: add --data.")
    data = _loaded(str(node_config[DATA]))
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
    from fedmom.data.assembly import NoClientsError

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
    for number, user in enumerate(data.users):
        if user == text:
            return number
    raise FedMomError(
        f"--client {text} is not a client of {data.name}: give a number from 0 to"
        f" {data.clients - 1}, or a name."
    )


def open_client(task: ConfigRecord, data: Any, folder: Path) -> Any:
    """Return the client that a task is for: the server's settings, on this device's data."""
    from fedmom.algorithms.workload import Workload
    from fedmom.data.federated import Features
    from fedmom.experiments import settings
    from fedmom.experiments.build import parts
    from fedmom.runtimes.devices.client import DeviceClient
    from fedmom.runtimes.devices.state_folder import StateFolder

    config = settings.parse(json.loads(str(task["settings"])))
    kind, shape, *labels = json.loads(str(task["features"]))
    features, mine = Features(kind, tuple(shape), *labels), data.features
    if features._replace(classes=mine.classes) != mine or features.classes < mine.classes:
        raise FedMomError(f"The run is about {features}, but the data here is {mine}.")
    model, algorithm = parts(config, features)
    workload = Workload(replace(data, features=features), model, algorithm, config.seed)
    number, states = int(str(task["client"])), StateFolder(folder / "state", str(task["run"]))
    return DeviceClient(workload, number, states)


def _write(file: Path, text: str) -> None:
    with file.open("a", encoding="utf-8") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
