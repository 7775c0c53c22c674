"""The packed store: packing and unpacking is the identity, whole or not at all."""

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmom.core.errors import FedMomError
from fedmom.core.files import cache_folder
from fedmom.data import leaf_sampling, load, summary
from fedmom.data.batches import place, read_rows, reader
from fedmom.data.federated import Features, FederatedData, Split
from fedmom.data.partition import repartition
from fedmom.data.store import reader as store_reader
from fedmom.data.store.reader import check_store, load_store, read_manifest, remember
from fedmom.data.store.writer import cached, save_store
from fedmom.data.summary import facts
from fedmom.models import build
from tests import by_hand
from tests.conftest import population
from tests.data.stores import one_client_store, packer, texts


def samples(data, split):
    """Every sample of a split, by client: the inputs and the labels."""
    start, size = data.split(split)
    positions = np.concatenate([np.arange(a, a + n) for a, n in zip(start, size, strict=True)])
    ends = np.cumsum(size)[:-1]
    return list(zip(*(np.split(a, ends) for a in by_hand.read(data, positions)), strict=True))


def assert_same(one, two):
    assert list(one.users) == list(two.users)
    assert (one.features, one.name) == (two.features, two.name)
    assert (one.test_users is None) == (two.test_users is None)
    assert list(one.test_users or ()) == list(two.test_users or ())
    for split in ("train", "test"):
        for (x, y), (x2, y2) in zip(samples(one, split), samples(two, split), strict=True):
            np.testing.assert_array_equal(x, x2)
            np.testing.assert_array_equal(y, y2)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=6),
    names=st.lists(st.text(max_size=8), min_size=6, max_size=6, unique=True),
    seed=st.integers(0, 99),
)
def test_packing_and_unpacking_is_the_identity(tmp_path_factory, sizes, names, seed):
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("store") / "s"
    clients = [
        (rng.integers(0, 256, (a + b, 4, 4), np.uint8), rng.integers(0, 10, a + b), a, b)
        for a, b in sizes
    ]
    names = [n.encode("utf-8", "ignore").decode() for n in names]
    with packer(folder) as pack:
        for name, (x, y, a, b) in zip(names, clients, strict=False):
            pack.add(name, {"x": x, "y": y}, train=(0, a), test=(a, b))
    data = load_store(folder)
    assert list(data.users) == names[: len(clients)]
    for (x, y, a, b), train, test in zip(
        clients, samples(data, "train"), samples(data, "test"), strict=True
    ):
        np.testing.assert_allclose(train[0].reshape(a, 4, 4), x[:a] / np.float32(255), rtol=1e-6)
        np.testing.assert_array_equal(train[1], y[:a])
        np.testing.assert_array_equal(test[1], y[a:])
        assert len(test[1]) == b
    assert check_store(folder) == []


VIEWS = {
    "rows": lambda: population([5, 9, 30], test_sizes=[2, 0, 7]),
    "text": texts,
    "some users": lambda: leaf_sampling.sample_users(texts(), 0.6, seed=1),
    "iid rows": lambda: leaf_sampling.sample_iid(
        population([5, 9, 30], test_sizes=[2, 1, 7]), 0.8, 0.7
    ),
    "iid text": lambda: leaf_sampling.sample_iid(texts(), 0.5, 0.9),
    "split by user": lambda: leaf_sampling.split(population([5, 9, 30]), "user", 0.7),
    "text split by user": lambda: leaf_sampling.split(texts(), "user", 0.7),
    "partition": lambda: repartition(
        population([20, 30], test_sizes=[5, 5]), "dirichlet:clients=4,alpha=0.5"
    ),
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_saved_as_it_is_seen(tmp_path, view):
    data = VIEWS[view]()
    save_store(data, tmp_path / "s", {"view": view})
    assert_same(data, load_store(tmp_path / "s"))
    assert check_store(tmp_path / "s") == []
    assert summary.faults(load_store(tmp_path / "s")) == []


def test_overlapping_windows_cost_the_text(tmp_path):
    data = texts(lengths=(200_000,))
    save_store(data, tmp_path / "s", {})
    held = sum(f.stat().st_size for f in (tmp_path / "s").iterdir())
    assert int(data.train.size.sum() + data.test.size.sum()) > 199_000
    assert held < 200_000 + 10_000


def test_a_store_trains_like_its_source(tmp_path):
    data = population([9] * 4, test_sizes=[2, 1, 7, 3])
    save_store(data, tmp_path / "s", {})
    model, read = build("logreg", data.features), reader(data.features)

    @jax.jit
    def gradient(params, arrays, positions):
        x, y = read(arrays, positions)
        return jax.grad(lambda p: model.loss(model.apply(p, x, None), y).mean())(params)

    ends = []
    for source in (data, load(str(tmp_path / "s"))):
        params, arrays = model.init(jax.random.key(0)), place(source.arrays)
        for start, size in zip(*source.train, strict=True):
            step = gradient(params, arrays, jnp.arange(start, start + size))
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, step)
        ends.append(params[0]["w"])
    np.testing.assert_array_equal(*ends)


def fail_after(call, *args, **kwargs):
    call(*args, **kwargs)
    raise RuntimeError


def test_an_error_while_packing_leaves_nothing(tmp_path):
    rows = {"x": np.zeros((2, 4, 4)), "y": np.zeros(2)}
    with pytest.raises(RuntimeError), packer(tmp_path / "s") as pack:
        fail_after(pack.add, "a", rows, train=(0, 1), test=(1, 1))
    assert list(tmp_path.iterdir()) == []


KILLED = """
import sys, time
import numpy as np
from pathlib import Path
from fedmom.data.federated import Features, FederatedData, Split
from fedmom.data.summary import facts
from fedmom.data.store.writer import Packer
with Packer(Path(sys.argv[1]), name="t", features=Features("image", (4, 4), 10),
            columns={"x": ("uint8", (4, 4)), "y": ("uint8", ())}, source={}) as pack:
    for k in range(10**9):
        pack.add(str(k), {"x": np.zeros((9, 4, 4)), "y": np.zeros(9)}, train=(0, 8), test=(8, 1))
        if k == 50:
            print("packing", flush=True)
"""


@pytest.mark.parametrize("file", ["notes.txt", "figures/a.bin"])
def test_a_folder_with_other_files_is_not_replaced(tmp_path, file):
    data = load("synthetic:clients=3")
    save_store(data, tmp_path / "s", {})
    save_store(data, tmp_path / "s", {})
    (tmp_path / "s" / file).parent.mkdir(exist_ok=True)
    (tmp_path / "s" / file).write_text("mine")
    with pytest.raises(FedMomError, match=r"is not overwritten: .* not part of a store"):
        save_store(data, tmp_path / "s", {})
    assert (tmp_path / "s" / file).read_text() == "mine"


def test_a_kill_while_packing_leaves_no_store_and_is_cleaned_up(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "s")], stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"packing\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "s").exists()
    assert len(list(tmp_path.iterdir())) == 1  # what the killed packer left
    with packer(tmp_path / "s") as pack:
        pack.add("a", {"x": np.zeros((2, 4, 4)), "y": np.zeros(2)}, train=(0, 1), test=(1, 1))
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_changed_bytes_are_found_and_missing_bytes_refused(tmp_path):
    folder = one_client_store(tmp_path / "s")
    content = bytearray((folder / "x.bin").read_bytes())
    content[5] ^= 1
    (folder / "x.bin").write_bytes(content)
    assert ["x.bin has changed" in fault for fault in check_store(folder)] == [True]
    (folder / "x.bin").write_bytes(content[:-1])
    with pytest.raises(FedMomError, match=r"x\.bin has 47 bytes, not 48"):
        load_store(folder)


def test_a_store_of_pictures_is_one_of_images(tmp_path):
    # Versions up to 0.1 wrote the kind "picture" into stores of the same format.
    folder = one_client_store(tmp_path / "s")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["kind"] == "image"
    (folder / "manifest.json").write_text(json.dumps({**manifest, "kind": "picture"}))
    assert load_store(folder).features.kind == read_manifest(folder).kind == "image"


def test_a_store_cannot_be_changed_through_its_arrays(tmp_path):
    folder = one_client_store(tmp_path / "s")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    data = load_store(folder)
    tables = (*data.arrays.values(), *data.train, *data.test)
    assert len(tables) == 6
    for table in tables:
        with pytest.raises(ValueError, match="read-only"):
            table[...] = 1
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_another_format_is_refused(tmp_path):
    folder = one_client_store(tmp_path / "s")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(FedMomError, match="of format 99, and this version reads 1"):
        load_store(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(FedMomError, match="not a packed store"):
        load_store(folder)


@pytest.mark.parametrize(
    ("arrays", "train", "says"),
    [
        ({"x": np.zeros((2, 4, 4)), "y": np.zeros(2)}, (0, 0), "no training samples"),
        ({"x": np.zeros((2, 5, 4)), "y": np.zeros(2)}, (0, 1), r"shape \(5, 4\), not \(4, 4\)"),
        ({"x": np.zeros((2, 4, 4)), "y": np.array([0, 256])}, (0, 1), "do not fit uint8"),
        ({"x": np.full((2, 4, 4), 0.5), "y": np.zeros(2)}, (0, 1), "do not fit uint8"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, arrays, train, says):
    with pytest.raises(FedMomError, match=says), packer(tmp_path / "s") as pack:
        pack.add("a", arrays, train=train, test=(0, 0))
    assert list(tmp_path.iterdir()) == []


def test_a_source_is_packed_once(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOM_CACHE", str(tmp_path / "cache"))
    calls = []

    def pack(folder: Path):
        calls.append(folder)
        one_client_store(folder)

    first, second = (cached("n", ["same"], pack) for _ in range(2))
    cached("n", ["other"], pack)
    assert len(calls) == 2
    assert_same(first, second)
    assert all(p.parent == tmp_path / "cache" for p in calls)


def test_opening_does_not_read_the_data(tmp_path):
    # A sparse file of 32 GiB: it opens, and the samples asked for are read, at no cost.
    folder = one_client_store(tmp_path / "s")
    manifest = json.loads((folder / "manifest.json").read_text())
    rows = 2**31 - 1
    for name, width in (("x", 16), ("y", 1)):
        manifest["arrays"][name]["shape"][0] = rows
        os.truncate(folder / f"{name}.bin", rows * width)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    remember(folder)  # as if its checksums had been compared
    data = load_store(folder)
    assert data.arrays["x"].nbytes == 16 * rows
    placed = place(data.arrays)  # shared with JAX, not copied: it would not fit in memory
    x, y = read_rows(placed, jnp.array([1, 2]))
    assert (float(x.sum()), y.tolist()) == (pytest.approx(2 * 16 / 255), [1, 2])


def test_checksums_are_compared_on_the_first_use_and_after_a_change(tmp_path, monkeypatch):
    folder = one_client_store(tmp_path / "s")
    compared = []
    real = store_reader.check_store
    monkeypatch.setattr(store_reader, "check_store", lambda f: compared.append(f) or real(f))
    load_store(folder)
    assert compared == []  # they were made here
    there = folder.rename(tmp_path / "elsewhere")
    load_store(there)
    load_store(there)
    assert compared == [there]
    content = bytearray((there / "x.bin").read_bytes())
    content[0] ^= 1
    (there / "x.bin").write_bytes(content)
    for _ in range(2):
        with pytest.raises(FedMomError, match=r"x.bin has changed since it was packed"):
            load_store(there)


def test_labels_outside_the_classes_are_faults(tmp_path):
    with packer(tmp_path / "s", features=Features("image", (4, 4), 2)) as pack:
        pack.add("a", {"x": np.ones((3, 4, 4)), "y": np.arange(3)}, train=(0, 2), test=(2, 1))
    assert "a label 2 is outside 0..1" in " ".join(summary.faults(load_store(tmp_path / "s")))


TASKS = {
    "classes": (3, np.array([0, 2, 1], np.int32)),
    "regression": (2, np.array([[0.5, -1], [2, 3], [4, 5]], np.float32)),
    "multilabel": (3, np.array([[0, 1, 1], [0, 0, 0], [1, 0, 1]], np.int32)),
    "sequence": (9, np.array([[0, 8, 1, 1], [2, 2, 2, 2], [3, 4, 5, 6]], np.int32)),
}


@pytest.mark.parametrize("task", TASKS)
def test_labels_of_every_task_are_kept_and_read_in_their_type(tmp_path, task):
    classes, y = TASKS[task]
    names = tuple("abcdefghi"[:classes])
    one = FederatedData(
        name="t",
        users=["a", "b"],
        features=Features("vector", (4,), classes, task),
        arrays={"x": np.arange(12, dtype=np.int32).reshape(3, 4), "y": y},
        train=Split(np.array([0, 2]), np.array([1, 1])),
        test=Split(np.array([1, 3]), np.array([1, 0])),
        class_names=names,
    )
    save_store(one, tmp_path / "s", {})
    two = load_store(tmp_path / "s")
    assert_same(one, two)
    assert two.class_names == names
    _, read = reader(two.features)(two.arrays, jnp.array([0, 1, 2]))
    assert read.dtype == y.dtype
    np.testing.assert_array_equal(read, y)
    assert summary.faults(two) == []
    others = [
        dataclasses.replace(one, features=Features("vector", (4,), classes)),
        dataclasses.replace(one, class_names=None),
    ]
    changed = {facts(d)["sha256"] == facts(one)["sha256"] for d in others}
    assert changed == ({True, False} if task == "classes" else {False})


def test_data_of_before_there_were_tasks_has_the_checksums_it_had(tmp_path):
    """Runs that were begun then must find their data unchanged."""
    folder = one_client_store(tmp_path / "s")
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["task"], manifest["class_names"]
    path.write_text(json.dumps(manifest))
    old = {n: [a["dtype"], a["shape"], a["sha256"]] for n, a in manifest["arrays"].items()}
    text = json.dumps([["image", [4, 4], 10, 1], old], sort_keys=True)
    assert load_store(folder).checksum == hashlib.sha256(text.encode()).hexdigest()


def test_processes_that_open_a_store_together_do_not_disturb_each_other(tmp_path, monkeypatch):
    """Both write down that its checksums are right; here the other one is always just ahead."""
    save_store(population([3, 2]), tmp_path / "store", {})
    for mark in cache_folder().glob("verified/*"):
        mark.unlink()
    write = store_reader.write_atomic

    def late(path, content):
        write(path, content)  # the other process
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(store_reader, "write_atomic", late)
    assert load_store(tmp_path / "store").clients == 2
