"""Datasets on disk, damaged at random: they load with right shapes, or give one sentence."""

import gzip
import struct

import numpy as np
import pytest
from PIL import Image

from fedmom.data import load, summary
from fedmom.data.sources.arrays import from_npz
from fedmom.data.sources.shakespeare import from_roles
from fedmom.data.store.reader import check_store, load_store
from fedmom.data.store.writer import save_store
from tests.conftest import population
from tests.hostile.mutation import contents, sentence, spoiled

FEW, MANY = 60, 2500


def npz(folder):
    rng = np.random.default_rng(0)
    path = folder / "own.npz"
    np.savez_compressed(
        path,
        x=rng.normal(size=(40, 3)).astype(np.float32),
        y=np.arange(40) % 3,
        user=np.arange(40) % 4,
        users=np.array(["ann", "bob", "cy", "dee"]),
        is_test=np.arange(40) >= 30,
    )
    return path


def rows(folder):
    save_store(population([5, 9, 3], test_sizes=[2, 0, 1]), folder / "rows", {"made": "here"})
    return folder / "rows"


def text(folder):
    data = from_roles("t", {"a": "to be or not " * 90, "b": "that is the question " * 60})
    save_store(data, folder / "text", {"made": "here"})
    return folder / "text"


def idx(folder):
    place = folder / "idx"
    place.mkdir()
    rng = np.random.default_rng(0)
    for part, count in (("train", 120), ("t10k", 30)):
        x = rng.integers(0, 256, (count, 5, 5), np.uint8)
        y = (np.arange(count) % 10).astype(np.uint8)
        head = struct.pack(">iiii", 0x803, count, 5, 5)
        (place / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + x.tobytes()))
        labels = struct.pack(">ii", 0x801, count) + y.tobytes()
        (place / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    return place


def table():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    return pandas.DataFrame(
        {
            "user": [f"user {k % 4}" for k in range(40)],
            "a": rng.normal(size=40),
            "b": rng.integers(0, 9, 40),
            "y": rng.choice(["yes", "no, never"], 40),
        }
    )


def csv(folder):
    table().to_csv(folder / "own.csv", index=False)
    return folder / "own.csv"


def parquet(folder):
    table().to_parquet(folder / "own.parquet")
    return folder / "own.parquet"


def images(folder):
    rng = np.random.default_rng(0)
    for place in ("ann/cat/1.png", "ann/dog/1.jpg", "bob/cat/1.bmp"):
        path = folder / "images" / place
        path.parent.mkdir(parents=True)
        Image.fromarray(rng.integers(0, 256, (6, 5, 3), np.uint8)).save(path)
    return folder / "images"


def texts(folder):
    (folder / "texts").mkdir()
    for name in ("ann", "bob"):
        (folder / "texts" / f"{name}.txt").write_text(f"{name} says \u00e9 or \u6f22; " * 20)
    return folder / "texts"


OPTIONS = {
    "csv": ":client=user,label=y,test_fraction=0.2",
    "parquet": ":client=user,label=y,test_fraction=0.2",
    "images": ":size=4",
    "texts": ":window=20,test_fraction=0.2",
}
FORMATS = {"npz": npz, "rows": rows, "text": text, "idx": idx}
FORMATS |= {"csv": csv, "parquet": parquet, "images": images, "texts": texts}


def look(path, options=""):
    """Load as a run would, and look at all of it."""
    data = load(f"{path}{options}")
    summary.statistics(data)
    assert summary.faults(data) == []
    for split in (data.train, data.test):
        assert (split.size >= 0).all()


def examine(kind, tmp_path, count, seed):
    original, options = FORMATS[kind](tmp_path), OPTIONS.get(kind, "")
    assert sentence(look, original, options) is None
    loaded = 0
    for case in range(count):
        rng = np.random.default_rng([seed, case])
        copy = tmp_path / f"{case}{original.suffix}"
        spoiled(original, copy, rng)
        before = contents(copy) if copy.is_dir() else copy.read_bytes()
        refusals = [sentence(look, copy, options)]
        if kind == "npz":
            refusals.append(sentence(from_npz, copy))
        elif kind in ("rows", "text"):
            refusals += [sentence(load_store, copy), sentence(check_store, copy)]
        loaded += refusals[0] is None
        assert (contents(copy) if copy.is_dir() else copy.read_bytes()) == before, case
    return loaded


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_data_is_a_sentence(kind, tmp_path):
    assert examine(kind, tmp_path, FEW, seed=0) < FEW


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_much_damaged_data_is_a_sentence(kind, tmp_path):
    examine(kind, tmp_path, MANY, seed=1)
