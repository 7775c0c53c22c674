"""Datasets of the Hugging Face library."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

import fedmom
from fedmom.core.errors import FedMomError


@pytest.fixture(scope="module")
def datasets():
    """Imported when a test of this file runs: it takes seconds, also where no test needs it."""
    return pytest.importorskip("datasets")


def numbers(rows=12):
    rng = np.random.default_rng(0)
    return {
        "who": [f"c{k % 3}" for k in range(rows)],
        "x": rng.normal(size=(rows, 4)).astype(np.float32).tolist(),
        "label": [k % 2 for k in range(rows)],
    }


def test_a_dataset_is_the_same_as_its_arrays(datasets):
    rows = numbers()
    dataset = datasets.Dataset.from_dict(rows).shuffle(seed=1)
    data = fedmom.from_huggingface(dataset, client="who", test_fraction=0.25)
    expected = fedmom.from_arrays(
        np.array(dataset["x"], np.float32), dataset["label"], dataset["who"], test_fraction=0.25
    )
    assert (list(data.users), data.features) == (list(expected.users), expected.features)
    for name in ("x", "y"):
        np.testing.assert_array_equal(data.arrays[name], expected.arrays[name])
    np.testing.assert_array_equal(data.test.size, expected.test.size)


def test_the_splits_of_a_dict_are_train_and_test(datasets):
    rows = numbers()
    parts = {
        "train": datasets.Dataset.from_dict({n: v[:9] for n, v in rows.items()}),
        "test": datasets.Dataset.from_dict({n: v[9:] for n, v in rows.items()}),
    }
    data = fedmom.from_huggingface(datasets.DatasetDict(parts), client="who")
    assert (data.train.size.tolist(), data.test.size.tolist()) == ([3, 3, 3], [1, 1, 1])
    data = fedmom.from_huggingface(datasets.DatasetDict(train=parts["train"]), client="who")
    assert data.test.size.sum() == 0
    with pytest.raises(FedMomError, match="the splits test, and none called train"):
        fedmom.from_huggingface(datasets.DatasetDict(test=parts["test"]), client="who")
    for name, hint in (("validation", "It may be train, test"), ("tset", "Did you mean 'test'")):
        with pytest.raises(FedMomError, match=f"the split '{name}' is not known.*{hint}"):
            fedmom.from_huggingface(datasets.DatasetDict({**parts, name: parts["test"]}))
    with pytest.raises(FedMomError, match="already marked"):
        fedmom.from_huggingface(datasets.DatasetDict(parts), client="who", test_fraction=0.1)


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def test_images_are_decoded_and_classes_keep_their_names(datasets):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 5), np.uint8)
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog", "owl"])
    )
    rows = {"image": [png(p) for p in pixels], "label": [1, 0, 1, 0]}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    data = fedmom.from_huggingface(dataset, partition="iid:clients=1")
    assert data.features[:] == ("image", (6, 5), 3, "classes")
    assert data.class_names == ("cat", "dog", "owl")
    np.testing.assert_array_equal(data.arrays["x"], pixels)
    assert data.arrays["y"].tolist() == rows["label"]
    small = fedmom.from_huggingface(dataset, partition="iid:clients=2", size=3)
    assert small.features.shape == (3, 3)
    broken = {"image": [{"bytes": b"no image", "path": None}], "label": [1]}
    with pytest.raises(FedMomError, match="image of row 0 is not a readable image"):
        fedmom.from_huggingface(
            datasets.Dataset.from_dict(broken, features=features), partition="iid:clients=1"
        )


def test_arrays_of_two_dimensions_are_images(datasets):
    features = datasets.Features(
        x=datasets.Array2D((2, 3), "float32"), label=datasets.Value("int64")
    )
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    dataset = datasets.Dataset.from_dict({"x": x, "label": [0, 1]}, features=features)
    data = fedmom.from_huggingface(dataset, partition="iid:clients=1")
    assert data.features.kind == "image"
    np.testing.assert_array_equal(data.arrays["x"], x)


def test_mistakes_are_sentences(datasets, monkeypatch):
    rows = {**numbers(4), "label": [0, -1, 1, 0]}
    features = datasets.Features(
        who=datasets.Value("string"),
        x=datasets.List(datasets.Value("float32")),
        label=datasets.ClassLabel(names=["a", "b"]),
    )
    unlabelled = datasets.Dataset.from_dict(rows, features=features)
    with pytest.raises(FedMomError, match=r"label of row 1 is -1 .*Leave rows without a label out"):
        fedmom.from_huggingface(unlabelled, client="who")
    with pytest.raises(FedMomError, match="no column in huggingface called 'user'"):
        fedmom.from_huggingface(datasets.Dataset.from_dict(numbers()), client="user")
    stream = datasets.Dataset.from_dict(numbers()).to_iterable_dataset()
    with pytest.raises(FedMomError, match="IterableDataset cannot be read by number"):
        fedmom.from_huggingface(stream, client="who")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FedMomError, match=r"needs datasets: pip install 'fedmom\[hf\]'"):
        fedmom.from_huggingface(None)
