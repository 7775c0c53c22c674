"""The server's end of a deployed run: the one loop, in a run folder, on devices."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmom.core.compilation import prepare_process
from fedmom.core.files import write_atomic
from fedmom.core.registry import options
from fedmom.experiments import settings
from fedmom.experiments.build import Experiment, prepare
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.observers import Event
from fedmom.experiments.results import Result, metrics_of
from fedmom.experiments.settings import RunConfig
from fedmom.runtimes.devices import journal
from fedmom.runtimes.devices.link import Journal, Link
from fedmom.runtimes.devices.options import DeviceOptions, checked
from fedmom.runtimes.devices.population import DeviceData, from_json, meet, to_json
from fedmom.runtimes.devices.runtime import DeviceRuntime

OUT = "out"  # the key, in an app's settings, of the run's folder
DEFAULTS = {"data": "devices", "runtime": "flower", "bad-replies": "skip"}
AGAIN = ("repeated", "no scores")  # events after which devices are asked again

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or go on with, the run that the app's settings describe."""
    prepare_process()
    values = dict(context.run_config)
    out = Path(os.path.expanduser(str(values.pop(OUT, "runs/deployed"))))  # noqa: PTH111
    result = serve(grid, out, values)
    if result.error:
        raise result.error


def serve(grid: Grid, out: Path, values: Mapping[str, Any]) -> Result:
    """Run on the devices of a Grid, in a folder; a run that the folder holds goes on.

    Args:
        grid: Flower's Grid.
        out: The run's folder.
        values: The settings of a new run. One that goes on has its own.

    Returns:
        The result.
    """
    link = Link(grid)
    if (out / "config.toml").exists():
        folder, experiment = _again(out, link)
    else:
        folder, experiment = _anew(out, link, values)
    link.journal = News(journal.writer(out), experiment.data.users)
    link.settings = _sent(experiment)
    done = folder.saved_round()
    after = f", after {done} rounds" if done else ""
    _say(f"{experiment.config.rounds} rounds on {experiment.data.clients} devices{after}.")
    return execute(folder, experiment, [Lines(experiment.data.users)], say=_say)


def _anew(out: Path, link: Link, values: Mapping[str, Any]) -> tuple[RunFolder, Experiment]:
    """Begin a run with the devices that are there."""
    config = settings.parse({**DEFAULTS, **values})
    RunFolder.check_free(out)
    asked = _options(config)
    data = meet(link, asked.devices, asked.max_samples, _say)
    experiment = prepare(config, data)
    folder = RunFolder.create(out, experiment.config)
    write_atomic(out / journal.DEVICES, to_json(data))
    return folder, experiment


def _again(out: Path, link: Link) -> tuple[RunFolder, Experiment]:
    """Resume a run with the devices that it was begun with."""
    folder = RunFolder.open(out)
    data: DeviceData = from_json((out / journal.DEVICES).read_bytes(), link)
    return folder, prepare(folder.settings(), data)


def _options(config: RunConfig) -> DeviceOptions:
    return checked(DeviceOptions(**options(DeviceRuntime, config.runtime)))


def _sent(experiment: Experiment) -> dict[str, str]:
    """Return what devices need to know of a run, besides the model and their own task."""
    return {
        "settings": experiment.config.model_dump_json(by_alias=True, exclude_none=True),
        "features": json.dumps(experiment.data.features),
    }


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


class Lines:
    """Prints a line per round and evaluation, for Flower's log of the run."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __call__(self, event: Event) -> None:
        """Say who answered, and how good the model is."""
        if record := event.record:
            loss = "" if record.train_loss is None else f", loss {record.train_loss:.4g}"
            why = "".join(f"; {self._names[client]}: {text}" for client, text in record.rejected)
            asked = len(record.cohort)
            _say(
                f"Round {record.round}: {record.replies} of {asked} replies count{loss},"
                f" {record.seconds:.1f} s{why}"
            )
        for split, row in event.evals.items():
            numbers = ", ".join(f"{k} {row[k]:.4g}" for k in ("loss", *metrics_of(row)))
            _say(f"After round {event.round}, {split}: {numbers}")
