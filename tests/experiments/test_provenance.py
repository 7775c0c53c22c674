"""A run goes on with what it was started with, or says what is not as it was."""

import importlib
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

import fedmom
from fedmom.data.store.writer import save_store
from fedmom.data.summary import facts
from fedmom.experiments import build
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from tests.experiments.small import (
    StopAt,
    checkpoint_bytes,
    edit_config,
    files_in,
    logs,
    prepared,
    resume,
    run,
)


def stopped(path, **values):
    with pytest.raises(KeyboardInterrupt):
        run(path, [StopAt(round_=7)], **values)
    return path


def refusal(path):
    before = files_in(path)
    with pytest.raises(fedmom.FedMomError) as caught:
        resume(path)
    assert files_in(path) == before
    return str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("lr = 0.01", "lr = 0.02", "lr was 0.01 and is 0.02"),
        ("seed = 0", "seed = 1", "seed was 0 and is 1"),
        ("rounds = 12", "rounds = 20", "rounds was 12 and is 20"),
        ("clients-per-round = 2", "clients-per-round = 3", "clients-per-round was 2 and is 3"),
        ("momentum = 0.9", "momentum = 0.9\naverage = 0.5", "average was not set and is 0.5"),
    ],
)
def test_a_changed_setting_is_refused_unless_it_is_accepted(tmp_path, before, after, says):
    folder = stopped(tmp_path / "r")
    edit_config(folder, before, after)
    text = refusal(folder)
    assert says in text
    assert f"fedmom resume --accept-changes {folder}" in text


def test_what_was_accepted_is_written_down_and_counts_from_then_on(tmp_path):
    folder = stopped(tmp_path / "r")
    edit_config(folder, "lr = 0.01", "lr = 0.02")
    edit_config(folder, "rounds = 12", "rounds = 14")
    with pytest.raises(KeyboardInterrupt):
        resume(folder, [StopAt(round_=9)], accept_changes=True)
    line = json.loads((folder / "changes.jsonl").read_text())
    assert line == {
        "round": 6,
        "changes": ["rounds was 12 and is 14", "lr was 0.01 and is 0.02"],
    }
    assert resume(folder).done == 14  # not asked again
    assert (folder / "changes.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [('runtime = "local"', 'runtime = "local:workers=1"'), ("rounds = 12", "rounds   =   12 # T")],
)
def test_what_changes_no_number_is_not_asked_about(tmp_path, before, after):
    folder = stopped(tmp_path / "r")
    edit_config(folder, before, after)
    assert resume(folder).finished
    assert checkpoint_bytes(folder) == checkpoint_bytes(run(tmp_path / "whole").path)


def arrays(path, shift=0.0, clients=6):
    """Write a small dataset of one's own."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(clients), 20)
    x = rng.normal(size=(len(user), 60)).astype(np.float32) + np.float32(shift)
    y = rng.integers(10, size=len(user))
    is_test = np.tile(np.arange(20) >= 16, clients)
    users = [f"u{k}" for k in range(clients)]
    np.savez(path, x=x, y=y, user=user, users=users, is_test=is_test)
    return path


def test_a_changed_file_is_refused_unless_it_is_accepted(tmp_path):
    data = arrays(tmp_path / "mine.npz")
    folder = stopped(tmp_path / "r", data=str(data))
    arrays(data, clients=7)
    assert "clients of the data was 6 and is 7" in refusal(folder)
    arrays(data, shift=0.5)
    text = refusal(folder)
    assert "sha256 of the data was" in text
    assert "clients" not in text
    assert resume(folder, accept_changes=True).finished
    assert "sha256 of the data" in (folder / "changes.jsonl").read_text()


def test_the_same_content_elsewhere_is_the_same_data(tmp_path):
    folder = stopped(tmp_path / "r", data=str(arrays(tmp_path / "mine.npz")))
    (tmp_path / "mine.npz").rename(tmp_path / "moved.npz")
    edit_config(folder, "mine.npz", "moved.npz")
    assert resume(folder).finished
    assert logs(folder)[0] == logs(run(tmp_path / "w", data=str(tmp_path / "moved.npz")).path)[0]


def test_other_data_in_memory_is_noticed(tmp_path):
    """A generator may draw other numbers in another version."""
    folder = stopped(tmp_path / "r")
    opened = RunFolder.open(folder)
    other = fedmom.load_data("synthetic:clients=6")
    other.arrays["x"][5] += 1
    experiment = build.prepare(opened.settings(), other)
    with pytest.raises(fedmom.FedMomError, match="sha256 of the data was"):
        execute(opened, experiment)


def test_a_store_has_its_checksum_without_being_read(tmp_path, monkeypatch):
    save_store(fedmom.load_data("synthetic:clients=6"), tmp_path / "store", {})
    data = fedmom.load_data(str(tmp_path / "store"))
    monkeypatch.setattr("fedmom.data.summary._digest", lambda _: pytest.fail("it was read"))
    known = facts(data)
    assert len(known["sha256"]) == 64
    assert known["clients"] == 6
    monkeypatch.undo()
    # Data made from a store's is other data.
    parts = {"train": data.train.of(np.arange(3)), "test": data.test.of(np.arange(3))}
    assert facts(replace(data, users=data.users[:3], **parts))["sha256"] != known["sha256"]


def test_a_damaged_record_asks_to_be_accepted(tmp_path):
    folder = stopped(tmp_path / "r")
    for content in (b"", b"{}", b"[1]", b"\xff", b'{"settings": 5, "data": {}}'):
        (folder / "started.json").write_bytes(content)
        assert "started.json, the record of what the run was started with, is damaged" in refusal(
            folder
        )
    assert resume(folder, accept_changes=True).finished


def test_a_run_that_has_not_begun_may_be_changed_freely(tmp_path):
    RunFolder.create(tmp_path / "r", prepared().config)
    edit_config(tmp_path / "r", "lr = 0.01", "lr = 0.02")
    assert resume(tmp_path / "r").finished
    assert json.loads((tmp_path / "r/started.json").read_text())["settings"]["lr"] == 0.02


CODE = """
import functools
from math import floor as rounded

import optax

RATE = 1.0
UNUSED = 1


class Settings:
    nesterov = False


def helper(momentum):
    return momentum


def scaled(factor):
    def decorate(function):
        @functools.wraps(function)
        def run(number):
            return factor * function(number)

        return run

    return decorate


def times(factor):
    return lambda number: factor * number


once, again = times(1.0), times(0.5 + 0.5)


@scaled(1.0 + 0.0)
def decorated(number):
    return number


def lazy():
    from own_constants import RATE

    return RATE


def method(learning_rate=1.0, momentum=0.5):
    "A method of the user's own."
    rate = once(RATE) * again(1.0) * decorated(1.0) * rounded(1.5) * lazy()
    return optax.sgd(rate, helper(momentum), Settings.nesterov)
"""


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """Write the user's module, as a new process would find it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(before="", after="", rate=1.0):
        assert before in CODE
        (tmp_path / "own_constants.py").write_text(f"RATE = {rate}\nSMALL = 1.0")
        monkeypatch.delitem(sys.modules, "own_constants", raising=False)
        (tmp_path / "own_code.py").write_text(CODE.replace(before, after) if before else CODE)
        monkeypatch.delitem(sys.modules, "own_code", raising=False)
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)

    write()
    return write


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("RATE = 1.0", "RATE = 2.0", "own_code.RATE was 1.0 and is 2.0"),
        ("return momentum", "return 0.9 * momentum", "own_code.helper has changed"),
        ("momentum=0.5)", "momentum=0.7)", "own_code.method has changed"),
        ("nesterov = False", "nesterov = True", "own_code.Settings has changed"),
        ("times(1.0)", "times(0.9)", "own_code.once.factor was 1.0 and is 0.9"),
        ("times(0.5 + 0.5)", "times(0.9)", "own_code.again.factor was 1.0 and is 0.9"),
        ("@scaled(1.0 + 0.0)", "@scaled(0.9)", "own_code.decorated.factor was 1.0 and is 0.9"),
        ("math import floor", "math import ceil", "was math.floor and is math.ceil"),
        (
            "own_constants import RATE",
            "own_constants import SMALL as RATE",
            "own_code.lazy has changed",
        ),
    ],
)
def test_changed_code_behind_a_name_is_refused(tmp_path, own_code, before, after, says):
    folder = stopped(tmp_path / "r", algorithm="@own_code.method", momentum=None)
    own_code(before, after)
    assert says in refusal(folder)
    own_code("UNUSED = 1", "# Only a comment.\nUNUSED = 2")
    assert resume(folder).finished


def test_a_changed_number_that_is_imported_at_the_call_is_refused(tmp_path, own_code):
    folder = stopped(tmp_path / "r", algorithm="@own_code.method", momentum=None)
    own_code(rate=0.9)
    assert "own_constants.RATE was 1.0 and is 0.9" in refusal(folder)


def test_changed_code_can_be_accepted_and_is_not_compared_without_a_record(tmp_path, own_code):
    folder = stopped(tmp_path / "r", algorithm="@own_code.method", momentum=None)
    own_code("RATE = 1.0", "RATE = 2.0")
    record = json.loads((folder / "started.json").read_text())
    earlier = {key: record[key] for key in ("settings", "data")}
    (folder / "started.json").write_text(json.dumps(earlier))
    with pytest.raises(KeyboardInterrupt):
        resume(folder, [StopAt(round_=9)])
    (folder / "started.json").write_text(json.dumps(record))
    assert resume(folder, accept_changes=True).finished
    assert "own_code.RATE was 1.0 and is 2.0" in (folder / "changes.jsonl").read_text()
