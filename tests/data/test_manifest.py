"""What a packed store says of itself is not believed: shapes, positions, names."""

import json

import numpy as np
import pytest

from fedmom.core.errors import FedMomError
from fedmom.data.store.reader import check_store, load_store
from fedmom.data.store.writer import save_store
from tests.data.stores import one_client_store, texts


def of_array(name, **values):
    return lambda m: m["arrays"][name].update(values)


MANIFESTS = {
    "an array of objects": of_array("x", dtype="|O"),
    "big-endian numbers": of_array("x", dtype=">f4"),
    "a record": of_array("x", dtype=[["a", "<f4"]]),
    "a negative length": of_array("x", shape=[-3, 4, 4]),
    "an absurd length": of_array("x", shape=[2**80, 4, 4]),
    "a fraction": of_array("x", shape=[2.5, 4, 4]),
    "no shape": of_array("x", shape=None),
    "rows of another shape": of_array("x", shape=[3, 8, 2]),
    "labels in a square": of_array("y", shape=[3, 1]),
    "labels as floats": of_array("y", dtype="<f4"),
    "a short table": of_array("users_end", dtype="<i4", shape=[2]),
    "no checksum": lambda m: m["arrays"]["x"].pop("sha256"),
    "an array too many": lambda m: m["arrays"].update({"../x": m["arrays"]["x"]}),
    "an array too few": lambda m: m["arrays"].pop("y"),
    "no arrays": lambda m: m.update(arrays=[]),
    "another kind": lambda m: m.update(kind="sound"),
    "a kind that is a list": lambda m: m.update(kind=[]),
    "no classes": lambda m: m.pop("classes"),
    "classes as a text": lambda m: m.update(classes="10"),
    "no clients": lambda m: m.update(training_clients=0),
    "more clients than there are": lambda m: m.update(training_clients=9),
    "no source": lambda m: m.pop("source"),
    "another task": lambda m: m.update(task="ranking"),
    "whole numbers for regression": lambda m: m.update(task="regression"),
    "a list for several labels": lambda m: m.update(task="multilabel"),
    "a list for sequences": lambda m: m.update(task="sequence"),
    "names of other classes": lambda m: m.update(class_names=["a"]),
    "no format": lambda m: m.pop("format"),
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_is_not_believed(tmp_path, change):
    folder = one_client_store(tmp_path / "s")
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for look in (load_store, check_store):
        with pytest.raises(FedMomError, match="is not a packed store: "):
            look(folder)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"5", b"null", b'"x"', b"{" * 5000])
def test_a_manifest_that_is_none_is_a_sentence(tmp_path, content):
    folder = one_client_store(tmp_path / "s")
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(FedMomError, match="is not a packed store: "):
        load_store(folder)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("start", "size"),
    [(0, 4), (3, 1), (-1, 1), (0, -1), (2**62, 2**62), (-(2**63), 2), (1, 2**63 - 1)],
)
def test_samples_outside_the_arrays_are_refused(tmp_path, split, start, size):
    """They would be those of other clients, or of nobody."""
    folder = one_client_store(tmp_path / "s")  # three samples
    for name, value in (("start", start), ("size", size)):
        (folder / f"{split}_{name}.bin").write_bytes(np.array([value]).tobytes())
    with pytest.raises(FedMomError, match=f"client 0 has {size} {split} samples from position"):
        load_store(folder)


def test_windows_of_text_end_within_it(tmp_path):
    data = texts(lengths=(1500,))
    folder = tmp_path / "s"
    save_store(data, folder, {})
    load_store(folder)
    first = int(np.fromfile(folder / "train_start.bin", np.int64)[0])
    room = data.arrays["text"].size - data.features.shape[0] - first
    (folder / "train_size.bin").write_bytes(np.array([room + 1]).tobytes())
    with pytest.raises(FedMomError, match="train samples from position"):
        load_store(folder)


def test_names_that_are_out_of_order_are_refused(tmp_path):
    folder = one_client_store(tmp_path / "s")
    (folder / "users_end.bin").write_bytes(np.array([99]).tobytes())
    with pytest.raises(FedMomError, match="users_end is not in order"):
        load_store(folder)
