"""Ctrl-C and SIGTERM at any moment: 130, a word, no traceback, and a folder that goes on."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

SMALL = ("--data", "synthetic:clients=5", "--model", "mlp", "--lr", "0.001")
LENET = ("--data", "glyphs:writers=5,samples=20", "--model", "lenet5")


def begin(tmp_path, *settings):
    """Start a run that has everything to compile."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedmom", "run", *settings, "--rounds", "3", "--out", "run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")},
    )


def wait_for(path, child):
    deadline = time.monotonic() + 120
    while not path.exists() and child.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stop(child, number):
    """Send a signal; return what the process says, once it has ended as it should."""
    child.send_signal(number)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 130, err
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    return err


@pytest.mark.parametrize(
    ("file", "seconds", "says"),
    [
        ("", 0.5, "Stopped."),  # while libraries are loaded
        ("run/config.toml", 0.2, "Resume with: fedmom resume run"),  # the notes before a run
        ("run/evals.jsonl", 0.1, "Resume with: fedmom resume run"),  # compiling the clients
    ],
    ids=["imports", "notes", "compiling"],
)
def test_a_signal_ends_with_130_and_a_word(tmp_path, file, seconds, says):
    child = begin(tmp_path, *SMALL)
    if file:
        wait_for(tmp_path / file, child)
    time.sleep(seconds)
    number = signal.SIGINT if file == "run/evals.jsonl" else signal.SIGTERM
    assert says in stop(child, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seed", range(12))
def test_any_moment(tmp_path, number, seed):
    """Before, XLA's client was torn down at exit under a compilation: segmentation faults."""
    rng = random.Random(f"{seed} {number}")
    child = begin(tmp_path, *LENET)
    if seed % 2:  # most of the time is spent before the rounds, where most faults were
        wait_for(tmp_path / "run/evals.jsonl", child)
    time.sleep(rng.uniform(0.3, 3.0))
    if child.poll() is None:
        stop(child, number)
    else:
        child.communicate()
    if (tmp_path / "run/config.toml").exists():
        resumed = [sys.executable, "-m", "fedmom", "resume", "run"]
        done = subprocess.run(resumed, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert len((tmp_path / "run/rounds.jsonl").read_text().splitlines()) == 3
