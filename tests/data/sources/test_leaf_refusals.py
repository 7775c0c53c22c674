"""LEAF's JSON folders with something wrong: refused with the file and the user."""

import json
from typing import Any

import numpy as np
import pytest

from fedmom.core.errors import FedMomError
from fedmom.data.sources.leaf import load_leaf
from tests import by_hand
from tests.data.sources.leaf_files import Clients, image, shard, speech, windows, write


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDMOM_CACHE", str(folder))
    return folder


# Refusals

GOOD = {"ann": image(0, 3), "bob": image(1, 2)}
TESTS = {"ann": image(2, 1), "bob": image(3, 1)}


def refused(tmp_path, cache, train: Any, test: Any = None, *, text: bool = False) -> str:
    """Load a folder whose train or test file is wrong; return the one sentence of the error."""
    good = {"ann": windows(speech(0, 90))} if text else GOOD
    tests = {"ann": windows(speech(1, 85))} if text else TESTS
    folder = tmp_path / "leaf"
    write(folder / "train/good_train.json", shard(good) if train is None else train)
    write(folder / "test/good_test.json", shard(tests) if test is None else test)
    with pytest.raises(FedMomError) as error:
        load_leaf(folder)
    assert not cache.exists() or list(cache.iterdir()) == []
    wrong = "good_train.json" if test is None else "good_test.json"
    assert wrong in str(error.value)
    return str(error.value)


def changed(clients: Clients, user: str, **members: Any) -> dict[str, Any]:
    content = json.loads(json.dumps(shard(clients)))
    content["user_data"][user] |= members
    return content


X, Y = GOOD["bob"]


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"x": X[:1]}, "x has 1 samples and y has 2"),
        ({"y": [3, 62]}, "label 1 of y is 62; labels must be whole numbers from 0 to 61"),
        ({"y": [-1, 3]}, "label 0 of y is -1"),
        ({"y": [0.5, 3]}, "label 0 of y is 0.5"),
        ({"y": [True, 3]}, "label 0 of y has true or false instead of a number"),
        ({"y": ["3", 3]}, "label 0 of y has text instead of"),
        ({"y": [None, 3]}, "label 0 of y has null instead of"),
        ({"x": [X[0], X[1][:-1]]}, "sample 1 of x has 783 numbers and sample 0 has 784"),
        ({"x": [r[:-1] for r in X]}, "vectors of 783; the first train file has images of 28x28"),
        ({"x": [X[0], [*X[1][:-1], "1"]]}, "sample 1 of x has text instead of a number"),
        ({"x": [X[0], [*X[1][:-1], [1]]]}, "sample 1 of x has a list instead of"),
        ({"x": [X[0], [*X[1][:-1], 2]]}, "they must lie between 0 and 1"),
        ({"x": [X[0], [*X[1][:-1], float("nan")]]}, "sample 1 of x has a number that is not fin"),
        ({"x": [X[0], [*X[1][:-1], float("-inf")]]}, "not finite"),
        ({"x": [X[0], [*X[1][:-1], 10**400]]}, "not finite, or too large"),
        ({"x": [X[0], "no image"]}, "must all be lists of numbers, or all be texts"),
        ({"x": [[], []]}, "sample 0 of x has 0 numbers"),
        ({"weights": [1, 1]}, "the name 'weights' is not known. It may be x, y"),
        ({"x": {}}, "must be an object with the lists x and y"),
        ({"x": [], "y": []}, "num_samples says 2, and there are 0"),
    ],
)
def test_wrong_samples_are_refused_with_file_and_user(tmp_path, cache, members, what):
    message = refused(tmp_path, cache, changed(GOOD, "bob", **members))
    assert "user 'bob'" in message
    assert what in message


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"users": ["ann"]}, "num_samples must be a list of 1 numbers"),
        (
            {"users": ["ann"], "num_samples": [3]},
            "'bob': the name is in user_data and not in users",
        ),
        ({"users": ["ann", "eve"]}, "'eve': the name is in users and not in user_data"),
        ({"users": ["ann", "ann"]}, "'ann': the name is 2 times in users"),
        ({"users": ["ann", 7]}, "users must be a list of names"),
        ({"users": None}, "users must be a list of names"),
        ({"users": ["ann", "\ud800"]}, r"'\ud800': the name is not Unicode text"),
        ({"users": [], "num_samples": [], "user_data": {}}, "there are no users"),
        ({"num_samples": [3, 3]}, "'bob': num_samples says 3, and there are 2"),
        ({"num_samples": [3, 2.0]}, "'bob': num_samples says 2.0, and there are 2"),
        ({"num_samples": [3, {}]}, "'bob': num_samples says an object, and there are 2"),
        ({"num_samples": 5}, "num_samples must be a list of 2 numbers"),
        ({"user_data": [1]}, "user_data must be an object"),
        ({"num_sample": [3, 2]}, "the name 'num_sample' is not known. Did you mean 'num_samples'?"),
    ],
)
def test_members_that_contradict_one_another_are_refused(tmp_path, cache, members, what):
    assert what in refused(tmp_path, cache, shard(GOOD) | members)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"[]", "not an object with users"),
        (b"7", "not an object with users"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"users": ' + b"1" * 5000 + b"}", "thousands of digits"),
        (b'{"users": [], "users": []}', "the name 'users' is there twice"),
        (b'{"users": ["a"], "num_samples": [0], "user_data": {"a": 1, "a": 2}}', "'a' is there tw"),
        (
            b'{"users": ["a"], "num_samples": [0], "user_data": {"a": {"x": [], "x": 1, "y": []}}}',
            "user 'a': the name 'x' is there twice",
        ),
        (json.dumps(shard(GOOD)).encode()[:-40_000], "in or after user 'ann'"),
        (json.dumps(shard(GOOD)).encode()[:-3], "in or after user 'bob'"),
        (json.dumps(shard(GOOD)).encode().replace(b'"y"', b'"\xff"'), "not UTF-8 at byte"),
        (json.dumps(shard(GOOD)).encode("utf-16"), "not UTF-8 at byte 0"),
    ],
)
def test_a_file_that_is_no_json_or_torn_is_refused(tmp_path, cache, content, what):
    message = refused(tmp_path, cache, content)
    assert what in message
    assert message.endswith("Make or fetch this file again.")


@pytest.mark.parametrize("keep", [0, 5, 200, -9, -1])
def test_torn_gzip_is_refused(tmp_path, cache, keep):
    write(tmp_path / "leaf/test/a.json", shard(TESTS))
    file = write(tmp_path / "leaf/train/a.json.gz", shard(GOOD))
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(
        FedMomError, match=r"train/a\.json\.gz(: the file is empty| is not a complete gzip)"
    ):
        load_leaf(tmp_path / "leaf")
    assert not cache.exists()


def test_gzip_that_is_none_or_has_a_changed_byte_is_refused(tmp_path):
    write(tmp_path / "leaf/test/a.json", shard(TESTS))
    file = write(tmp_path / "leaf/train/a.json.gz", shard(GOOD))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    for bad in (bytes(content), b"plain text"):
        file.write_bytes(bad)
        with pytest.raises(FedMomError, match=r"a\.json\.gz is not a complete gzip file"):
            load_leaf(tmp_path / "leaf")


def test_a_user_in_test_only_is_refused(tmp_path, cache):
    tests = shard({**TESTS, "eve": image(5, 1)})
    message = refused(tmp_path, cache, None, tests)
    assert "user 'eve': this user is in test only (1 such users)" in message


def test_a_split_by_users_tests_on_other_users(tmp_path):
    write(tmp_path / "leaf/train/a.json", shard(GOOD))
    write(tmp_path / "leaf/test/a.json", shard({"eve": image(5, 1), "zoe": image(2, 3)}))
    data = load_leaf(tmp_path / "leaf")
    assert list(data.users) == list(GOOD)
    assert list(data.test_users) == ["eve", "zoe"]
    expected = [len(y) for _, y in (image(5, 1), image(2, 3))]
    assert data.test.size.tolist() == expected
    _, labels = by_hand.read(data, data.test.start[1] + np.arange(expected[1]))
    assert labels.tolist() == list(image(2, 3)[1])


def test_a_user_in_two_files_of_a_part_is_refused_with_both(tmp_path, cache):
    for part in ("train", "test"):
        folder = tmp_path / part
        write(folder / "train/good_train.json", shard(GOOD))
        write(folder / "test/good_test.json", shard(TESTS))
        write(folder / part / "second.json", shard({"ann": image(9, 1)}))
        with pytest.raises(FedMomError, match=f"second.json: user 'ann'.*good_{part}.json"):
            load_leaf(folder)
        assert not cache.exists() or list(cache.iterdir()) == []


def test_a_train_client_without_samples_is_refused(tmp_path, cache):
    message = refused(tmp_path, cache, shard({**GOOD, "eve": ([], [])}))
    assert "user 'eve': there are no training samples" in message


def test_a_later_pixel_between_the_greys_is_refused_not_rounded(tmp_path, cache):
    x, y = image(4, 1)
    x[0][0] = 0.5  # 127.5 / 255
    message = refused(tmp_path, cache, None, shard(TESTS | {"bob": (x, y)}))
    assert "user 'bob': there are pixels that are not multiples of 1/255" in message


def test_kinds_may_not_be_mixed(tmp_path, cache):
    message = refused(tmp_path, cache, None, shard({"ann": windows(speech(0, 85))}))
    assert "texts of 80; the first train file has images of 28x28" in message


@pytest.mark.parametrize(
    ("x", "y", "what"),
    [
        ("é" + "a" * 79, "a", "sample 0 has the character 'é', which is none of LEAF's 80"),
        ("a" * 80, "\ud800", r"sample 0 has the character '\ud800'"),
        ("a" * 79, "a", "sample 0 of x has 79 characters; a text sample has 80"),
        ("a" * 80, "ab", "label 0 of y is 'ab'; it must be one character"),
        ("a" * 80, "", "label 0 of y is ''; it must be one character"),
        ("a" * 80, 5, "label 0 of y is 5; it must be one character"),
    ],
)
def test_text_of_another_kind_is_refused_with_file_and_user(tmp_path, cache, x, y, what):
    message = refused(tmp_path, cache, shard({"ann": ([x], [y])}), text=True)
    assert "user 'ann'" in message
    assert what in message


@pytest.mark.parametrize(("spare", "right"), [(0, True), (79, True), (78, False), (80, False)])
def test_only_leafs_own_miscount_of_test_windows_is_accepted(tmp_path, cache, spare, right):
    tests = shard({"ann": windows(speech(1, 85))})
    tests["num_samples"][0] += spare
    if right:
        write(tmp_path / "leaf/train/a.json", shard({"ann": windows(speech(0, 90))}))
        write(tmp_path / "leaf/test/a.json", tests)
        assert load_leaf(tmp_path / "leaf").test.size.tolist() == [5]
    else:
        message = refused(tmp_path, cache, None, tests, text=True)
        assert f"user 'ann': num_samples says {5 + spare}, and there are 5" in message


def test_more_text_than_positions_can_count_is_refused(tmp_path, cache, monkeypatch):
    monkeypatch.setattr("fedmom.data.sources.leaf.LONGEST_TEXT", 300)  # ann has 150 + 85
    clients = {"ann": windows(speech(0, 150)), "bob": windows(speech(1, 150))}
    message = refused(tmp_path, cache, shard(clients), text=True)
    assert "user 'bob': the texts up to this one have over 300 characters" in message
