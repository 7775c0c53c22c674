"""Plain text of a user's own."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedmom
from fedmom.core.errors import FedMomError
from fedmom.data import load, summary
from fedmom.data.batches import reader

ANN, BOB = "Ein Käse, bitte! " * 8, "no 漢字 here\n" * 12


def samples(data, split, client):
    """A client's samples as texts: the window, and the character after it."""
    start, size = (int(c[client]) for c in data.split(split))
    window = data.features.shape[0]
    text = "".join(data.class_names[s] for s in data.arrays["text"][start : start + size + window])
    return windows(text, window) if size else []


def windows(text, size):
    return [(text[i : i + size], text[i + size]) for i in range(len(text) - size)]


def test_samples_are_all_windows_of_each_text():
    data = fedmom.from_texts({"ann": ANN, "bob": BOB}, window=9)
    assert "".join(data.class_names) == "".join(sorted(set(ANN + BOB)))
    assert data.features.classes == len(data.class_names)
    for k, text in enumerate((ANN, BOB)):
        assert samples(data, "train", k) == windows(text, 9)
    assert summary.faults(data) == []
    x, y = map(np.asarray, reader(data.features)(data.arrays, jnp.array([3])))
    read = "".join(data.class_names[s] for s in (*x[0], *y))
    assert read == ANN[3:13]


def test_the_end_of_each_text_is_for_testing():
    data = fedmom.from_texts({"ann": ANN, "bob": BOB[:12]}, window=9, test_fraction=0.25)
    every = windows(ANN, 9)
    last = int(0.75 * len(every))  # LEAF's rule: so many are not for testing, and 8 are left out
    assert samples(data, "test", 0) == every[last + 8 :]
    assert samples(data, "train", 0) == every[:last]
    seen = {p for i in range(last) for p in range(i, i + 9)}
    assert min(range(last + 8, len(every))) > max(seen) - 1
    assert samples(data, "train", 1) == windows(BOB[:12], 9)  # too short to be split
    assert data.test.size[1] == 0


def test_texts_of_one_client_are_joined_in_order():
    data = fedmom.from_texts(["ab" * 9, "xy" * 9, "cd" * 9], [5, 12, 5], window=4)
    assert list(data.users) == ["5", "12"]
    assert samples(data, "train", 0) == windows("ab" * 9 + "\n" + "cd" * 9, 4)


def test_texts_are_dealt_whole():
    texts = [c * 30 for c in "abcdefgh"]
    data = fedmom.from_texts(texts, partition="iid:clients=3", window=5, seed=1)
    seen = [{w[0] for w, _ in samples(data, "train", k)} - {"\n"} for k in range(3)]
    assert sorted(len(own) for own in seen) == [2, 3, 3]
    assert set.union(*seen) == set("abcdefgh")


def test_folders_of_texts(tmp_path):
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "ann.txt").write_bytes(ANN.encode("utf-8-sig").replace(b"\n", b"\r\n"))
    (tmp_path / "flat" / "bob.txt").write_text(BOB, encoding="utf-8")
    (tmp_path / "flat" / "note.md").write_text("nothing")
    expected = fedmom.from_texts({"ann": ANN, "bob": BOB}, window=20, test_fraction=0.3)
    data = load(f"{tmp_path}/flat:window=20,test_fraction=0.3")
    assert list(data.users) == ["ann", "bob"]
    assert tuple(data.class_names) == expected.class_names
    for split in ("train", "test"):
        for k in range(2):
            assert samples(data, split, k) == samples(expected, split, k)
    for name, text in (("ann/2", "two" * 30), ("ann/1", "one" * 30), ("bob/x", "xyz" * 30)):
        path = tmp_path / "deep" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    data = fedmom.from_texts(tmp_path / "deep", window=10)
    assert samples(data, "train", 0) == windows("one" * 30 + "\n" + "two" * 30, 10)
    with pytest.raises(FedMomError, match="Give one of the two"):
        fedmom.from_texts(tmp_path / "deep", window=10, partition="iid:clients=2")
    assert load(f"{tmp_path}/flat:window=10,partition=iid:clients=2").users[0] == "client0"


@pytest.mark.parametrize("places", [("train", "test"), ("train/a", "val/b")])
@pytest.mark.parametrize("options", [{}, {"partition": "iid:clients=1"}])
def test_files_of_splits_are_not_taken_for_clients(tmp_path, places, options):
    for place in places:
        path = tmp_path / f"{place}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(ANN)
    with pytest.raises(FedMomError, match="they look like splits"):
        fedmom.from_texts(tmp_path, window=10, **options)


def test_many_symbols_fit():
    text = "".join(map(chr, range(200, 700))) * 2
    data = fedmom.from_texts({"a": text}, window=3)
    assert (data.features.classes, data.arrays["text"].dtype) == (500, np.uint16)
    assert samples(data, "train", 0)[:9] == windows(text, 3)[:9]


@pytest.mark.parametrize(
    ("texts", "options", "says"),
    [
        ({"a": "short"}, {}, "client 'a' has 5 characters, and a sample has window=80"),
        ({"a": ANN}, {"window": 0}, "window=0 must be at least 1"),
        ({"a": ANN}, {"client_ids": ["a"]}, "Leave client_ids out"),
        ({"a": ANN}, {"partition": "iid:clients=1"}, "Give one of the two"),
        ([ANN], {}, "no client IDs given"),
        ([ANN, BOB], {"client_ids": ["a"]}, "2 texts and 1 client ids"),
        ([ANN, 5], {"client_ids": ["a", "b"]}, "text 1 is a int"),
        ([ANN, BOB], {"partition": "dirichlet:clients=2"}, "Use iid or quantity"),
        ({"a": ANN + "\ud800"}, {}, "half a character"),
        ({1: ANN, "1": BOB}, {}, "would have one name"),
        ([], {"client_ids": []}, "has no texts"),
    ],
)
def test_what_cannot_be_used_is_named(texts, options, says):
    with pytest.raises(FedMomError, match=says):
        fedmom.from_texts(texts, **options)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(FedMomError, match=r"is not a folder with \.txt files"):
        fedmom.from_texts(tmp_path)
    (tmp_path / "ann.txt").write_bytes(b"abc\xff")
    with pytest.raises(FedMomError, match=r"ann\.txt is not UTF-8 at byte 3"):
        fedmom.from_texts(tmp_path)
    (tmp_path / "bob").mkdir()
    (tmp_path / "bob" / "1.txt").write_text(BOB)
    with pytest.raises(FedMomError, match="both of its own and in folders"):
        fedmom.from_texts(tmp_path)
