"""Folders of runs with files that random changes do not come upon: taken, or refused.

Each is what somebody's script, editor or malice may leave: endless brackets, other types, folders
in the place of files, names that mean code.
"""

import json
import shutil
import sys

import pytest

import fedmom
from fedmom.cli import main as front
from fedmom.core.errors import FedMomError
from tests.hostile.mutation import contents, sentence
from tests.hostile.test_run_folders import report

DEEP = "[" * 100_000
DEVICES = {"run": "ab", "features": ["vector", [60], 10]}


def devices(**device):
    return json.dumps({**DEVICES, "devices": [{"key": "k", "name": "a", "test": 0, **device}]})


def events(*rows):
    return {"devices.json": devices(train=3), "devices.jsonl": "\n".join(rows) + "\n"}


FILES = {  # which are written over
    **{f"deep {name}": {name: DEEP} for name in ("versions.json", "stopped.json", "started.json")},
    **{f"deep {name}": {name: DEEP} for name in ("theory.json", "devices.json", "creation.json")},
    "deep checkpoint": {"checkpoint/checkpoint.json": DEEP, "checkpoint/previous.json": DEEP},
    "deep line": {"rounds.jsonl": f"{DEEP}\n"},
    "versions are a list": {"versions.json": "[1]"},
    "a stop of another type": {"stopped.json": '{"kind": {"a": 1}, "why": []}'},
    "a start of other types": {"started.json": '{"settings": [["lr", 1]], "data": "xy"}'},
    "changes are none": {"changes.jsonl": "\x00\n5\n{"},
    "a verdict of another type": {"theory.json": '{"verdict": {"a": 1}}'},
    "endless samples": {"devices.json": devices(train=float("inf"))},
    "samples are a text": {"devices.json": devices(train="many")},
    "events of other types": events(
        '{"client": 0, "event": "answered", "seconds": "abc", "at": 1e300}',
        '{"client": 0, "event": "asked", "round": [1], "at": NaN}',
        '{"client": 0, "event": {}, "seconds": null, "at": -1e18}',
        DEEP,
    ),
    "a plan to write over the settings": {
        "creation.json": '{"list": "config.toml", "runs": {"a": {"data": "synthetic"}}}'
    },
}
SETTINGS = {  # of config.toml, which are replaced
    "data that is gone": ("synthetic:clients=4", "/nowhere/x.csv:label=y"),
    "data of another process": ("synthetic:clients=4", "mine@1f2e3d4c"),
    "data on devices": ("synthetic:clients=4", "devices"),
    "a model of another process": ('model = "logreg', 'model = "net@1f2e3d4c'),
    "a step of another process": ("lr = 0.01", 'lr = "rate@1f2e3d4c"'),
    "another model": ('model = "logreg', 'model = "mlp'),
    "a function that fails": ('model = "logreg', 'model = "@json.loads'),
    "a function that is none": ('model = "logreg', 'model = "@os.sep'),
    "a model that is none": ('model = "logreg', 'model = "@builtins.len'),
    "a sampler that is none": ('sampler = "uniform', 'sampler = "@builtins.len'),
    "an algorithm that is none": ('algorithm = "fedmom', 'algorithm = "@builtins.dict'),
    "a solver that is none": ('solver = "sgd', 'solver = "@builtins.dict'),
    "a solver that returns something else": ('solver = "sgd', 'solver = "@builtins.abs'),
    "a rule that is none": ('aggregate = "mean', 'aggregate = "@builtins.len'),
    "a pace that is none": ('pace = "synchronous', 'pace = "@builtins.print'),
    "a schedule that is none": ("lr = 0.01", 'lr = "@builtins.dict"'),
}
PLACES = ("config.toml", "rounds.jsonl", "evals.jsonl", "versions.json", "started.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    task = {"rounds": 2, "clients_per_round": 2, "lr": 0.01, "progress": False}
    fedmom.run("synthetic:clients=4", out=folder, **task)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def command(*args):
    front.cli(list(map(str, args)), standalone_mode=False)


def use(folder, out):
    """Look at a run in every way; return the refusals. None of them may change the folder."""
    before = contents(folder)
    said = [
        sentence(report, folder),
        sentence(fedmom.load, folder),
        sentence(command, "predict", folder, "synthetic:clients=2", "--out", out / "labels.csv"),
        sentence(command, "export", folder, "--out", out / "model"),
    ]
    assert contents(folder) == before
    return said


def resumed(folder):
    """Go on with a run; what is refused changes nothing."""
    before = contents(folder)
    if sentence(command, "resume", folder) is not None:
        assert contents(folder) == before


@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
def test_a_damaged_file_is_a_sentence_or_no_matter(folder, tmp_path, files):
    for name, text in files.items():
        (folder / name).write_text(text)
    use(folder, tmp_path)
    resumed(folder)


@pytest.mark.parametrize("change", SETTINGS.values(), ids=SETTINGS)
def test_settings_of_another_run_are_a_sentence(folder, tmp_path, change):
    text = (folder / "config.toml").read_text()
    assert change[0] in text
    (folder / "config.toml").write_text(text.replace(*change))
    assert use(folder, tmp_path)[-1], "no model fits"
    resumed(folder)


@pytest.mark.parametrize("name", PLACES)
def test_a_folder_in_the_place_of_a_file_is_a_sentence(folder, tmp_path, name):
    (folder / name).unlink()
    (folder / name).mkdir()
    use(folder, tmp_path)
    resumed(folder)


@pytest.mark.parametrize("setting", ["model", "algorithm", "lr", "server-lr", "sampler", "runtime"])
def test_reading_a_folder_runs_no_code_that_it_names(folder, monkeypatch, setting):
    """A folder may come from somebody else, with a file of code beside it."""
    (folder.parent / "evil_code.py").write_text("raise SystemExit('it was run')")
    monkeypatch.chdir(folder.parent)
    lines = (folder / "config.toml").read_text().splitlines()
    changed = [f'{setting} = "@evil_code.f"' if _of(x) == setting else x for x in lines]
    (folder / "config.toml").write_text("\n".join(changed))
    report(folder)
    with pytest.raises((SystemExit, FedMomError)):  # it is run to go on, and then only
        command("resume", folder)
    assert "evil_code" not in sys.modules


def _of(line):
    return line.partition(" =")[0]
