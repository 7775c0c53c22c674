"""A run, started and followed to its end; one whose server app dies goes on in another."""

import re
import time
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.types import Say
from fedmom.experiments import settings
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.settings import RunConfig, kebab
from fedmom.flower.control import Control, RunStatus, settings_of
from fedmom.flower.layout import Deployment
from fedmom.flower.server_end import DEFAULTS, OUT

TRIES = 5  # server apps in a row that end without a round
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_WITHOUT_SERVER = 120.0
OURS = re.compile(r"^\d\d:\d\d:\d\d ")  # how the lines of the server's end begin
EXCEPTION = "ServerApp failed with exception: "


def follow(deployment: Deployment, out: Path, values: dict[str, Any], say: Say, note: Say) -> None:
    """Run to the end.

    Args:
        deployment: The deployment, whose server must be running.
        out: The run's folder; a run that it holds goes on.
        values: Settings that replace those of the app.
        say: Told what the run says.
        note: Told that it had to be started again.
    """
    own = settings_of(deployment.app)
    config = settings.parse(
        {**DEFAULTS, **{k: v for k, v in {**own, **values}.items() if k != OUT}}
    )
    given = config.model_dump(by_alias=True, exclude_none=True, exclude_unset=True)
    if unused := _unused(out, config, values):
        note(f"{out} goes on with the settings it was begun with, so these do not count: {unused}.")
    tries, done = TRIES, _done(out)
    while tries:
        with Control(deployment) as control:
            run_id = control.start({**given, OUT: str(out)})
            try:
                ended = _followed(control, run_id, say)
            except KeyboardInterrupt:
                control.stop(run_id)
                raise
        if ended.status == "completed":
            return
        if ended.status == "stopped":
            raise FedMomError(
                f"The run was stopped, after {_done(out)} rounds. Nothing is lost: go on with the"
                f" same --out {out}."
            )
        if ended.details.startswith(EXCEPTION):
            raise FedMomError(ended.details.removeprefix(EXCEPTION))
        tries, done = (tries - 1, done) if _done(out) == done else (TRIES, _done(out))
        note(
            f"The run's server app has died ({ended.details or ended.status}). It is started"
            f" again, and goes on after {_done(out)} rounds."
        )
        time.sleep(SECONDS_BETWEEN_LOOKS)
    raise FedMomError(
        f"The server app died {TRIES} times without a round; {deployment.server} has the logs."
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
        except FedMomError:
            if time.monotonic() - silent > SECONDS_WITHOUT_SERVER:
                raise
            time.sleep(SECONDS_BETWEEN_LOOKS)
            continue
        if status.ended:
            return status
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _done(out: Path) -> int:
    """Return the rounds of the newest checkpoint."""
    return RunFolder(out).saved_round() or 0
