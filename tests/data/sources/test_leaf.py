"""LEAF's JSON folders: what is read is what the files say, and a wrong file is refused by name."""

import gzip
import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmom.core.errors import FedMomError
from fedmom.data.batches import reader
from fedmom.data.checksums import check_store
from fedmom.data.federated import Features
from fedmom.data.sources.leaf import is_leaf, lay, load_leaf, pack_leaf
from fedmom.data.sources.shakespeare import SYMBOLS, WINDOW
from fedmom.data.store import open_store
from tests import by_hand
from tests.conftest import SHARED

REAL = SHARED / "leaf_json"
Clients = dict[str, tuple[list[Any], list[Any]]]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDMOM_CACHE", str(folder))
    return folder


def real(name: str) -> Path:
    if not (REAL / name).is_dir():
        pytest.skip(f"The real LEAF files are not here: {REAL / name}")
    return REAL / name


def shard(clients: Clients) -> dict[str, Any]:
    return {
        "users": list(clients),
        "num_samples": [len(y) for _, y in clients.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in clients.items()},
    }


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def plain(folder: Path, part: str) -> Clients:
    """Read a part of a LEAF folder with nothing but the standard library."""
    found: Clients = {}
    for file in sorted((folder / part).iterdir()):
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix == ".gz" else content
        for user, data in json.loads(content)["user_data"].items():
            assert user not in found
            found[user] = data["x"], data["y"]
    return found


def loaded(data: Any, part: str) -> Clients:
    """Return every sample of a part, with text decoded."""
    found: Clients = {}
    split = data.split(part)
    for user, start, size in zip(data.users, split.start, split.size, strict=True):
        x, y = by_hand.read(data, np.arange(start, start + size))
        if data.features.kind == "text":
            texts = ["".join(SYMBOLS[s] for s in row) for row in x.tolist()]
            found[user] = texts, [SYMBOLS[s] for s in y.tolist()]
        else:
            found[user] = list(x.reshape(size, np.prod(data.features.shape))), y.tolist()
    return found


def assert_read_as_by_hand(data: Any) -> None:
    """A model gets what ``by_hand.read`` gives, at all positions."""
    positions = np.arange(len(data.arrays["at" if "at" in data.arrays else "y"]))
    batch = reader(data.features)(data.arrays, jnp.asarray(positions))
    for got, expected in zip(batch, by_hand.read(data, positions), strict=True):
        # XLA divides by 255 as a product with 1/255, which may be off by one last bit.
        np.testing.assert_allclose(got, expected, rtol=2.0**-23, atol=0)


def assert_same(data: Any, folder: Path) -> None:
    """The dataset has the samples of the folder, each once, in order, at its user."""
    for part in ("train", "test"):
        expected, found = plain(folder, part), loaded(data, part)
        assert set(expected) <= set(found)
        for user, (x, y) in found.items():
            rows, labels = expected.get(user, ([], []))
            assert y == labels
            if data.features.kind == "text":
                assert x == rows
            elif rows:
                np.testing.assert_allclose(x, np.array(rows), rtol=1e-7, atol=1e-6)
            else:
                assert not x


def image(seed: int, samples: int) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    greys = rng.integers(0, 256, (samples, 784))
    return (greys / 255).tolist(), rng.integers(0, 62, samples).tolist()


def windows(text: str) -> tuple[list[Any], list[Any]]:
    starts = range(len(text) - WINDOW)
    return [text[i : i + WINDOW] for i in starts], [text[i + WINDOW] for i in starts]


def speech(seed: int, length: int) -> str:
    return "".join(np.random.default_rng(seed).choice(list(SYMBOLS), length))


# Real files


def test_real_images_are_the_jsons_bit_for_bit():
    data = load_leaf(real("femnist"))
    assert data.features == Features("image", (28, 28), 62)
    assert (data.clients, data.train.size.sum(), data.test.size.sum()) == (5, 653, 76)
    assert data.arrays["x"].dtype == np.uint8
    assert_same(data, REAL / "femnist")
    assert_read_as_by_hand(data)
    train, test = plain(REAL / "femnist", "train"), plain(REAL / "femnist", "test")
    rows = np.array([row for user in data.users for row in train[user][0] + test[user][0]])
    assert np.array_equal(data.arrays["x"].reshape(-1, 784) / 255.0, rows)


def test_real_text_windows_are_the_jsons_and_cost_the_text():
    # num_samples of LEAF's text test files counts the 79 windows that LEAF leaves out
    # between a role's train and test windows, so there are 4,671 - 10 * 79 test samples.
    data = load_leaf(real("shakespeare"))
    samples = int(data.train.size.sum()), int(data.test.size.sum())
    assert (data.clients, *samples) == (10, 41_990, 4_671 - 10 * 79)
    assert_same(data, REAL / "shakespeare")
    assert_read_as_by_hand(data)
    # A role's windows lie in a text of their number, the 79 between, and the last window.
    assert len(data.arrays["text"]) <= sum(samples) + 10 * (79 + WINDOW + 1)
    assert sum(a.nbytes for a in data.arrays.values()) < 6 * sum(samples)


# Folders


def test_any_number_of_shards_in_any_order_plain_or_packed(tmp_path):
    users = {f"u{i}": image(i, 3 + i) for i in range(6)}
    tests = {f"u{i}": image(100 + i, 1 + i) for i in range(5)}  # u5 has no test samples
    folder = tmp_path / "femnist"
    for number, names in enumerate((["u0", "u3"], ["u5"], ["u1", "u4", "u2"])):
        suffix = ".json.gz" if number % 2 else ".json"
        write(folder / f"train/all_{number}{suffix}", shard({u: users[u] for u in names}))
    for number, names in enumerate((["u4", "u0"], ["u2", "u3", "u1"])):
        extra = {"hierarchies": [[]] * len(names)}
        content = extra | shard({u: tests[u] for u in names})
        write(folder / f"test/part{number}.json", b"\xef\xbb\xbf" + json.dumps(content).encode())
    assert is_leaf(folder)
    data = load_leaf(folder)
    assert_same(data, folder)
    assert dict(zip(data.users, data.test.size.tolist(), strict=True)) == {
        "u0": 1, "u1": 2, "u2": 3, "u3": 4, "u4": 5, "u5": 0,
    }  # fmt: skip


def test_leafs_own_layout_with_a_data_folder_is_found(tmp_path):
    write(tmp_path / "femnist/data/train/a.json", shard({"u": image(0, 2)}))
    assert not is_leaf(tmp_path / "femnist")
    write(tmp_path / "femnist/data/test/a.json", shard({"u": image(1, 1)}))
    assert is_leaf(tmp_path / "femnist")
    assert load_leaf(tmp_path / "femnist").name == "femnist"


def test_a_folder_without_leaf_files_is_refused(tmp_path):
    assert not is_leaf(tmp_path)
    assert not is_leaf(tmp_path / "missing")
    with pytest.raises(FedMomError, match="not a LEAF dataset"):
        load_leaf(tmp_path)


def test_second_opening_maps_the_store_and_a_changed_file_is_packed_anew(tmp_path, cache):
    folder = tmp_path / "femnist"
    write(folder / "test/a.json", shard({"u": image(1, 1)}))
    write(folder / "train/a.json", shard({"u": image(0, 2)}))
    load_leaf(folder)
    (store,) = (p for p in cache.iterdir() if p.name != "verified")
    stamp = (store / "manifest.json").stat().st_mtime_ns
    assert check_store(store) == []
    load_leaf(folder)
    assert (store / "manifest.json").stat().st_mtime_ns == stamp
    write(folder / "train/a.json", shard({"u": image(0, 3)}))
    assert load_leaf(folder).train.size.tolist() == [3]


def test_vectors_have_as_many_classes_as_the_largest_label_needs(tmp_path):
    write(tmp_path / "train/0.json", shard({"a": ([[0.5, -2.0]], [1.0])}))
    write(tmp_path / "train/1.json", shard({"b": ([[1e-3, 7]], [2])}))
    write(tmp_path / "test/0.json", shard({"a": ([[1, 2]], [6])}))
    data = load_leaf(tmp_path)
    assert data.features == Features("vector", (2,), 7)
    assert_same(data, tmp_path)


def test_pixels_between_the_greys_are_kept_as_floats(tmp_path):
    x, y = image(0, 2)
    x[0][5] = 0.12345
    write(tmp_path / "train/0.json", shard({"a": (x, y), "b": image(1, 2)}))
    write(tmp_path / "test/0.json", shard({"a": image(2, 1)}))
    data = load_leaf(tmp_path)
    assert data.arrays["x"].dtype == np.float32
    assert_same(data, tmp_path)


# Windows of text


@given(st.text("ab", min_size=WINDOW + 1, max_size=WINDOW + 60), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_laid_windows_are_the_windows(text, random):
    # Two letters repeat themselves, so windows overlap in every possible way.
    x, y = windows(text)
    order = random.choices(range(len(x)), k=random.randint(1, len(x)))
    chosen = np.array([list((x[i] + y[i]).encode()) for i in order], np.uint8)
    laid, at = lay(chosen)
    assert np.array_equal(laid[at[:, None] + np.arange(WINDOW + 1)], chosen)


@given(st.integers(WINDOW + 2, 400), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_shuffled_windows_of_a_text_cost_the_text(length, seed):
    x, y = windows(speech(seed, length))
    order = np.random.default_rng(seed).permutation(len(x))
    laid, _ = lay(np.array([list((x[i] + y[i]).encode()) for i in order], np.uint8))
    assert len(laid) == length


# Every sample is at one client, once


@st.composite
def population(draw):
    kind = draw(st.sampled_from(["image", "vector", "text"]))
    names = draw(st.lists(st.text(max_size=5), min_size=1, max_size=5, unique=True))
    parts: dict[str, Clients] = {"train": {}, "test": {}}
    for number, name in enumerate(names):
        for part, least in (("train", 1), ("test", 0)):
            seed, size = draw(st.integers(0, 99)), draw(st.integers(least, 4))
            if kind == "image":
                samples = image(seed, size)
            elif kind == "vector":
                rng = np.random.default_rng(seed)
                floats = rng.normal(size=(size, 3)).astype(np.float32)
                samples = floats.tolist(), rng.integers(0, 9, size).tolist()
            else:
                x, y = windows(speech(number, WINDOW + 9))
                order = draw(st.permutations(range(9)))[:size]
                samples = [x[i] for i in order], [y[i] for i in order]
            parts[part][name] = samples
    return parts


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_packing_and_unpacking_is_the_identity(data):
    parts = data.draw(population())
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "leaf"
        for part, clients in parts.items():
            homes = data.draw(st.lists(st.integers(0, 2), min_size=len(clients), max_size=9))
            for home in set(homes[: len(clients)]):
                held = {
                    u: c for (u, c), h in zip(clients.items(), homes, strict=False) if h == home
                }
                suffix = data.draw(st.sampled_from([".json", ".json.gz"]))
                write(folder / part / f"{home}{suffix}", shard(held))
        pack_leaf(folder, Path(base) / "store")
        packed = open_store(Path(base) / "store")
        assert sorted(packed.users) == sorted(parts["train"])
        assert_same(packed, folder)
        sizes = packed.train.size.sum() + packed.test.size.sum()
        assert sizes == len(packed.arrays["at" if "at" in packed.arrays else "y"])


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
        ({"y": [True, 3]}, "label 0 of y has true or false in the place of a number"),
        ({"y": ["3", 3]}, "label 0 of y has text in the place"),
        ({"y": [None, 3]}, "label 0 of y has null in the place"),
        ({"x": [X[0], X[1][:-1]]}, "sample 1 of x has 783 numbers and sample 0 has 784"),
        ({"x": [r[:-1] for r in X]}, "vectors of 783; the first train file has images of 28x28"),
        ({"x": [X[0], [*X[1][:-1], "1"]]}, "sample 1 of x has text in the place of a number"),
        ({"x": [X[0], [*X[1][:-1], [1]]]}, "sample 1 of x has a list in the place"),
        ({"x": [X[0], [*X[1][:-1], 2]]}, "they must lie between 0 and 1"),
        ({"x": [X[0], [*X[1][:-1], float("nan")]]}, "sample 1 of x has a number that is not fin"),
        ({"x": [X[0], [*X[1][:-1], float("-inf")]]}, "not finite"),
        ({"x": [X[0], [*X[1][:-1], 10**400]]}, "not finite, or too large"),
        ({"x": [X[0], "no image"]}, "must all be lists of numbers, or all be texts"),
        ({"x": [[], []]}, "sample 0 of x has 0 numbers"),
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
    with pytest.raises(FedMomError, match=r"train/a\.json\.gz: the file (is empty|cannot be read)"):
        load_leaf(tmp_path / "leaf")
    assert not cache.exists()


def test_gzip_that_is_none_or_has_a_changed_byte_is_refused(tmp_path):
    write(tmp_path / "leaf/test/a.json", shard(TESTS))
    file = write(tmp_path / "leaf/train/a.json.gz", shard(GOOD))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    for bad in (bytes(content), b"plain text"):
        file.write_bytes(bad)
        with pytest.raises(FedMomError, match=r"a\.json\.gz: "):
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
    assert "user 'bob': there are pixels that are no multiple of 1/255" in message


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


# Memory


def test_memory_is_that_of_one_shard(tmp_path):
    # Text, because its samples are about as large as their JSON: keeping them would show.
    def peak(shards: int) -> int:
        folder = tmp_path / str(shards)
        for number in range(shards):
            clients = {f"u{number}_{i}": windows(speech(i, 1000)) for i in range(4)}
            write(folder / f"train/{number}.json", shard(clients))
            write(folder / f"test/{number}.json", shard(clients))
        tracemalloc.start()
        pack_leaf(folder, tmp_path / f"store{shards}")
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(1)  # what is imported and compiled on first use counts for nothing
    few, many = peak(2), peak(8)
    assert many < 1.1 * few
