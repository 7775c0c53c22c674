"""What a refused, killed or changed run leaves behind: nothing in the way of the next call."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedmom.experiments import results
from tests.cli.command import invoke, main, refused, words
from tests.experiments.small import edit_config, files_in

SMALL = ["--data=synthetic:clients=6", "--rounds=6", "--eval-every=3", "--lr=0.001"]
COMMANDS = {
    "run": [],
    "compare": ["--algorithms=fedavg,fedmom"],
    "sweep": ["--grid=lr=0.001 0.002"],
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("option", "says"),
    [("--tensorboard", "fedmom[tensorboard]"), ("--runtime=local:workers=0", "workers=0 must be")],
)
def test_a_run_that_is_refused_late_leaves_the_name_free(
    command, option, says, monkeypatch, capsys
):
    """Earlier, its folder stayed, and the same call without the mistake was refused."""
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    call = [command, *SMALL, *COMMANDS[command], "--out=r"]
    code, _, err = main(monkeypatch, capsys, *call, option)
    assert code == 2
    assert says in words(err)
    assert not Path("r").exists()


MINE = ("mine.txt", "checkpoint/my_model.safetensors", "versions.json", "rounds.jsonl", "fedavg")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("file", MINE)
def test_a_folder_with_other_files_is_refused_before_anything_is_written(command, file):
    Path("r", file).parent.mkdir(parents=True)
    Path("r", file).write_text("mine")
    call = [command, *SMALL, *COMMANDS[command], "--out=r"]
    said = refused(*call)
    assert f"r is not empty: it holds {file.partition('/')[0]}. Give a new or empty" in said
    if "/" in file:
        refused(*call, "--overwrite")
    assert {p: p.read_text() for p in Path("r").rglob("*") if p.is_file()} == {
        Path("r", file): "mine"
    }


def test_a_run_that_has_begun_is_never_removed():
    assert "not finite" in refused("run", *SMALL, "--lr=1e30", "--out=r")
    assert results.read(Path("r")).diverged


# Kills itself, as kill -9 does, at the n-th file that creation writes.
KILLED = """
import os, signal, sys
from fedmom.core import files
from fedmom.experiments import collection, folder
left = int(sys.argv.pop(1))
def write(path, content):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    files.write_atomic(path, content)
collection.write_atomic = folder.write_atomic = write
from fedmom.cli.main import cli
cli()
"""


@pytest.mark.parametrize(("command", "written"), [("compare", 2), ("sweep", 4)])
def test_a_kill_while_the_folder_is_made_leaves_one_to_start_again(command, written):
    """After the first run's config.toml, and before the list of the runs."""
    call = [command, *SMALL, *COMMANDS[command], "--out=r"]
    child = subprocess.run(
        [sys.executable, "-c", KILLED, str(written), *call], capture_output=True, check=False
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert len(list(Path("r").glob("*/config.toml"))) == written // 2
    assert not Path(f"r/{command}.json").exists()
    invoke(*call)
    invoke(*call[:-1], "--out=whole")
    names = json.loads(Path(f"whole/{command}.json").read_bytes())
    assert json.loads(Path(f"r/{command}.json").read_bytes()) == names
    for name in names:
        ours, theirs = (results.read(Path(folder) / name) for folder in ("r", "whole"))
        assert (ours.config, ours.evals) == (theirs.config, theirs.evals)
        assert ours.finished


@pytest.mark.parametrize("command", COMMANDS)
def test_runs_are_overwritten_if_that_is_asked_for(command):
    call = [command, *SMALL[:2], *COMMANDS[command], "--lr=0.001", "--out=r"]
    invoke(*call)
    assert "already holds" in refused(*call)
    invoke(*call, "--seed=7", "--overwrite")
    assert {run.config.seed for run in results.find([Path("r")])} == {7}
    Path("r/mine.txt").write_text("mine")
    assert "mine.txt is not part of a run" in refused(*call, "--overwrite")
    assert Path("r/mine.txt").exists()


@pytest.mark.parametrize("name", ["compare.json", "sweep.json"])
def test_a_damaged_list_is_a_sentence_everywhere(name):
    Path("r").mkdir()
    Path("r", name).write_bytes(b'{"runs": "\xff"}')
    for command in ("resume", "report", "watch"):
        assert f"{name} is damaged: it must hold a list of the names" in refused(command, "r")


@pytest.mark.parametrize("grid", ["5", "[1, 2]", '"lr"', "true"])
def test_a_grid_that_is_no_table_is_a_sentence(grid):
    Path("s.toml").write_text(f"grid = {grid}\n")
    assert "is not a table of lists. Write [grid]" in refused("sweep", "--config=s.toml")
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_changed_settings_are_refused_unless_they_are_accepted(command):
    invoke(command, *SMALL, *COMMANDS[command], "--out=r")
    first = Path("r") if command == "run" else next(iter(sorted(Path("r").glob("*/"))))
    edit_config(first, "rounds = 6", "rounds = 8")
    before = files_in(first)
    if command == "run":
        assert "rounds was 6 and is 8" in refused("resume", "r")
    else:  # the others are resumed
        assert "rounds was 6 and is 8" in words(invoke("resume", "r"))
    assert files_in(first) == before
    invoke("resume", "--accept-changes", "r")
    assert results.read(first).done == 8
    assert "rounds was 6 and is 8" in (first / "changes.jsonl").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_loss_above_the_first_is_told_at_the_end(command, monkeypatch, capsys):
    options = [o for o in SMALL if "lr" not in o]
    more = ["--grid=lr=1e9 0.001"] if command == "sweep" else [*COMMANDS[command], "--lr=1e9"]
    code, _, err = main(monkeypatch, capsys, command, *options, *more, "--out=r")
    assert code == 0
    assert "the training loss ended above that of the first model: " in words(err)
    assert "Try lr auto" in words(err)
    assert ("lr0.001 from" in err, "lr1e9 from" in err) == (False, command == "sweep")


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used():
    invoke("run", *SMALL, "--out=r")
    Path("r/checkpoint/round-00000006.safetensors").write_bytes(b"damaged")
    text = words(invoke("resume", "r"))
    assert "note: r/checkpoint/round-00000006.safetensors is damaged: its length is not" in text
    assert "Resuming from the checkpoint before it, of round 3" in text
    assert results.read(Path("r")).finished
    assert Path("r/checkpoint/round-00000006.safetensors.aside-1").read_bytes() == b"damaged"
