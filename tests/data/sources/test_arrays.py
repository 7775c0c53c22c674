"""A user's own arrays, in memory and in .npz files."""

import contextlib
import io
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from fedmom.core.errors import FedMomError
from fedmom.data import load
from fedmom.data.batches import reader
from fedmom.data.sources.arrays import from_arrays, from_npz
from tests import by_hand


def test_from_arrays_keeps_every_row_with_its_client():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (40, 5, 5), np.uint8)
    y, who = rng.integers(0, 4, 40), rng.choice(["ann", "bob", "cy"], 40)
    is_test = rng.random(40) < 0.3
    data = from_arrays(x, y, who, is_test=is_test)
    assert list(data.users) == ["ann", "bob", "cy"]
    for split, mark in (("train", False), ("test", True)):
        for k, user in enumerate(data.users):
            start, size = (int(c[k]) for c in data.split(split))
            got, labels = by_hand.read(data, np.arange(start, start + size))
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
        ({"x": None}, "the array 'x' is missing"),
        ({"user": None}, "no client IDs given"),
        ({"y": np.array([0, 1, 0])}, "y has 3"),
        ({"y": np.array([0.5, np.nan, 1, 0])}, "label of row 1 is nan"),
        ({"y": np.zeros((4, 2, 2))}, "3 dimensions"),
        ({"user": np.array([0, 0, 2, 1])}, "must be 0..1"),
        ({"is_test": np.array([True, True, False, True])}, "'a' has no training samples"),
        ({"x": np.full((4, 3), np.nan)}, "row 0, column 0 is nan"),
        ({"x": np.array([None] * 4)}, "of type object; it must hold plain numbers"),
        ({"x": np.zeros(4, [("a", int), ("b", float)])}, "must hold plain numbers"),
        (
            {"x": np.full((4, 3), 1e300)},
            "is 1e\\+300 .*3 other rows have the same fault.* must be finite as a 32-bit float",
        ),
        ({"x": np.full((4, 3), 1j)}, "type complex128.*not complex ones"),
        ({"x": np.float32(1)}, "must have one item for every row"),
        ({"x": np.zeros((4, 0))}, "no rows, or its rows have no values"),
        ({"y": np.full((4, 3), 2**31)}, "label of row 0, column 0 is 2147483648"),
        ({"is_test": np.array([0.0, np.nan, 0, 1])}, "is_test of row 1 is nan"),
        ({"is_test": np.array([0, 2, 0, 1])}, "is_test of row 1 is 2"),
        ({"users": np.array(["a", "a"])}, "two clients are called 'a'"),
        ({"users": np.array([["a", "b"]])}, "must be a list of texts"),
        ({"users": np.array(["a", "nan"])}, "users: the value of row 1 is 'nan'"),
        ({"user": np.array(["a", "a", "b", "b"])}, "which holds texts. Leave users out"),
        ({"is_tset": np.zeros(4)}, "array 'is_tset' is not known. Did you mean 'is_test'"),
        ({"weights": np.zeros(4)}, "array 'weights' is not known. It may be x, y, user"),
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


def rewritten(path, name, change, **options):
    """Write an .npz file again with the bytes of one member changed."""
    with zipfile.ZipFile(path) as old:
        members = {entry.filename: old.read(entry) for entry in old.infolist()}
    with zipfile.ZipFile(path, "w", **options) as new:
        for member, content in members.items():
            new.writestr(member, change(content) if member == name else content)


def header(shape, dtype="<f4"):
    """The header of an array, without its values."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _: header((10**12, 3)), "says that it has 12,000,000,000,000 bytes"),
        (lambda _: header((2**62, 2**62)), "says that it has"),
        (lambda content: content[:-3], "ends after 45 of 48 bytes"),
        (lambda _: header((4, 3), "|O"), "of type object"),
        (lambda _: b"", "not a readable .npz"),
        (lambda content: b"\x93NUMPY\x07\x00" + content[8:], "not a readable .npz"),
        (lambda content: content.replace(b"shape", b"sh(pe"), "not a readable .npz"),
        (lambda content: content.replace(b"(4, 3)", b"(4, ~3"), "not a readable .npz"),
        (lambda content: content.replace(b"<f4", b"!!!"), "not a readable .npz"),
    ],
)
def test_headers_are_not_believed(tmp_path, change, says):
    np.savez(tmp_path / "own.npz", **valid_npz())
    rewritten(tmp_path / "own.npz", "x.npy", change)
    with pytest.raises(FedMomError, match=says):
        load(str(tmp_path / "own.npz"))


def test_a_file_made_to_fill_the_memory_is_refused(tmp_path):
    """Half a gigabyte of zeros in half a megabyte."""
    np.savez_compressed(tmp_path / "own.npz", **valid_npz())
    zeros = header((2**27,)) + bytes(2**29)
    rewritten(tmp_path / "own.npz", "x.npy", lambda _: zeros, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(FedMomError, match="which no real data does"):
        load(str(tmp_path / "own.npz"))


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2]
)
def test_every_damaged_byte_is_a_sentence_or_changes_nothing_else(tmp_path, compression):
    path = tmp_path / "own.npz"
    np.savez(path, **valid_npz())
    rewritten(path, "", None, compression=compression)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 150):
        path.write_bytes(whole[:place] + bytes([rng.integers(256)]) + whole[place + 1 :])
        with contextlib.suppress(FedMomError):
            from_npz(path)


def test_an_encrypted_file_is_a_sentence(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, **valid_npz())
    content = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(mark)
        while place >= 0:
            content[place + flags] |= 1
            place = content.find(mark, place + 1)
    path.write_bytes(content)
    with pytest.raises(FedMomError, match=r"not a readable .npz file: .*encrypted"):
        load(str(path))
