"""LEAF's JSON folders: what is read is what the files say."""

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
from fedmom.data.federated import Features
from fedmom.data.sources.leaf import is_leaf, lay, load_leaf, pack_leaf
from fedmom.data.sources.shakespeare import SYMBOLS, WINDOW
from fedmom.data.store.reader import check_store, load_store
from tests import by_hand
from tests.conftest import SHARED
from tests.data.sources.leaf_files import Clients, image, shard, speech, windows, write

REAL = SHARED / "leaf_json"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDMOM_CACHE", str(folder))
    return folder


def real(name: str) -> Path:
    if not (REAL / name).is_dir():
        pytest.skip(f"The real LEAF files are not here: {REAL / name}")
    return REAL / name


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
        packed = load_store(Path(base) / "store")
        assert sorted(packed.users) == sorted(parts["train"])
        assert_same(packed, folder)
        sizes = packed.train.size.sum() + packed.test.size.sum()
        assert sizes == len(packed.arrays["at" if "at" in packed.arrays else "y"])


# Memory


def test_memory_is_that_of_one_shard(tmp_path):
    # Text, because its samples are about as large as their JSON: keeping them would show.
    def peak(shards: int, turn: int = 0) -> int:
        folder = tmp_path / f"{shards}_{turn}"
        for number in range(shards):
            clients = {f"u{number}_{i}": windows(speech(i, 1000)) for i in range(4)}
            write(folder / f"train/{number}.json", shard(clients))
            write(folder / f"test/{number}.json", shard(clients))
        tracemalloc.start()
        pack_leaf(folder, tmp_path / f"store{shards}_{turn}")
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(1)  # what is imported and compiled on first use counts for nothing
    # The least of three: what threads of earlier tests do meanwhile is counted, too.
    few, many = (min(peak(shards, turn) for turn in range(3)) for shards in (2, 8))
    assert many < 1.1 * few
