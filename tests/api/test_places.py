"""The places that users name, in functions and commands: ~, names that cannot be, full disks."""

import os
import subprocess
from pathlib import Path

import pytest

import fedmom
from tests.cli.command import invoke, refused

TASK = {"data": "synthetic:clients=4", "rounds": 1, "lr": 0.01, "progress": False}
CALLS = {
    "run": lambda place: fedmom.run(**TASK, out=place),
    "compare": lambda place: fedmom.compare(["fedavg"], **TASK, out=place),
    "sweep": lambda place: fedmom.sweep({"seed": [1]}, **TASK, out=place),
    "load": fedmom.load,
    "resume": fedmom.resume,
    "report": fedmom.report,
}
COMMANDS = {
    "run": ["run", "--data=synthetic:clients=4", "--rounds=1", "--out"],
    "compare": ["compare", "--data=synthetic:clients=4", "--rounds=1", "--out"],
    "resume": ["resume"],
    "report": ["report"],
    "watch": ["watch"],
    "export": ["export"],
}


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_a_tilde_is_the_home_folder(tmp_path):
    run = fedmom.run(**TASK, out="~/r")
    assert run.path == tmp_path / "home" / "r"
    assert fedmom.load("~/r").status == "finished"
    assert run.export("~/model") == tmp_path / "home" / "model"
    assert fedmom.report("~/r", "~/p.html") == run.report("~/p.html")
    invoke("report", "~/r", "--out=~/page.html")
    assert (tmp_path / "home" / "page.html").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("place", ["~nobody-here/y", "a\0b", "y" * 300], ids=["~", "null", "long"])
@pytest.mark.parametrize("call", CALLS)
def test_a_place_that_cannot_be_is_a_sentence(tmp_path, call, place):
    with pytest.raises(fedmom.FedMomError, match=r"no such user|null character|too long"):
        CALLS[call](place)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_tilde_of_nobody_is_refused_by_commands(tmp_path, command):
    assert "no such user on this machine" in refused(*COMMANDS[command], "~nobody-here/y")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounts disks")
@pytest.mark.parametrize(("option", "says"), [("size=20k", "No space left"), ("ro", "Read-only")])
def test_a_full_or_read_only_disk_is_a_sentence(tmp_path, option, says):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a disk can only be mounted by root")
    try:
        with pytest.raises(fedmom.FedMomError, match=says) as caught:
            fedmom.run(**TASK | {"rounds": 200}, out=disk / "r")
        assert str(disk) in str(caught.value)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_million_seeds_are_refused_at_once():
    with pytest.raises(fedmom.FedMomError, match="must be from 1 to 10,000"):
        fedmom.compare(["fedavg"], seeds=10**6)
    assert not Path("runs").exists()
