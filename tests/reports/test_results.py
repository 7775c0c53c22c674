"""Which runs a report is about, and what they are called."""

import json

import pytest

from fedmom.core.errors import FedMomError
from fedmom.experiments import results
from fedmom.reports import result_tables
from tests.reports.runs import make_run


def labels(*paths):
    return [group.label for group in results.group_by_seed(results.find(paths))]


def test_seeds_are_taken_together_and_names_are_short(tmp_path):
    for algorithm in ("fedavg", "fedmom"):
        for seed in (0, 1, 2):
            make_run(tmp_path / f"{algorithm}-{seed}", algorithm=algorithm, seed=seed)
    groups = results.group_by_seed(results.find([tmp_path]))
    assert [group.label for group in groups] == ["fedavg", "fedmom"]
    assert [[r.config.seed for r in group.runs] for group in groups] == [[0, 1, 2]] * 2


def test_names_tell_runs_apart_by_what_differs(tmp_path):
    a, b, c = (tmp_path / name for name in "abc")
    make_run(a, lr=0.1)
    make_run(b, lr=0.2, server_lr=3)  # lr is enough to tell them apart
    make_run(c, algorithm="fedavg")
    assert labels(a, b, c) == ["fedmom, lr 0.1", "fedmom, lr 0.2", "fedavg"]


def test_a_repeated_run_is_shown_apart_and_a_repeated_folder_once(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    assert labels(tmp_path / "a", tmp_path / "b") == ["fedmom", "fedmom (2)"]
    assert labels(tmp_path / "a", tmp_path / "b" / ".." / "a", tmp_path / "a") == ["fedmom"]


def test_comparisons_and_sweeps_are_read_in_their_own_order(tmp_path):
    for name in ("compare", "sweep"):
        for algorithm in ("fedavg", "fedmom", "fedsgd"):
            make_run(tmp_path / name / algorithm, algorithm=algorithm)
        order = ["fedsgd", "fedmom", "fedavg"]
        (tmp_path / name / f"{name}.json").write_text(json.dumps(order))
        assert labels(tmp_path / name) == order


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda _: None, "There is no folder"),
        (lambda path: path.mkdir(), "holds no run"),
        (lambda path: make_run(path).path.joinpath("config.toml").write_text("lr = -1"), "lr = -1"),
        (lambda path: (path.mkdir(), (path / "sweep.json").write_text("{")), "is damaged"),
    ],
)
def test_folders_without_runs_are_told_in_a_sentence(tmp_path, prepare, says):
    folder = tmp_path / "f"
    prepare(folder)
    with pytest.raises(FedMomError, match=says) as error:
        results.find([folder])
    assert str(folder) in str(error.value)


def test_common_settings_and_different_ones():
    common, different = results.common_settings([{"a": "1", "b": "2"}, {"a": "1", "c": "3"}])
    assert common == {"a": "1"}
    assert different == ["b", "c"]


@pytest.mark.parametrize(
    ("split", "key", "says"),
    [
        ("test", "f1", r"key is 'f1'\. It must be one of: round, loss, accuracy"),
        ("tset", "loss", r"split is 'tset'\. It must be 'train' or 'test'"),
    ],
)
def test_a_number_that_there_is_not_is_refused_by_name(tmp_path, split, key, says):
    make_run(tmp_path / "run")
    run = results.read(tmp_path / "run")
    assert run.last("test", "accuracy") is not None
    with pytest.raises(FedMomError, match=says):
        run.last(split, key)


def test_one_run_has_no_rounds_to_its_own_best(tmp_path):
    make_run(tmp_path / "run")
    groups = results.group_by_seed(results.find([tmp_path]))
    assert results.target(groups) is None
    assert not any("rounds to" in name for name in result_tables.grid(groups, None).columns)
    assert "rounds to 0.200" in result_tables.grid(groups, 0.2).columns
