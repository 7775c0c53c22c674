"""A deployment's server: the SuperLink and its runs, watched and restarted, and the server app."""

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmom.core.compilation import prepare_process
from fedmom.core.errors import FedMomError
from fedmom.core.files import locked, read_file, user_path, write_atomic
from fedmom.core.registry import options
from fedmom.core.types import Say
from fedmom.experiments import settings
from fedmom.experiments.build import prepare
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.observers import Event
from fedmom.experiments.results import Result, metrics_of
from fedmom.experiments.settings import RunConfig, kebab
from fedmom.flower import launch, layout, running
from fedmom.flower.control import Control, RunStatus, settings_of
from fedmom.flower.layout import Deployment
from fedmom.flower.running import OUT, Supervisor
from fedmom.runtimes.devices import journal
from fedmom.runtimes.devices.link import Journal, Link
from fedmom.runtimes.devices.population import DeviceOptions, from_json, meet, to_json
from fedmom.runtimes.devices.runtime import DeviceRuntime

LOG = "superlink.log"
SECONDS_TO_START = 90.0
SECONDS_BETWEEN_LOOKS = 2.0
LOOKS_IN_VAIN = 3  # after which that is said
FEWEST_SECONDS = 10.0  # a SuperLink that ends sooner does so again
RUN_LOOKS = 1.0  # seconds between two looks at a run
SECONDS_WITHOUT_SERVER = 120.0
OURS = re.compile(r"^\d\d:\d\d:\d\d ")  # how the lines of the server's end begin
DEFAULTS = {"data": "devices", "runtime": "flower", "bad-replies": "skip"}
AGAIN = ("repeated", "no scores")  # events after which devices are asked again

server_app = ServerApp()


def serve(deployment: Deployment, say: Say) -> None:
    """Run the SuperLink until it is interrupted, and restart server apps that die.

    Args:
        deployment: The deployment.
        say: Called with what happens.
    """
    os.umask(0o077)  # what it and its runs write is for this user's eyes
    with locked(deployment.server):
        layout.write_token(deployment)
        while True:
            began = time.monotonic()
            home = launch.environment(deployment.server / "flwr")
            log = deployment.server / LOG
            with launch.running(launch.superlink(deployment), log, home, deployment.path) as it:
                _attend(deployment, it, say)
            if time.monotonic() - began < FEWEST_SECONDS:
                raise FedMomError(f"Flower's SuperLink ended at once. {log} says why.")
            say("The SuperLink has crashed; it is restarted.")


def _attend(deployment: Deployment, process: "subprocess.Popen[bytes]", say: Say) -> None:
    """Let devices in, report who comes and goes, and watch runs, until the SuperLink ends."""
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
        door = Door(control, lambda text: say(f"{time.strftime('%H:%M:%S')} {text}"))
        faults = door.update_keys(quiet=True)
        known = ", ".join(k for k in deployment.keys if k not in faults) or (
            "any device of this machine" if deployment.insecure else "nobody"
        )
        say(f"The server is ready at {deployment.address}. It lets in: {known}.")
        supervisor = Supervisor(deployment, control, say)
        failed = 0
        while process.poll() is None:
            try:
                door.look()
                supervisor.look()
                failed = 0
            except FedMomError as error:  # the SuperLink is busy, or ends
                failed += 1
                if failed == LOOKS_IN_VAIN:
                    say(f"The server cannot look after all keys or runs at present. {error}")
            launch.shorten(deployment.server / LOG)
            time.sleep(SECONDS_BETWEEN_LOOKS)


class Door:
    """Lets devices in whose keys are in the folder, and says who comes and goes.

    Args:
        control: The SuperLink's Control API.
        say: Told of it.
    """

    def __init__(self, control: Control, say: Say) -> None:
        self._control, self._say = control, say
        self._online: set[str] = set()
        self._faults: dict[str, str] = {}

    def look(self) -> None:
        """Let devices in, and say what has changed since the last look."""
        online = {node.name for node in self._control.nodes() if node.online}
        self._tell("is online", online - self._online)
        self._tell("is offline", self._online - online)
        self._online = online
        self.update_keys()

    def update_keys(self, *, quiet: bool = False) -> dict[str, str]:
        """Follow the folder of keys; return what went wrong, which is said once."""
        new, gone, faults = self._control.update_keys()
        if not quiet:
            self._tell("may take part from now on", new)
            self._tell("may no longer take part", gone)
        for name, fault in faults.items():
            if self._faults.get(name) != fault:
                self._say(fault)
        self._faults = faults
        return faults

    def _tell(self, what: str, names: Iterable[str]) -> None:
        for name in sorted(names):
            self._say(f"{name} {what}.")


def follow(deployment: Deployment, out: Path, values: dict[str, Any], say: Say, note: Say) -> None:
    """Start a run and follow it to its end; one that is under way in the folder is followed.

    The server restarts the run's server app if that dies, whether anybody follows it or not.

    Args:
        deployment: The deployment, whose server must be running.
        out: The run's folder; a run in it is resumed.
        values: Settings that replace those of the app.
        say: Called with what the run prints.
        note: Called with a sentence when the run had to be restarted.
    """
    wanted = {**DEFAULTS, **settings_of(deployment.app), **values}
    wanted.pop(OUT, None)
    config = settings.parse(wanted)
    given = config.model_dump(by_alias=True, exclude_none=True, exclude_unset=True)
    if unused := _unused(out, config, values):
        note(f"{out} keeps the settings it was started with, so these are ignored: {unused}.")
    with Control(deployment) as control:
        order = running.find(deployment, out)
        if order is not None and _is_live(control, order):
            note("The run is under way already, and is followed from here on.")
        else:
            order = running.Order(control.start({**given, OUT: str(out)}), str(out), given)
            order.write(deployment)
        try:
            while order is not None:
                ended = _followed(control, order.run, say)
                order = _next(deployment, order, ended, note)
        except KeyboardInterrupt:
            order = running.forget(deployment, out)  # first: the server is not to start it again
            if order is not None and control.run(order.run).status not in running.ENDED:
                control.stop(order.run)
            raise


def _next(
    deployment: Deployment, order: running.Order, ended: RunStatus, note: Say
) -> running.Order | None:
    """Return the run that continues one whose server app has died; None for one that is done."""
    out = Path(order.out)
    if ended.status == "completed":
        return None
    if ended.status == "stopped":
        raise FedMomError(
            f"The run was stopped, after {running.done(out)} rounds. Nothing is lost: resume it"
            f" with the same --out {out}."
        )
    if not running.has_died(ended):
        raise FedMomError(ended.details.removeprefix(running.EXCEPTION))
    restarted = _restarted(deployment, out, order)
    note(
        f"The run's server app has died ({ended.details or ended.status}). It is restarted, and"
        f" resumes after {running.done(out)} rounds."
    )
    return restarted


def _is_live(control: Control, order: running.Order) -> bool:
    """Return whether a run is active, or will be restarted by the server."""
    if order.fault:
        return False
    with contextlib.suppress(FedMomError):  # the server knows no such run
        found = control.run(order.run)
        return found.status not in running.ENDED or running.has_died(found)
    return False


def _restarted(deployment: Deployment, out: Path, before: running.Order) -> running.Order:
    """Wait until the server has restarted a run whose server app has died."""
    deadline = time.monotonic() + SECONDS_WITHOUT_SERVER
    while time.monotonic() < deadline:
        order = running.find(deployment, out)
        if order is None or order.fault:
            raise FedMomError(
                order.fault if order else f"The run was stopped, after {running.done(out)} rounds."
            )
        if order.run != before.run:
            return order
        time.sleep(RUN_LOOKS)
    raise FedMomError(
        f"The run's server app has died, and no server restarts it. Start the server, fedmom deploy"
        f" server {deployment.path}, which does."
    )


def _unused(out: Path, config: RunConfig, values: dict[str, Any]) -> str:
    """Return the options that were given for a run which has others, with those it has."""
    if not (out / "config.toml").exists():
        return ""
    asked, has = (c.model_dump(by_alias=True) for c in (config, RunFolder.open(out).settings()))
    keys = [key for key in map(kebab, values) if key in asked and asked[key] != has[key]]
    return ", ".join(f"{key} {asked[key]} (it has {has[key]})" for key in keys)


def _followed(control: Control, run_id: int, say: Say) -> RunStatus:
    """Repeat what a run says until it has ended; return how."""
    after, silent, rest = 0.0, time.monotonic(), ""
    while True:
        for text, at in control.log(run_id, after):
            after = at
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                if OURS.match(line):
                    say(line)
        try:
            status = control.run(run_id)
            silent = time.monotonic()
            if status.status in running.ENDED:
                return status
        except FedMomError:
            if time.monotonic() - silent > SECONDS_WITHOUT_SERVER:
                raise
        time.sleep(RUN_LOOKS)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or resume, the run that the app's settings describe."""
    prepare_process()
    values = dict(context.run_config)
    out = user_path(str(values.pop(OUT, "runs/deployed")), OUT)
    result = train(grid, out, values)
    if result.error:
        raise result.error


def train(grid: Grid, out: Path, values: Mapping[str, Any]) -> Result:
    """Run on the devices of a Grid, in a folder; a run that the folder holds is resumed.

    Args:
        grid: Flower's Grid.
        out: The run's folder.
        values: The settings of a new run. One that is resumed has its own.

    Returns:
        The result.
    """
    link = Link(grid)
    if (out / "config.toml").exists():
        folder = RunFolder.open(out)
        data = from_json(read_file(out / journal.DEVICES), link)
        experiment = prepare(folder.settings(), data)
    else:
        config = settings.parse({**DEFAULTS, **values})
        RunFolder.check_free(out)
        asked = DeviceOptions(**options(DeviceRuntime, config.runtime)).checked()
        data = meet(link, asked, _say)
        experiment = prepare(config, data)
        folder = RunFolder.create(out, experiment.config)
        write_atomic(out / journal.DEVICES, to_json(data))
    link.journal = News(partial(journal.write, out), data.users)
    link.settings = {
        "settings": experiment.config.model_dump_json(by_alias=True, exclude_none=True),
        "features": json.dumps(data.features),
    }
    if data.schema is not None:  # not in runs of earlier versions
        link.settings["schema"] = data.schema.to_json().decode()
    done = folder.saved_round()
    after = f", after {done} rounds" if done else ""
    _say(f"{experiment.config.rounds} rounds on {experiment.data.clients} devices{after}.")
    # A device's work of minutes is worth more than a checkpoint's milliseconds.
    often: dict[str, Any] = {"checkpoint_seconds": 0.0}
    return execute(folder, experiment, [partial(_report, data.users)], say=_say, **often)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class News:
    """Keeps events, and says of whom a run has to ask again: it may do so for long.

    Args:
        write: Keeps an event.
        names: The devices' names.
    """

    def __init__(self, write: Journal, names: Sequence[str]) -> None:
        self._write, self._names = write, names
        self._why: dict[int, tuple[int | None, str]] = {}  # by client: the round, and a reason

    def __call__(self, event: dict[str, Any]) -> None:
        """Take note of an event."""
        self._write(event)
        kind, round_ = event["event"], event.get("round")
        if kind == "failed":
            self._why[event["client"]] = (round_, event["reason"])
        elif kind == "evaluated":
            self._why = {}
        elif kind in AGAIN:
            now = ((k, reason) for k, (when, reason) in self._why.items() if when == round_)
            why = "".join(f"; {self._names[k]}: {reason}" for k, reason in now)
            where = "" if round_ is None else f"Round {round_}: "
            _say(f"{where}{event['reason']}{why}. Asking again.")
            self._why = {}


def _report(names: Sequence[str], event: Event) -> None:
    """Print who answered in a round, and how good the model is, for Flower's log of the run."""
    if record := event.record:
        loss = "" if record.train_loss is None else f", loss {record.train_loss:.4g}"
        why = "".join(f"; {names[client]}: {text}" for client, text in record.rejected)
        _say(
            f"Round {record.round}: {record.replies} of {len(record.cohort)} replies count{loss},"
            f" {record.seconds:.1f} s{why}"
        )
    for split, row in event.evals.items():
        numbers = ", ".join(f"{k} {row[k]:.4g}" for k in ("loss", *metrics_of(row)))
        _say(f"After round {event.round}, {split}: {numbers}")
