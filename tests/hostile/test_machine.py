"""What a machine does: its disk fills up, and it runs for very long."""

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

import fedmom
from fedmom.experiments import build, settings
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from tests.cli.command import main
from tests.hostile.test_kills import TASK, finished, left


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 96 KB, and a function that makes it larger."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(place)]
    if os.name != "posix" or os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can only be mounted by root")

    def enlarge():
        subprocess.run(["mount", "-o", "remount,size=16m", str(place)], check=True)

    yield place, enlarge
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_a_sentence_and_loses_nothing(small_disk, tmp_path):
    disk, enlarge = small_disk
    task = ["run", *TASK, "--rounds", "600", "--algorithm", "fedmom"]
    code, text = finished(*task, "--out", disk / "run")
    assert code == 2, text
    assert "No space left" in text
    assert str(disk) in text.replace("\n", "")
    assert "Traceback" not in text
    enlarge()
    code, text = finished("resume", disk / "run")
    assert code == 0, text
    assert finished(*task, "--out", tmp_path / "whole")[0] == 0
    assert left(disk / "run") == left(tmp_path / "whole")


FILES_OF = {
    "predict": lambda run, disk: ["predict", run, "synthetic:clients=4", "--out", disk / "p.csv"],
    "export": lambda run, disk: ["export", run, "--out", disk / "model"],
    "report": lambda run, disk: ["report", run, "--out", disk / "page.html"],
    "show": lambda _, disk: ["data", "show", "synthetic:clients=4", "--out", disk / "figures"],
    "prepare": lambda _, disk: ["data", "prepare", "synthetic:clients=30", "--out", disk / "s"],
    "deploy": lambda _, disk: ["deploy", "init", disk / "fl", "--devices", "30"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    task = {"rounds": 2, "clients_per_round": 2, "lr": 0.01, "progress": False}
    return fedmom.run("synthetic:clients=4", out=folder, **task).path


@pytest.mark.parametrize("command", FILES_OF)
def test_no_command_leaves_half_a_file_on_a_full_disk(
    small_disk, trained, command, monkeypatch, capsys
):
    disk, enlarge = small_disk
    if command == "deploy":
        pytest.importorskip("flwr")
    (disk / "others").write_bytes(bytes(92 * 1024))
    args = FILES_OF[command](trained, disk)
    code, _, err = main(monkeypatch, capsys, *args)
    assert code == 2, err
    assert "No space left" in err
    assert str(disk) in err.replace("\n", "")
    assert [file.name for file in disk.rglob("*") if file.is_file()] == ["others"]
    enlarge()
    code, _, err = main(monkeypatch, capsys, *args)
    assert code == 0, err


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts files as Linux does")
def test_a_hundred_thousand_rounds_keep_memory_and_files_flat(tmp_path):
    """Memory may grow by what the log of rounds needs while it is written: nothing."""
    seen = []

    def look(event):
        if event.record and event.round % 10_000 == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            seen.append((pages * resource.getpagesize(), open_files()))

    values = {"data": "synthetic:clients=6", "lr": 1e-4, "rounds": 100_000, "eval-every": 10_000}
    experiment = build.prepare(settings.parse(values))
    result = execute(RunFolder.create(tmp_path / "long", experiment.config), experiment, [look])
    assert result.finished
    memory, files = zip(*seen, strict=True)
    assert len(memory) == 10
    assert memory[-1] - memory[1] < 20e6, memory
    assert max(files[1:]) <= files[1] + 2, files
    assert not list(tmp_path.rglob("*.tmp"))
    shutil.rmtree(tmp_path / "long")
