"""Run folders: what is written, whole or not at all, and what is wrong with a damaged one."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedmom
from fedmom.core import files
from fedmom.core.errors import FedMomError
from fedmom.core.files import locked, temporary_name, write_atomic
from fedmom.experiments.folder import RunFolder
from tests.experiments.small import (
    checkpoint_bytes,
    files_in,
    logs,
    pointer,
    prepared,
    resume,
    run,
)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    run(tmp_path / "r", rounds=1)
    before = checkpoint_bytes(tmp_path / "r"), logs(tmp_path / "r")
    with pytest.raises(fedmom.FedMomError, match=r"already holds a run.*fedmom resume"):
        run(tmp_path / "r", rounds=1)
    assert (checkpoint_bytes(tmp_path / "r"), logs(tmp_path / "r")) == before


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "r").write_text("mine")
    with pytest.raises(fedmom.FedMomError, match=r"r is a file\. Choose another --out"):
        RunFolder.create(tmp_path / "r", prepared().config)
    assert (tmp_path / "r").read_text() == "mine"


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(fedmom.FedMomError, match=r"holds no run: it has no config\.toml"):
        RunFolder.open(tmp_path)


def test_settings_and_versions_are_there_before_the_first_round(tmp_path):
    config = prepared().config
    folder = RunFolder.create(tmp_path / "r", config)
    assert folder.is_new()
    assert folder.settings() == config
    assert folder.versions()["fedmom"] == fedmom.__version__
    assert {"python", "jax", "numpy", "backend", "machine"} <= folder.versions().keys()


def test_two_processes_do_not_share_a_folder(tmp_path):
    run(tmp_path / "r", rounds=1)
    folder = RunFolder.open(tmp_path / "r")
    with locked(folder.path), pytest.raises(fedmom.FedMomError, match="Another process"):
        resume(tmp_path / "r")
    assert resume(tmp_path / "r").finished  # the lock is gone


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    run(tmp_path / "r", rounds=1)
    path = tmp_path / "r" / "config.toml"
    path.write_text(path.read_text().replace('"logreg"', '"mlp"'))
    with pytest.raises(fedmom.FedMomError, match="model was logreg and is mlp"):
        resume(tmp_path / "r")
    before = files_in(tmp_path / "r")
    with pytest.raises(fedmom.FedMomError, match="does not fit the model"):
        resume(tmp_path / "r", accept_changes=True)
    assert files_in(tmp_path / "r") == before


def test_the_newest_checkpoint_and_the_one_before_are_kept(tmp_path):
    run(tmp_path / "r")
    assert sorted(p.name for p in (tmp_path / "r" / "checkpoint").iterdir()) == [
        "checkpoint.json",
        "previous.json",
        "round-00000008.safetensors",
        "round-00000012.safetensors",
    ]


@pytest.mark.parametrize("written", [0, 1])
def test_a_kill_while_a_checkpoint_is_written_leaves_one_that_is_whole(
    tmp_path, monkeypatch, written
):
    """After the tensors, before what points to them; and before both."""
    run(tmp_path / "whole", rounds=4)
    run(tmp_path / "r", rounds=3, **{"eval-every": 3})
    folder = tmp_path / "r"
    config = (folder / "config.toml").read_text().replace("rounds = 3", "rounds = 4")
    (folder / "config.toml").write_text(config.replace("eval-every = 3", "eval-every = 4"))
    count = 0

    def killed(path, *content):
        nonlocal count
        if "checkpoint" in path.parts:
            count += 1
            if count > written:
                temporary_name(path).write_bytes(content[0][:7])
                raise SystemExit
        write_atomic(path, *content)

    monkeypatch.setattr("fedmom.experiments.checkpoints.write_atomic", killed)
    with pytest.raises(SystemExit):
        resume(folder, accept_changes=True)
    monkeypatch.undo()
    assert pointer(folder)["round"] == 3
    assert pointer(folder)["tensors"] == "round-00000003.safetensors"
    resume(folder)
    tensors = "checkpoint/round-00000004.safetensors"
    assert (folder / tensors).read_bytes() == (tmp_path / "whole" / tensors).read_bytes()
    assert not list(folder.rglob("*.tmp"))


def test_atomic_writes_leave_no_temporary_file(tmp_path: Path):
    write_atomic(tmp_path / "f", b"1")
    write_atomic(tmp_path / "f", b"2")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"2"


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    write_atomic(tmp_path / "f", b"old")

    def full(_descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(FedMomError, match="no space"):
        write_atomic(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"


def test_logs_are_on_disk_before_the_checkpoint_that_counts_on_them(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(
        "fedmom.experiments.folder.sync", lambda path: order.append(path.name), raising=True
    )

    def noted(path, *content):
        order.append(path.name)
        write_atomic(path, *content)

    monkeypatch.setattr("fedmom.experiments.checkpoints.write_atomic", noted)
    run(tmp_path / "r", rounds=1)
    last = order[-4:]
    assert set(last[:2]) == {"rounds.jsonl", "evals.jsonl"}
    assert last[2:] == ["round-00000001.safetensors", "checkpoint.json"]


@pytest.mark.parametrize(
    ("files_", "expected"),
    [
        ({}, ("", "")),
        ({"stopped.json": '{"kind": "stopped", "why": "a reply."}'}, ("stopped", "a reply.")),
        ({"diverged.json": '{"why": "Round 1."}'}, ("diverged", "Round 1.")),  # earlier versions'
        ({"stopped.json": "torn"}, ("", "")),
        ({"stopped.json": "[1]"}, ("", "")),
    ],
)
def test_why_a_run_stopped_is_read_from_any_version(tmp_path, files_, expected):
    for name, text in files_.items():
        (tmp_path / name).write_text(text)
    folder = RunFolder(tmp_path)
    assert folder.stop() == expected
    folder.forget_stop()
    assert folder.stop() == ("", "")


def test_a_folder_copied_without_versions_is_read(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.versions() == {}
    (tmp_path / "versions.json").write_text(json.dumps({"fedmom": 1}))
    assert folder.versions() == {"fedmom": "1"}


def test_numbers_that_are_not_finite_never_reach_a_log(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        RunFolder(tmp_path).append("rounds.jsonl", [{"loss": float(np.nan)}])


def test_only_checkpoints_of_the_run_are_removed(tmp_path):
    """Neither other names, nor other contents, nor those of a run that lost its pointer."""
    run(tmp_path / "r", [lambda event: event.round == 2], rounds=4, **{"eval-every": 1})
    folder = tmp_path / "r" / "checkpoint"
    mine = {
        folder / name: b"mine" for name in ("my_model.safetensors", "round-00000000.safetensors")
    }
    for path, content in mine.items():
        path.write_bytes(content)
    resume(tmp_path / "r")
    assert {path: path.read_bytes() for path in mine} == mine
    last = (folder / "round-00000004.safetensors").read_bytes()
    for name in ("checkpoint.json", "previous.json"):
        (folder / name).unlink()
    resume(tmp_path / "r", say=[].append)
    assert (folder / "round-00000004.safetensors.aside-1").read_bytes() == last
    assert (folder / "round-00000000.safetensors.aside-1").read_bytes() == b"mine"
