"""MNIST's idx files: read as they are, dealt to clients, and refused when damaged."""

import gzip
import struct

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmom.core.errors import FedMomError
from fedmom.data.batches import reader
from fedmom.data.federated import Features
from fedmom.data.partition import partition
from fedmom.data.sources.mnist import is_idx, load_idx
from tests.conftest import SHARED

MNIST = SHARED / "mnist"
TRAIN_X, TRAIN_Y = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
PARTS = ("train", "test")
TEST_X, TEST_Y = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def idx(array):
    head = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write(folder, train, test, side=2):
    """Write the four files; every image is its row's number, modulo 256."""
    for (x_name, y_name), labels in (((TRAIN_X, TRAIN_Y), train), ((TEST_X, TEST_Y), test)):
        rows = np.arange(len(labels)).reshape(-1, 1, 1) * np.ones((1, side, side), int)
        (folder / x_name).write_bytes(idx(rows))
        (folder / y_name).write_bytes(idx(np.asarray(labels)))
    return folder


@pytest.fixture
def small(tmp_path):
    return write(tmp_path, np.arange(40) % 4, np.arange(20) % 4)


@pytest.fixture(scope="module")
def shared_small(tmp_path_factory):
    return write(tmp_path_factory.mktemp("idx"), np.arange(40) % 4, np.arange(20) % 4)


def rows_of(data, part, client):
    split = data.split(part)
    return data.arrays["at"][split.start[client] :][: split.size[client]]


def test_every_row_is_in_one_client_and_stays_training_or_test(small):
    data = load_idx(small, partition="dirichlet:clients=5,alpha=0.5", seed=3)
    train, test = (np.concatenate([rows_of(data, p, k) for k in range(5)]) for p in PARTS)
    assert sorted(train) == list(range(40))
    assert sorted(test) == list(range(40, 60))
    assert data.features == Features("image", (2, 2), 4)
    assert data.arrays["y"].tolist() == [*np.arange(40) % 4, *np.arange(20) % 4]


@given(spec=st.sampled_from(["iid", "dirichlet", "shards", "quantity"]), seed=st.integers(0, 99))
def test_a_client_is_tested_on_the_label_mix_it_trains_on(shared_small, spec, seed):
    data = load_idx(shared_small, partition=f"{spec}:clients=6", seed=seed)
    for k in range(6):
        train, test = (
            np.bincount(data.arrays["y"][rows_of(data, p, k)], minlength=4) for p in PARTS
        )
        assert (abs(test - train / 2) <= 1).all()  # there are half as many of each label
        assert not test[train == 0].any()


@pytest.mark.parametrize("spec", ["iid:clients=4", "shards:clients=2,per_client=2"])
def test_the_partition_deals_the_training_rows(small, spec):
    data = load_idx(small, partition=spec, seed=2)
    client = partition(spec, np.arange(40) % 4, seed=2)
    for k in range(data.clients):
        assert rows_of(data, "train", k).tolist() == np.flatnonzero(client == k).tolist()


def test_gzipped_and_plain_files_and_any_path_to_them_are_the_same(small):
    plain = load_idx(small, partition="iid:clients=3")
    for name in (TRAIN_X, TEST_Y):
        (small / f"{name}.gz").write_bytes(gzip.compress((small / name).read_bytes()))
        (small / name).unlink()
    for path in (small, small / f"{TRAIN_X}.gz", small / TRAIN_Y):
        assert is_idx(path)
        again = load_idx(path, partition="iid:clients=3")
        assert all((plain.arrays[n] == again.arrays[n]).all() for n in plain.arrays)


def test_other_paths_are_not_idx(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"")
    assert not is_idx(tmp_path)
    assert not is_idx(tmp_path / "x.npz")
    assert not is_idx(tmp_path / TRAIN_X)


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 10**6), gzipped=st.booleans())
def test_a_file_cut_anywhere_is_refused_by_name(tmp_path_factory, cut, gzipped):
    folder = write(tmp_path_factory.mktemp("cut"), np.arange(8) % 2, np.arange(4) % 2)
    content = (folder / TRAIN_X).read_bytes()
    name = f"{TRAIN_X}.gz" if gzipped else TRAIN_X
    (folder / TRAIN_X).unlink()
    content = gzip.compress(content) if gzipped else content
    (folder / name).write_bytes(content[: cut % len(content)])
    with pytest.raises(FedMomError, match=f"{name} .*[Ff]etch it again"):
        load_idx(folder, partition="iid:clients=2")


def patched(position, value):
    return lambda content: content[:position] + bytes([value]) + content[position + 1 :]


@pytest.mark.parametrize(
    ("name", "damage", "named"),
    [
        (TRAIN_X, patched(0, 1), "01 00 08 03"),
        (TRAIN_X, patched(2, 13), "00 00 0d 03"),  # floats
        (TRAIN_X, patched(3, 1), "00 00 08 01"),
        (TRAIN_Y, patched(3, 3), "00 00 08 03"),
        (TRAIN_X, patched(4, 255), "damaged"),  # 4 billion images
        (TRAIN_X, lambda c: c + b"\0", "161 bytes"),
        (TRAIN_X, lambda c: c[:12], "3 lengths"),
        (TRAIN_Y, lambda _: idx(np.zeros(39)), "40 images, .* 39 labels"),
        (TRAIN_Y, lambda _: idx(np.zeros(0)), "at least one"),
        (TEST_X, lambda _: idx(np.zeros((20, 3, 3))), r"\(2, 2\) .* \(3, 3\)"),
        (TEST_X, lambda _: b"", "it is not an idx file"),
    ],
)
def test_damage_is_named(small, name, damage, named):
    (small / name).write_bytes(damage((small / name).read_bytes()))
    with pytest.raises(FedMomError, match=named):
        load_idx(small, partition="iid:clients=2")


@pytest.mark.parametrize("name", [TRAIN_X, TRAIN_Y, TEST_X, TEST_Y])
def test_a_missing_file_is_named(small, name):
    (small / name).unlink()
    with pytest.raises(FedMomError, match=f"no {name} and no {name}.gz"):
        load_idx(small)


def test_what_is_no_gzip_is_refused(small):
    (small / TEST_Y).rename(small / f"{TEST_Y}.gz")
    with pytest.raises(FedMomError, match=f"{TEST_Y}.gz is not a complete gzip file"):
        load_idx(small)


def test_test_rows_of_a_label_nobody_trains_on_go_by_size(tmp_path):
    write(tmp_path, [0] * 12, [1] * 6)
    data = load_idx(tmp_path, partition="quantity:clients=3,sigma=1")
    assert (abs(data.test.size - data.train.size / 2) <= 1).all()
    assert data.test.size.sum() == 6


@pytest.fixture(scope="module")
def mnist():
    if not is_idx(MNIST):
        pytest.skip("MNIST's files are not in ../shared/data/mnist")
    return load_idx(MNIST, partition="dirichlet:clients=100,alpha=0.5", seed=1)


def raw(name):
    return np.frombuffer(gzip.decompress((MNIST / f"{name}.gz").read_bytes()), np.uint8)


def test_mnist_is_read_byte_for_byte(mnist):
    assert (mnist.train.size.sum(), mnist.test.size.sum()) == (60_000, 10_000)
    assert mnist.features == Features("image", (28, 28), 10)
    assert (mnist.arrays["x"][:60_000].ravel() == raw(TRAIN_X)[16:]).all()
    assert (mnist.arrays["x"][60_000:].ravel() == raw(TEST_X)[16:]).all()
    assert (mnist.arrays["y"] == np.concatenate([raw(TRAIN_Y)[8:], raw(TEST_Y)[8:]])).all()


def test_mnist_clients_share_out_the_label_histogram(mnist):
    for part, name in (("train", TRAIN_Y), ("test", TEST_Y)):
        rows = np.concatenate([rows_of(mnist, part, k) for k in range(mnist.clients)])
        histogram = np.bincount(mnist.arrays["y"][rows], minlength=10)
        assert (histogram == np.bincount(raw(name)[8:], minlength=10)).all()


def test_a_sample_of_mnist_is_read_as_its_image(mnist):
    position = int(np.flatnonzero(mnist.arrays["at"] == 0)[0])
    x, y = reader(mnist.features)(mnist.arrays, jnp.array([position]))
    assert np.array_equal(np.rint(np.asarray(x[0]) * 255).ravel(), raw(TRAIN_X)[16 : 16 + 784])
    assert int(y[0]) == raw(TRAIN_Y)[8]
