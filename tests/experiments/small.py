"""Small runs, made to be stopped, and what is compared of their folders."""

import json
import os
import subprocess
import sys
import time

from fedmom.experiments import build, settings
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder

SMALL = {"data": "synthetic:clients=6", "rounds": 12, "eval-every": 4, "lr": 0.01}


def prepared(**values):
    """The parts of a small run, with some settings of its own."""
    return build.prepare(settings.parse({**SMALL, **values}))


def run(path, observers=(), **values):
    """Run in a new folder; return the result."""
    experiment = prepared(**values)
    return execute(RunFolder.create(path, experiment.config), experiment, list(observers))


def resume(path, observers=(), **how):
    """Go on with what is in a folder, from its files alone; return the result."""
    folder = RunFolder.open(path)
    return execute(folder, build.prepare(folder.settings()), list(observers), **how)


def edit_config(path, before, after):
    """Change a run's settings as a user does, in an editor."""
    config = path / "config.toml"
    assert before in config.read_text()
    config.write_text(config.read_text().replace(before, after))


def files_in(path):
    """The content of all files but the lock."""
    found = (p for p in sorted(path.rglob("*")) if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(path)): p.read_bytes() for p in found}


def checkpoint_bytes(path):
    """The newest checkpoint; the one before it depends on when the run was stopped."""
    names = ("checkpoint.json", pointer(path)["tensors"])
    return {name: (path / "checkpoint" / name).read_bytes() for name in names}


def pointer(path):
    return json.loads((path / "checkpoint" / "checkpoint.json").read_bytes())


def logs(path):
    """The logs without the clock."""
    opened = RunFolder.open(path)
    rounds = [{**r, "seconds": None} for r in opened.rows("rounds.jsonl")]
    return rounds, opened.rows("evals.jsonl")


class Observer:
    """Notes what it is told."""

    def __init__(self):
        self.began, self.rounds, self.evaluations = [], [], []

    def __call__(self, event):
        (self.rounds if event.record else self.began).append(event.round)
        if event.evals:
            self.evaluations.append(event.round)


class StopAt:
    """An observer that presses Ctrl-C when a round begins."""

    def __init__(self, round_):
        self.round_ = round_

    def __call__(self, event):
        if event.round == self.round_ - 1:
            raise KeyboardInterrupt


def process(*args, **environment):
    """Start the command line as a user does."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedmom", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def wait_for_rounds(path, more, child):
    """Return when so many rounds have been added to a run's log."""
    log = path / "rounds.jsonl"
    deadline = time.monotonic() + 120
    # Resuming first cuts the log back, so count what is there once it has begun anew.
    least = None
    while True:
        done = log.read_bytes().count(b"\n") if log.exists() else 0
        least = done if least is None else min(least, done)
        if done >= least + more:
            return
        assert child.poll() is None, f"the run ended early: {child.communicate()[1]}"
        assert time.monotonic() < deadline, "the run does not move"
        time.sleep(0.002)
