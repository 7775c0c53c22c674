"""Damaged logs and checkpoints: mended where that is sure, refused otherwise, nothing lost."""

import json
import math
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fedmom
from fedmom.core.errors import FedMomError
from fedmom.experiments import results
from fedmom.experiments.folder import RunFolder
from fedmom.reports import run_page
from tests.experiments.small import (
    StopAt,
    checkpoint_bytes,
    edit_config,
    files_in,
    logs,
    pointer,
    run,
)
from tests.experiments.small import resume as resume_aloud

LOGS = ("rounds.jsonl", "evals.jsonl")


def resume(path, **how):
    """Go on; return the result, and what was said aloud."""
    said = []
    return resume_aloud(path, say=said.append, **how), " ".join(said)


def refusal(path, **how):
    """Return why a folder is not gone on with, which leaves it as it is."""
    before = files_in(path)
    with pytest.raises(fedmom.FedMomError) as caught:
        resume(path, **how)
    assert files_in(path) == before
    return str(caught.value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "r").path


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    path = tmp_path_factory.mktemp("stopped") / "r"
    with pytest.raises(KeyboardInterrupt):
        run(path, [StopAt(round_=7)])
    return path


@pytest.fixture
def folder(tmp_path, stopped_once):
    """A run of 12 rounds that was stopped in its 7th; its checkpoints are of rounds 4 and 6."""
    return shutil.copytree(stopped_once, tmp_path / "r")


def assert_as_never_stopped(path, whole):
    assert checkpoint_bytes(path) == checkpoint_bytes(whole)
    assert logs(path) == logs(whole)


def without_checksums(content):
    """A log as earlier versions wrote it."""
    return re.sub(rb', "crc32": "[0-9a-f]{8}"', b"", content)


def lines_of(file):
    return file.read_bytes().splitlines(keepends=True)


# ---- logs


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{torn", "line 3 is not JSON"),
        (b"", "line 3 is not JSON"),
        (b"\xff\xfe", "line 3 is not JSON"),
        (b"[" * 100_000, "line 3 is not JSON"),
        (b"5", "line 3 is 5, not an object"),
        (b"null", "line 3 is null, not an object"),
        (b"{}", "line 3 cannot be used: it has no round"),
        (b'{"round": "three"}', "line 3 cannot be used: it has no "),
        (b'{"round": -1, "loss": 1}', "line 3 cannot be used: it has no "),
    ],
    ids=lambda value: str(value)[:20],
)
@pytest.mark.parametrize("finished", [True, False])
def test_a_bad_line_is_named_and_nothing_is_touched(tmp_path, whole, name, line, says, finished):
    """Earlier, all lines after it were deleted, in a finished run too."""
    folder = shutil.copytree(whole, tmp_path / "r")
    lines = lines_of(folder / name)
    rest = lines[3:] if finished else lines[3:6]
    (folder / name).write_bytes(b"".join([*lines[:2], line + b"\n", *rest]))
    text = refusal(folder)
    assert text.startswith(f"{folder / name}, {says}")
    assert "Mend the line" in text
    for look in (results.read, run_page.live_view):
        with pytest.raises(fedmom.FedMomError, match=says):
            look(folder)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("rounds.jsonl", "round", "3"),
        ("rounds.jsonl", "round", True),
        ("rounds.jsonl", "round", -3),
        ("rounds.jsonl", "seconds", None),
        ("rounds.jsonl", "train_loss", "low"),
        ("rounds.jsonl", "bytes_up", 10**400),
        ("rounds.jsonl", "cohort", 5),
        ("rounds.jsonl", "diagnostics", 5),
        ("rounds.jsonl", "diagnostics", {"drift": "far"}),
        ("rounds.jsonl", "metrics", [0.1]),
        ("rounds.jsonl", "metrics", {"client/drift": "far"}),
        ("rounds.jsonl", "metrics", {"clip/share": True}),
        ("evals.jsonl", "split", 0),
        ("evals.jsonl", "loss", float("nan")),
        ("evals.jsonl", "accuracy_p50", []),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_value_that_no_run_writes_is_named(tmp_path, whole, name, key, value):
    row = json.loads(without_checksums(lines_of(whole / name)[0])) | {key: value}
    (tmp_path / name).write_text(json.dumps(row) + "\n")
    with pytest.raises(fedmom.FedMomError, match=f"line 1 cannot be used: its {key} is "):
        RunFolder(tmp_path).rows(name)


def test_metrics_of_a_method_are_read_if_they_are_numbers(tmp_path, whole):
    row = json.loads(without_checksums(lines_of(whole / "rounds.jsonl")[0]))
    (tmp_path / "rounds.jsonl").write_text(json.dumps(row | {"metrics": {"a/b": 1.5}}) + "\n")
    (found,) = RunFolder(tmp_path).rows("rounds.jsonl")
    assert found["metrics"] == {"a/b": 1.5}
    (tmp_path / "rounds.jsonl").write_text(json.dumps(row | {"metrics": {"a": math.nan}}) + "\n")
    with pytest.raises(FedMomError, match="its metrics is"):
        RunFolder(tmp_path).rows("rounds.jsonl")


@pytest.mark.parametrize("torn", [b'{"round": 8, "coh', b"\0\0\0", b"5", b"\xff"])
@pytest.mark.parametrize("name", LOGS)
def test_a_torn_last_line_is_mended_and_kept_beside(folder, whole, name, torn):
    cut = lines_of(folder / name)[6:] if name == "rounds.jsonl" else []
    with (folder / name).open("ab") as file:
        file.write(torn)
    assert results.read(folder).status == "unfinished"  # whoever looks does not mind
    resume(folder)
    assert_as_never_stopped(folder, whole)
    assert (folder / f"{name}.cut").read_bytes() == b"".join([*cut, torn, b"\n"])


def test_a_last_line_without_its_end_is_whole(folder, whole):
    log = folder / "evals.jsonl"
    log.write_bytes(log.read_bytes().rstrip(b"\n"))
    resume(folder)
    assert_as_never_stopped(folder, whole)


@pytest.mark.parametrize(("change", "says"), [("twice", "is of round 2"), ("gap", "is of round 4")])
def test_rounds_are_one_after_another(folder, change, says):
    lines = lines_of(folder / "rounds.jsonl")
    at = 2 if change == "twice" else 3
    content = b"".join(lines[:2] + lines[at - (change == "twice") :])
    (folder / "rounds.jsonl").write_bytes(content)
    assert "line 3 has changed, or a line before it is missing" in refusal(folder)
    (folder / "rounds.jsonl").write_bytes(without_checksums(content))
    assert f"line 3 {says}; it must be of round 3" in refusal(folder)


@pytest.mark.parametrize(("name", "left"), [("rounds.jsonl", 5), ("evals.jsonl", 4)])
def test_a_log_shorter_than_its_checkpoint_is_noticed_and_the_rounds_are_run_again(
    tmp_path, whole, name, left
):
    folder = tmp_path / "r"
    with pytest.raises(KeyboardInterrupt):
        run(folder, [StopAt(round_=9)])  # checkpoints of rounds 4 and 8, evaluations too
    log = folder / name
    log.write_bytes(b"".join(lines_of(log)[:left]))
    _, said = resume(folder)
    assert f"{log} has {left} whole lines, fewer than the" in said
    assert "Resuming from the checkpoint before it, of round 4" in said
    assert_as_never_stopped(folder, whole)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_no_checkpoint_fits_is_refused(folder, name):
    (folder / name).unlink()
    text = refusal(folder)
    assert f"{name} has 0 whole lines" in text
    assert f"fedmom run --config {folder / 'config.toml'}" in text


def test_without_a_checkpoint_the_run_starts_again_and_its_logs_are_kept(folder, whole):
    before = {name: (folder / name).read_bytes() for name in LOGS}
    shutil.rmtree(folder / "checkpoint")
    _, said = resume(folder)
    assert "has no checkpoint, so the run starts again" in said
    assert_as_never_stopped(folder, whole)
    for name, content in before.items():
        assert (folder / f"{name}.cut").read_bytes() == content


# ---- checkpoints


def damage_pointer(folder, content):
    (folder / "checkpoint" / "checkpoint.json").write_bytes(content)


POINTERS = [
    b"",
    b"{}",
    b"[]",
    b"not json",
    b"\xff\xfe{",
    b'{"round": 6, "tensors": "none"}',
    b'{"round": -5, "tensors": "round-00000006.safetensors"}',
    b'{"round": "abc", "tensors": "round-00000006.safetensors"}',
    b'{"round": 1000000000, "tensors": "round-1000000000.safetensors"}',
    b'{"round": 6.0, "tensors": "round-00000006.safetensors"}',
    b'{"round": 6, "tensors": "round-00000006.safetensors", "sha256": 5}',
    b'{"round": 6, "tensors": "round-00000006.safetensors", "lines": 5}',
]


@pytest.mark.parametrize("content", POINTERS)
def test_a_damaged_pointer_leads_to_the_checkpoint_before(folder, whole, content):
    """Earlier, round -5 overwrote logs and checkpoint, and 10^9 counted as finished."""
    damage_pointer(folder, content)
    assert RunFolder(folder).saved_round() in (None, 10**9)
    _, said = resume(folder)
    assert str(folder / "checkpoint" / "checkpoint.json") in said
    assert "Resuming from the checkpoint before it, of round 4" in said
    assert_as_never_stopped(folder, whole)
    kept = files_in(folder / "checkpoint")
    assert kept["checkpoint.json.aside-1"] == content
    assert "round-00000006.safetensors.aside-1" in kept


@pytest.mark.parametrize("damage", ["cut", "bit", "gone", "empty"])
def test_damaged_tensors_lead_to_the_checkpoint_before(folder, whole, damage):
    tensors = folder / "checkpoint" / "round-00000006.safetensors"
    content = bytearray(tensors.read_bytes())
    if damage == "gone":
        tensors.unlink()
    else:
        content[-5] ^= 1
        tensors.write_bytes({"cut": content[:-100], "bit": content, "empty": b""}[damage])
    _, said = resume(folder)
    assert str(tensors) in said  # and not checkpoint.json, which is as it was
    assert "of round 4" in said
    assert_as_never_stopped(folder, whole)
    again, said = resume(folder)
    assert (again.finished, said) == (True, "")


def without_checksum(folder):
    """As earlier versions left it: no checksum, and no checkpoint before it."""
    (folder / "checkpoint" / "previous.json").unlink()
    fact = pointer(folder)
    damage_pointer(folder, json.dumps({k: fact[k] for k in ("round", "tensors")}).encode())
    return folder / "checkpoint" / fact["tensors"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t | {"[0][0]['w']": t["[0][0]['w']"].astype(np.float64)}, "is float64 of shape"),
        (lambda t: t | {"[0][0]['w']": t["[0][0]['w']"].T.copy()}, r"is float32 of shape \(10, 60"),
        (lambda t: t | {"more": np.zeros(2)}, "more is float64.*not missing"),
        (lambda t: {k: v for k, v in t.items() if "'w'" not in k}, "is missing, not float32"),
        (lambda t: t | {"[0][0]['w']": t["[0][0]['w']"] * np.nan}, "is not finite"),
    ],
    ids=["dtype", "shape", "more", "fewer", "nan"],
)
def test_tensors_of_another_form_are_refused(folder, change, says):
    tensors = without_checksum(folder)
    save_file(change(load_file(tensors)), tensors)
    assert re.search(says, refusal(folder))


@pytest.mark.parametrize("content", [*POINTERS[:10], None])
def test_without_a_checkpoint_before_it_damage_is_a_sentence(folder, content):
    tensors = without_checksum(folder)
    if content is None:
        tensors.write_bytes(b"\0" * 100)
    else:
        damage_pointer(folder, content)
    text = refusal(folder)
    assert "damaged" in text or "is of round 1000000000, but config.toml has rounds = 12" in text
    assert "Restore the file from a copy, or start again in another folder" in text


def test_a_checkpoint_of_an_earlier_version_goes_on(folder, whole):
    without_checksum(folder)
    (folder / "started.json").unlink()
    _, said = resume(folder)
    assert said == ""
    assert_as_never_stopped(folder, whole)


def test_client_states_that_do_not_fit_are_refused_before_anything_is_touched(tmp_path):
    folder = tmp_path / "r"
    with pytest.raises(KeyboardInterrupt):
        run(folder, [StopAt(round_=7)], pace="buffered:in_flight=4", **{"local-steps": 100})
    tensors = without_checksum(folder)
    found = load_file(tensors)
    assert any(name.endswith("/clients") for name in found)
    save_file({k: v for k, v in found.items() if not k.endswith("/clients")}, tensors)
    assert "client states of the checkpoint of round 6 do not fit" in refusal(folder)


def test_fewer_rounds_than_are_done_are_refused(folder):
    edit_config(folder, "rounds = 12", "rounds = 2")
    assert "rounds was 12 and is 2" in refusal(folder)
    assert "is of round 6, but config.toml has rounds = 2" in refusal(folder, accept_changes=True)


def test_a_log_without_checksums_is_read_and_resumed(folder, whole):
    """As an earlier version wrote it. The checksums of new lines hold for the old ones, too."""
    for name in LOGS:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(without_checksums(content))
    assert results.read(folder).status == "unfinished"
    resume(folder)
    assert_as_never_stopped(folder, whole)
    log = folder / "rounds.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"bytes_up": ', b'"bytes_up": 1', 1))
    with pytest.raises(FedMomError, match=r"rounds\.jsonl, line \d+ has changed"):
        results.read(folder)


@pytest.mark.parametrize("name", LOGS)
def test_a_changed_number_is_named_by_file_and_line(folder, name):
    lines = lines_of(folder / name)
    key = b'"seconds": ' if name == "rounds.jsonl" else b'"loss": '
    lines[2] = lines[2].replace(key, key + b"1")
    (folder / name).write_bytes(b"".join(lines))
    for look in (results.read, fedmom.load, run_page.live_view, resume):
        with pytest.raises(FedMomError, match=f"{name}, line 3 has changed"):
            look(folder)


def test_a_line_that_lost_its_checksum_is_noticed(folder):
    lines = lines_of(folder / "rounds.jsonl")
    lines[2] = without_checksums(lines[2])
    (folder / "rounds.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(FedMomError, match=r"line 3 has no checksum"):
        results.read(folder)
