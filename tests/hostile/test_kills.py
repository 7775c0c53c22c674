"""Processes killed at random moments, as a machine that loses power does: nothing is lost.

Whole commands are killed (imports, compilation, rounds, checkpoints, tables, packing) and called
again; what they leave in the end has the bits of one that nobody killed.
"""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

TASK = ["--data", "synthetic:clients=6", "--lr", "0.01", "--rounds", "120", "--eval-every", "10"]
COMMANDS = {
    "run": ["run", *TASK, "--algorithm", "fedmom"],
    "compare": ["compare", *TASK, "--algorithms", "fedavg,fedmom", "--seeds", "2"],
    "sweep": ["sweep", *TASK, "--grid", "lr=0.003 0.01", "--grid", "seed=0 1"],
    "prepare": ["data", "prepare", "synthetic:clients=300", "--sf", "0.5"],
}
START = "from fedmom.cli.main import main; main()"


def started(*args):
    return subprocess.Popen(
        [sys.executable, "-c", START, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "100"},
    )


def finished(*args):
    """Run a command to its end; return its exit code and what it said."""
    process = started(*args)
    text, _ = process.communicate(timeout=300)
    return process.returncode, text.decode(errors="replace")


def again(name, folder):
    """What a user calls after a kill: resume, or the same command where nothing had begun."""
    listed = ("config.toml", "compare.json", "sweep.json")
    if name != "prepare" and any((folder / file).exists() for file in listed):
        return ["resume", folder]
    return [*COMMANDS[name], "--out", folder]


def left(folder):
    """All that a command has left, but for times and versions."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix == ".jsonl":
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            found[str(file.relative_to(folder))] = [{**r, "seconds": 0, "crc32": 0} for r in rows]
        elif file.suffix in (".safetensors", ".bin"):
            found[str(file.relative_to(folder).parent), file.suffix, file.stem[:2]] = (
                file.read_bytes()
            )
    return found


def chain(name, tmp_path, kills, seed):
    """Kill a command so many times, each time somewhere else; check what it leaves at last.

    One that is done before it is killed is checked, and another one begins.
    """
    rng = np.random.default_rng(seed)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    before = time.monotonic()
    code, text = finished(*COMMANDS[name], "--out", whole)
    length = time.monotonic() - before
    assert code == 0, text
    killed = 0
    while killed < kills:
        if ended(*again(name, broken), within=rng.uniform(0, length)):
            check(name, broken, whole)
            broken = tmp_path / f"broken after {killed}"
        else:
            killed += 1
    check(name, broken, whole)


def ended(*args, within):
    """Start a command, and kill it after so many seconds; tell whether it ended before."""
    process = started(*args)
    try:
        text, _ = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    assert process.returncode == 0, text
    return True


def check(name, broken, whole):
    """Let a command come to its end, and compare what it has left with that of another."""
    code, text = finished(*again(name, broken))
    assert code == 0, text
    assert "Traceback" not in text
    assert left(broken).keys() == left(whole).keys()
    assert left(broken) == left(whole)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "kills"), [("run", 2), ("prepare", 1)])
def test_a_few_kills_lose_nothing(name, kills, tmp_path):
    chain(name, tmp_path, kills, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", COMMANDS)
def test_many_kills_lose_nothing(name, seed, tmp_path):
    chain(name, tmp_path, 5, seed=[1, seed])
