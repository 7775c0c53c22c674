"""A stranger's folder: links, pipes, devices, huge and deep files where its own files were.

Looking at it and resuming it end in seconds, with a result or a sentence. No file outside of it is
read into what is shown, or changed.
"""

import os
import shutil
import stat
from pathlib import Path

import pytest

import fedmom
from fedmom.cli import main as front
from fedmom.reports import run_page
from fedmom.reports.html import render
from tests.hostile.mutation import contents, sentence

if os.name != "posix":
    pytest.skip("links, pipes and devices as POSIX has them", allow_module_level=True)

SECRET = "VeryPrivate"
# Of every kind of folder, there or not: FedMom reads or writes a file of this name.
OF_RUN = (
    *("config.toml", "versions.json", "started.json", "schema.json", "rounds.jsonl", "evals.jsonl"),
    *("stopped.json", "diverged.json", "theory.json", "changes.jsonl", "rounds.jsonl.cut", ".lock"),
    *("devices.json", "devices.jsonl", "creation.json", "report.html", "tensorboard", "export"),
    *("checkpoint/checkpoint.json", "checkpoint/previous.json", "checkpoint/tensors", "checkpoint"),
)
OF_SEVERAL = ("compare.json", "sweep.json", "sweep.csv", "creation.json", "fedavg/rounds.jsonl")
FILES = [("run", name) for name in OF_RUN]
FILES += [(kind, name) for kind in ("compare", "sweep") for name in (*OF_SEVERAL, "fedavg")]
FACTS = b'{"kind": "stopped", "why": "VeryPrivate", "sentence": "VeryPrivate", "a": "VeryPrivate"}'


def _write(content):
    return lambda place, _: place.write_bytes(content)


def _sparse(place, _):
    with place.open("wb") as file:
        file.truncate(2**40)


def _outside(place, other):
    place.symlink_to(other)


KINDS = {
    "a link to a file": _outside,
    "a hard link": lambda place, other: os.link(other, place) if other.is_file() else None,
    "a link to a device": lambda place, _: place.symlink_to("/dev/zero"),
    "a link to nothing": lambda place, other: place.symlink_to(other.parent / "new"),
    "a pipe": lambda place, _: os.mkfifo(place),
    "a socket": lambda place, _: os.mknod(place, stat.S_IFSOCK | 0o600),
    "a folder": lambda place, _: place.mkdir(),
    "a huge file": _sparse,
    "a deep file": _write(b"[" * 100_000),
    "a deep line": _write(b"[" * 100_000 + b"\n"),
    "a long line": _write(b'{"round": "' + b"x" * 2**24 + b'"}\n'),
}
CASES = [(kind, name, what) for kind, name in FILES for what in KINDS]
TASK = {"clients_per_round": 2, "lr": 0.01, "progress": False}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A run that was ended, and a comparison and a sweep with one like it."""
    top = tmp_path_factory.mktemp("originals")
    end = [lambda event: event.round == 2]
    fedmom.run("synthetic:clients=4", out=top / "run", rounds=3, callbacks=end, **TASK)
    for name in ("compare", "sweep"):
        shutil.copytree(top / "run", top / name / "fedavg")
        (top / name / f"{name}.json").write_text('["fedavg"]')
    return top


def shown(folder):
    """Return all that looking at a folder shows."""
    page = folder.parent / "page.html"
    view = run_page.live_view(folder)
    live = render(view.title, view.sections, view.about, live=True)
    return live + fedmom.report(folder, page).read_bytes()


def resume(folder):
    front.cli(["resume", str(folder)], standalone_mode=False)


def plant(folder, name, what, outside):
    """Put something in the place of a file; the file itself, with secrets, goes outside."""
    place = folder / name
    if place.name == "tensors":
        place = min(folder.glob("checkpoint/*.safetensors"))
    outside.mkdir()
    other = outside / place.name
    if place.exists():
        place.rename(other)
    if not other.exists() or place.name == "versions.json":
        other.write_bytes(FACTS)
    place.parent.mkdir(exist_ok=True)
    KINDS[what](place, other)
    return place


def attack(originals, tmp_path, kind, name, what):
    folder, outside = tmp_path / kind, tmp_path / "outside"
    shutil.copytree(originals / kind, folder)
    place = plant(folder, name, what, outside)
    before, inside = contents_of(outside), contents_of(folder)
    pages = []
    refused = sentence(lambda: pages.append(shown(folder)))
    assert contents_of(folder) == inside, "looking changed it"
    sentence(fedmom.load, folder)
    if what != "a hard link":
        assert not any(SECRET.encode() in page for page in pages)
    sentence(resume, folder)
    assert contents_of(outside) == before
    return place, refused


def contents_of(folder):
    """What is in a folder; of what is no ordinary file of a usual size, which kind it is."""
    found = {}
    for place in sorted(Path(folder).rglob("*")):
        status = place.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_size < 2**25:
            found[str(place)] = place.read_bytes()
        elif place.name != ".lock":
            found[str(place)] = stat.S_IFMT(status.st_mode), status.st_size
    return found


@pytest.mark.parametrize(("kind", "name", "what"), CASES[:: len(KINDS) - 1])
def test_a_strangers_folder_can_do_nothing(originals, tmp_path, kind, name, what):
    attack(originals, tmp_path, kind, name, what)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "name"), FILES)
def test_a_strangers_folder_can_do_nothing_at_all(originals, tmp_path, kind, name):
    for what in KINDS:
        attack(originals, tmp_path / what, kind, name, what)
        shutil.rmtree(tmp_path / what)


NEEDED = ("config.toml", "rounds.jsonl", "evals.jsonl")


@pytest.mark.parametrize("name", NEEDED)
def test_a_file_that_is_a_link_is_refused_by_name(originals, tmp_path, name):
    place, refused = attack(originals, tmp_path, "run", name, "a link to a file")
    assert f"{place} is a link" in refused


def test_a_run_that_is_a_link_to_another_folder_is_refused(originals, tmp_path):
    _, refused = attack(originals, tmp_path, "compare", "fedavg", "a link to a file")
    assert "fedavg is a link" in refused


@pytest.mark.parametrize("name", ["report.html", ".report.html.tmp", ".report-training.png.tmp"])
def test_a_report_writes_through_no_link(originals, tmp_path, name):
    folder, mine = tmp_path / "run", tmp_path / "mine"
    shutil.copytree(originals / "run", folder)
    mine.write_bytes(b"mine")
    (folder / name).symlink_to(mine)
    for file in ("evals", "accuracy", "loss"):
        (folder / f".report-{file}.png.tmp").symlink_to(mine)
    front.cli(["report", str(folder)], standalone_mode=False)
    assert mine.read_bytes() == b"mine"
    assert (folder / "report.html").is_file()
    assert not (folder / "report.html").is_symlink()


def test_a_resumed_run_writes_through_no_link(originals, tmp_path):
    folder, mine = tmp_path / "run", tmp_path / "mine"
    shutil.copytree(originals / "run", folder)
    mine.write_bytes(b"mine")
    for name in (".checkpoint.json.tmp", ".previous.json.tmp", ".round-00000003.safetensors.tmp"):
        (folder / "checkpoint" / name).symlink_to(mine)
    resume(folder)
    assert mine.read_bytes() == b"mine"


def test_the_users_own_link_to_a_folder_is_followed(tmp_path):
    """The folder that the user names may be a link. What is in it may not."""
    (tmp_path / "disk").mkdir()
    link = tmp_path / "out"
    link.symlink_to(tmp_path / "disk")
    fedmom.run("synthetic:clients=4", out=link, rounds=2, **TASK)
    assert fedmom.load(link).status == "finished"
    assert fedmom.resume(link, progress=False).status == "finished"
    assert (tmp_path / "disk" / "config.toml").is_file()
    before = contents(tmp_path / "disk")
    fedmom.report(link, tmp_path / "page.html")
    assert contents(tmp_path / "disk") == before


def test_a_link_to_a_run_next_to_it_is_that_run(originals, tmp_path):
    shutil.copytree(originals / "run", tmp_path / "several" / "first")
    (tmp_path / "several" / "latest").symlink_to("first")
    assert b"first" in shown(tmp_path / "several")
