"""The content of safetensors files, against the library's own."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load, save

from fedmom.core.errors import FedMomError
from fedmom.core.tensor_files import NAMES, ORDER, packed, unpacked


def joined(tensors):
    return b"".join(packed(tensors))


def test_the_content_is_the_librarys():
    rng = np.random.default_rng(0)
    kinds = [np.dtype(getattr(ml_dtypes, name, name)) for name in NAMES]
    tensors = {
        f"{'ab'[i % 2]}{i}/ü": rng.integers(0, 2, (2, 3)).astype(kind)
        for i, kind in enumerate(kinds)
        if kind.name not in ("complex64", "float8_e4m3fn", "float8_e5m2")  # not in all versions
    }
    tensors |= {"one": np.array(3.0, np.float32), "none": np.zeros((0, 4), np.int32)}
    assert joined(tensors) == save(tensors)
    assert set(NAMES.values()) == set(ORDER)


@pytest.mark.parametrize("array", [np.arange(12.0).reshape(3, 4).T, np.arange(12)[::3]])
def test_arrays_with_gaps_are_written_in_order(array):
    found = load(joined({"x": array}))["x"]
    np.testing.assert_array_equal(found, array)


def test_arrays_are_not_copied():
    array = np.zeros(1000, np.float32)
    part = packed({"x": array})[1]
    array[7] = 1
    assert np.frombuffer(part, np.float32)[7] == 1


@pytest.mark.parametrize("name", [n for n in NAMES if n != "complex64"])  # not in all versions
def test_arrays_of_every_type_are_read_back(name):
    kind = np.dtype(getattr(ml_dtypes, name, name))
    tensors = {"a": np.arange(6).reshape(2, 3).astype(kind), "none": np.zeros((0, 4), kind)}
    found = unpacked(joined(tensors))
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        assert found[name].dtype == kind
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    "content", [b"", b"x" * 7, b"\xff" * 64, joined({"x": np.zeros(3)})[:-1]], ids=range(4)
)
def test_what_is_no_such_file_is_a_value_error(content):
    with pytest.raises(ValueError, match=r"\w"):
        unpacked(content)


def test_a_type_that_such_files_do_not_have_is_refused_by_name():
    with pytest.raises(FedMomError, match="w is of type int4"):
        packed({"w": np.zeros(3, ml_dtypes.int4)})
