"""A user's own arrays, in memory and in .npz files."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedmom.core.errors import FedMomError
from fedmom.data import load
from fedmom.data.batches import reader
from fedmom.data.sources.arrays import from_arrays


def test_from_arrays_keeps_every_row_with_its_client():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (40, 5, 5), np.uint8)
    y, who = rng.integers(0, 4, 40), rng.choice(["ann", "bob", "cy"], 40)
    is_test = rng.random(40) < 0.3
    data = from_arrays(x, y, who, is_test=is_test)
    assert list(data.users) == ["ann", "bob", "cy"]
    read = reader(data.features)
    for split, mark in (("train", False), ("test", True)):
        for k, user in enumerate(data.users):
            start, size = (int(c[k]) for c in data.split(split))
            got, labels = read(data.arrays, jnp.arange(start, start + size))
            rows = (who == user) & (is_test == mark)
            np.testing.assert_allclose(got, x[rows] / 255, rtol=1e-6)
            np.testing.assert_array_equal(labels, y[rows])


def valid_npz():
    return {
        "x": np.zeros((4, 3), np.float32),
        "y": np.array([0, 1, 0, 1]),
        "user": np.array([0, 0, 1, 1]),
        "users": np.array(["a", "b"]),
        "is_test": np.array([False, True, False, True]),
    }


def test_an_npz_file_is_a_dataset(tmp_path):
    np.savez(tmp_path / "own.npz", **valid_npz())
    data = load(str(tmp_path / "own.npz"))
    assert (data.name, data.clients, data.train.size.tolist()) == ("own", 2, [1, 1])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"users": None}, "'users' is missing"),
        ({"y": np.array([0, 1, 0])}, "must be equal"),
        ({"y": np.array([0, 1, -1, 0])}, "whole numbers from 0"),
        ({"y": np.array([0.5, 1, 1, 0])}, "whole numbers from 0"),
        ({"user": np.array([0, 0, 2, 1])}, "must be 0..1"),
        ({"is_test": np.array([True, True, False, True])}, "'a' has no training samples"),
        ({"x": np.full((4, 3), np.nan)}, "not finite"),
        ({"x": np.array([None] * 4)}, "not a readable .npz"),
    ],
)
def test_damaged_npz_files_are_refused(tmp_path, change, says):
    content = {**valid_npz(), **change}
    np.savez(tmp_path / "own.npz", **{k: v for k, v in content.items() if v is not None})
    with pytest.raises(FedMomError, match=says):
        load(str(tmp_path / "own.npz"))


def test_a_torn_npz_file_is_refused(tmp_path):
    np.savez(tmp_path / "own.npz", **valid_npz())
    whole = (tmp_path / "own.npz").read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 5):
        (tmp_path / "own.npz").write_bytes(whole[:length])
        with pytest.raises(FedMomError, match=r"not a readable \.npz"):
            load(str(tmp_path / "own.npz"))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.uint8, np.uint8),  # grey levels, scaled when a batch is read
        (np.int8, np.int32),
        (np.uint16, np.int32),
        (np.int64, np.int32),
        (np.uint64, np.int32),
        (bool, np.float32),
        (np.float16, np.float32),
        (np.float64, np.float32),
    ],
)
def test_inputs_keep_their_kind_of_number(given, kept):
    x = np.array([[0, 1], [1, 1], [0, 0]]).astype(given)
    data = from_arrays(x, [0, 1, 0], [0, 0, 1])
    assert data.arrays["x"].dtype == kept
    np.testing.assert_array_equal(data.arrays["x"], x)


def test_tokens_can_be_looked_up():
    tokens = np.array([[5, 2**24 + 1], [0, 7]])  # the large one is no float32
    data = from_arrays(tokens, [0, 1], ["a", "b"])
    x, _ = reader(data.features)(data.arrays, jnp.arange(2))
    assert x.dtype == jnp.int32
    np.testing.assert_array_equal(x, tokens)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, np.uint64(2**64 - 1)])
def test_whole_numbers_beyond_32_bits_are_refused(value):
    with pytest.raises(FedMomError, match=f"{value}.* do not all fit 32 bits"):
        from_arrays(np.array([[value]]), [0], [0])


def test_whole_numbers_in_an_npz_file_stay_whole(tmp_path):
    tokens = np.arange(12).reshape(4, 3)
    np.savez(tmp_path / "own.npz", **{**valid_npz(), "x": tokens})
    data = load(str(tmp_path / "own.npz"))
    assert data.arrays["x"].dtype == np.int32
    np.testing.assert_array_equal(data.arrays["x"], tokens)
