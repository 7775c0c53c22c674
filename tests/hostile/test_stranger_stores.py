"""A stranger's packed store, deployment or folder of the paper: links, pipes and huge files."""

import json
import os
import shutil
from dataclasses import replace

import pytest

import fedmom
from fedmom.core import files
from fedmom.data.store import LARGEST_MANIFEST
from fedmom.data.store.writer import save_store
from fedmom.experiments import checkpoints
from fedmom.experiments.build import prepare
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.settings import RunConfig
from fedmom.flower import layout
from fedmom.reproduction import directions, runner
from fedmom.runtimes.devices.client import StateFolder
from tests.cli.command import invoke, refused
from tests.hostile.mutation import contents
from tests.hostile.test_stranger import KINDS
from tests.reproduction.tiny import TINY

if os.name != "posix":
    pytest.skip("links, pipes and devices as POSIX has them", allow_module_level=True)


@pytest.fixture
def store(tmp_path):
    save_store(fedmom.load_data("synthetic:clients=3"), tmp_path / "store", {})
    return tmp_path / "store"


@pytest.mark.parametrize("name", ["manifest.json", "x.bin", "users.bin", "train_size.bin"])
def test_looking_at_a_strangers_store_ends(store, tmp_path, name):
    (tmp_path / "outside").mkdir()
    other = tmp_path / "outside" / name
    content = (store / name).read_bytes()
    for what, put in KINDS.items():
        (store / name).unlink()
        other.write_bytes(content)
        put(store / name, other)
        for command in ("stats", "check"):
            if what != "a hard link":
                refused("data", command, store)
        if (store / name).is_dir() and not (store / name).is_symlink():
            (store / name).rmdir()
            (store / name).touch()


@pytest.mark.parametrize("what", ["a pipe", "a link to a device"])
def test_a_file_that_should_be_empty_is_an_ordinary_one(store, what):
    """Its length is right, and reading it to compare its checksum never ended."""
    manifest = json.loads((store / "manifest.json").read_text())
    manifest["arrays"]["users"]["shape"] = [0]
    (store / "manifest.json").write_text(json.dumps(manifest))
    (store / "users_end.bin").write_bytes(bytes((store / "users_end.bin").stat().st_size))
    (store / "users.bin").unlink()
    KINDS[what](store / "users.bin", store)
    assert "users.bin is a " in refused("data", "stats", store)


def test_a_link_in_a_store_is_refused_by_name(store, tmp_path):
    (store / "x.bin").rename(tmp_path / "x.bin")
    (store / "x.bin").symlink_to(tmp_path / "x.bin")
    with pytest.raises(fedmom.FedMomError, match=r"x\.bin is a link, and links in a folder"):
        fedmom.load_data(store)


def test_a_manifest_without_end_is_not_read(store):
    with (store / "manifest.json").open("ab") as file:
        file.truncate(LARGEST_MANIFEST + 1)
    with pytest.raises(fedmom.FedMomError, match=r"manifest\.json has 67,108,865 bytes"):
        fedmom.load_data(store)


@pytest.mark.parametrize("other", ["manifest.json", "manifest.json weights.bin"])
def test_a_folder_of_another_program_is_not_taken_for_a_store(tmp_path, other):
    """Others write manifest.json, too, and pack their weights in files that end in .bin."""
    (tmp_path / "web").mkdir()
    for name in other.split():
        (tmp_path / "web" / name).write_bytes(b"{}")
    before = contents(tmp_path / "web")
    refused("data", "prepare", "synthetic:clients=3", "--out", tmp_path / "web")
    assert contents(tmp_path / "web") == before


@pytest.mark.parametrize("name", ["server/ca.pem", "server/server.pem", "server/keys/device-1.pub"])
def test_a_deployment_is_written_through_no_link(tmp_path, name):
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    (tmp_path / "fl" / name).parent.mkdir(parents=True)
    (tmp_path / "fl" / name).symlink_to(mine)
    invoke("deploy", "init", tmp_path / "fl", "--devices", 1)
    assert mine.read_bytes() == b"mine"
    assert b"mine" not in (tmp_path / "fl" / name).read_bytes()


@pytest.mark.parametrize("name", ["server", "devices", "runs", "server/keys", "app"])
def test_a_deployment_is_made_in_no_linked_folder(tmp_path, name):
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (tmp_path / "fl" / name).parent.mkdir(parents=True)
    (tmp_path / "fl" / name).symlink_to(home)
    refused("deploy", "init", tmp_path / "fl", "--devices", 1)
    assert not any(home.iterdir())
    assert home.stat().st_mode & 0o777 == 0o755


def test_a_key_is_put_in_no_linked_folder(tmp_path):
    deployment = layout.create(tmp_path / "fl", "127.0.0.1:9443", 0)
    (tmp_path / "home").mkdir()
    for folder in ("devices", "server/keys"):
        shutil.rmtree(tmp_path / "fl" / folder)
        (tmp_path / "fl" / folder).symlink_to(tmp_path / "home")
        with pytest.raises(fedmom.FedMomError, match="is a link, and links in a folder"):
            layout.add_device(deployment, "kitchen")
        (tmp_path / "fl" / folder).unlink()
    assert not any((tmp_path / "home").iterdir())


def test_a_device_keeps_its_state_in_no_linked_folder(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "0123456789abcdef").symlink_to(tmp_path / "home")
    with pytest.raises(fedmom.FedMomError, match="is a link, and links in a folder"):
        StateFolder(tmp_path / "state", "0123456789abcdef")


def test_a_run_of_the_paper_that_is_a_link_is_neither_read_nor_written(tmp_path):
    task = replace(TINY.femnist, data="synthetic:clients=4")
    config = prepare(RunConfig(data=task.data, lr=0.01, rounds=2)).config
    RunFolder.create(tmp_path / "elsewhere", config)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(tmp_path / "elsewhere")
    cache = runner.Cache(tmp_path / "runs", replace(TINY, femnist=task))
    place = cache.path(config)
    assert place.name != "mine"
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(fedmom.FedMomError, match="is a link, and links in a folder"):
        cache.path(config)


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", '{"other": 1}'])
def test_a_damaged_record_of_the_paper_is_refused_by_name(tmp_path, content):
    (tmp_path / "first.json").write_text(content)
    with pytest.raises(fedmom.FedMomError, match=r"first\.json is damaged"):
        directions.stored(tmp_path, tmp_path / "first", None)


def test_an_estimate_without_end_is_not_read():
    """A file that the user names may be a pipe; /dev/zero filled the memory."""
    told = refused("theory", "bounds", "--estimates", "/dev/zero")
    assert "it has more than 16,777,216 bytes" in told


def test_adding_to_a_file_leaves_its_other_names_alone(tmp_path):
    (tmp_path / "mine").write_bytes(b"mine\n")
    os.link(tmp_path / "mine", tmp_path / "rounds.jsonl")
    files.append(tmp_path / "rounds.jsonl", b"more\n")
    assert (tmp_path / "mine").read_bytes() == b"mine\n"
    assert (tmp_path / "rounds.jsonl").read_bytes() == b"mine\nmore\n"


def test_tensorboard_files_have_names_that_nobody_can_guess(tmp_path):
    pytest.importorskip("tensorboardX")
    names = []
    for number in range(2):
        out = tmp_path / str(number)
        settings = {"rounds": 1, "clients_per_round": 2, "lr": 0.01, "tensorboard": True}
        fedmom.run("synthetic:clients=4", out=out, progress=False, **settings)
        (file,) = (out / "tensorboard").iterdir()
        names.append(file.name.rpartition(".")[2])
    assert len({*names}) == 2
    assert all(len(name) == 16 for name in names)


def test_tensors_that_are_not_as_long_as_their_header_says_are_not_read(tmp_path):
    """A file of nothing may be as long as the memory."""
    settings = {"rounds": 1, "clients_per_round": 2, "lr": 0.01, "progress": False}
    run = fedmom.run("synthetic:clients=4", out=tmp_path / "r", **settings)
    file = tmp_path / "r" / "checkpoint" / "round-00000001.safetensors"
    with file.open("ab") as opened:
        opened.truncate(2**30)
    pointer = checkpoints.Pointer(1)
    with pytest.raises(fedmom.FedMomError, match="its length is not the one that its header says"):
        checkpoints.load(file.parent, pointer, run.experiment.start())
