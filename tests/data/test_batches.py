"""Batches: readers are shared, and arrays reach JAX without a copy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmom.data import load
from fedmom.data.batches import place, reader
from fedmom.data.federated import ALIGNMENT, Features, aligned


def test_two_datasets_of_a_kind_share_one_reader():
    one, two = (load(f"shakespeare:roles=2,samples=900,seed={s}") for s in range(2))
    assert reader(one.features) is reader(two.features)
    assert reader(one.features) is not reader(Features("text", (20,), 80))


def unaligned(array):
    """Return a copy that begins one element after a place where XLA could share it."""
    room = aligned(np.empty(array.size + 1, array.dtype))
    copy = room[1:].reshape(array.shape)
    copy[...] = array
    assert copy.ctypes.data % ALIGNMENT
    return copy


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32])
def test_every_array_is_committed_and_aligned_ones_are_not_copied(dtype):
    values = np.arange(96, dtype=dtype).reshape(4, 24)
    arrays = {"aligned": aligned(values), "unaligned": unaligned(values), "empty": values[:0]}
    placed = place(arrays)
    assert all(array.committed for array in placed.values())
    for name, array in placed.items():
        np.testing.assert_array_equal(array, arrays[name])
        assert array.dtype == dtype
    if jax.default_backend() == "cpu":
        assert placed["aligned"].unsafe_buffer_pointer() == arrays["aligned"].ctypes.data


def test_read_only_memory_is_shared_and_never_written():
    values = aligned(np.arange(64, dtype=np.float32))
    values.flags.writeable = False
    array = place({"x": values})["x"]
    if jax.default_backend() == "cpu":
        assert array.unsafe_buffer_pointer() == values.ctypes.data
    # A program that may use its argument's memory for the result must not use this one's.
    jax.jit(lambda x: x + 1, donate_argnums=0)(array).block_until_ready()
    np.testing.assert_array_equal(values, np.arange(64))


def test_bytes_are_scaled_and_other_numbers_are_not():
    read = reader(Features("vector", (2,), 2))
    y = np.zeros(1, np.int32)
    for dtype, expected in ((np.uint8, [51 / 255, 1]), (np.int32, [51, 255])):
        x, _ = read({"x": np.array([[51, 255]], dtype), "y": y}, jnp.array([0]))
        np.testing.assert_allclose(x[0], expected, rtol=1e-6)
