"""Images in folders."""

import numpy as np
import pytest
from PIL import Image

import fedmom
from fedmom.core.errors import FedMomError
from fedmom.data import load
from fedmom.data.sources import images

rng = np.random.default_rng(0)


def gray(shape=(6, 5)):
    return rng.integers(0, 256, shape, np.uint8)


def put(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return pixels


def test_every_picture_is_its_clients(tmp_path):
    kept = {
        (client, label): put(tmp_path / client / label / "1.png", gray())
        for client, label in (("ann", "cat"), ("ann", "dog"), ("bob", "dog"))
    }
    put(tmp_path / "bob" / "dog" / ".hidden.png", gray((3, 3)))
    (tmp_path / "bob" / "notes.txt").write_text("not an image")
    data = fedmom.from_images(tmp_path)
    assert (list(data.users), data.class_names) == (["ann", "bob"], ("cat", "dog"))
    assert data.features[:] == ("image", (6, 5), 2, "classes")
    np.testing.assert_array_equal(data.arrays["x"], list(kept.values()))
    assert data.arrays["y"].tolist() == [0, 1, 1]
    assert data.train.size.tolist() == [2, 1]


def test_one_picture_in_colour_makes_all_of_them_so(tmp_path):
    colour = put(tmp_path / "a" / "0" / "1.png", gray((6, 5, 3)))
    plain = put(tmp_path / "a" / "10" / "1.png", gray())
    data = fedmom.from_images(tmp_path)
    assert data.features[:] == ("image", (6, 5, 3), 2, "classes")
    assert data.class_names == ("0", "10")
    np.testing.assert_array_equal(data.arrays["x"], [colour, np.stack([plain] * 3, -1)])
    assert data.arrays["y"].tolist() == [0, 1]


def test_classes_without_clients_are_dealt(tmp_path):
    for label in ("a", "b"):
        for k in range(6):
            put(tmp_path / label / f"{k}.png", gray())
    with pytest.raises(FedMomError, match="no client IDs given"):
        fedmom.from_images(tmp_path)
    data = load(f"{tmp_path}:test_fraction=0.34,partition=shards:clients=2,per_client=1")
    assert (data.clients, data.train.size.tolist(), data.test.size.tolist()) == (2, [4, 4], [2, 2])
    assert {tuple(set(y.tolist())) for y in np.split(data.arrays["y"], 2)} == {(0,), (1,)}


@pytest.mark.parametrize(
    ("places", "says"),
    [
        (("train/cat", "val/cat"), "'train' and 'val'"),
        (("cat/Train", "cat/Test"), "'Test' and 'Train'"),
        (("ann/train/cat", "ann/test/cat"), "has images such as"),
        (("training", "validation"), "'training' and 'validation'"),
        (("ann/train", "bob/train"), "has 'train' where clients"),
    ],
)
def test_folders_of_splits_are_not_taken_for_clients_or_classes(tmp_path, places, says):
    for place in places:
        put(tmp_path / place / "1.png", gray())
    with pytest.raises(FedMomError, match=says):
        fedmom.from_images(tmp_path)
    with pytest.raises(FedMomError, match=says):
        load(f"{tmp_path}:partition=iid:clients=1")


def test_one_client_may_be_called_test(tmp_path):
    for place in ("test/cat", "ann/dog"):
        put(tmp_path / place / "1.png", gray())
    assert fedmom.from_images(tmp_path).users == ["ann", "test"]


def test_images_are_brought_to_one_size(tmp_path):
    put(tmp_path / "a" / "x" / "1.png", gray((6, 5)))
    put(tmp_path / "a" / "x" / "2.png", np.full((9, 12), 77, np.uint8))
    with pytest.raises(FedMomError, match=r"1\.png has 6x5 .*2\.png has 9x12 .*size=6x5"):
        fedmom.from_images(tmp_path)
    assert fedmom.from_images(tmp_path, size=4).features.shape == (4, 4)
    data = load(f"{tmp_path}:size=3x7")
    assert data.features.shape == (3, 7)
    assert (data.arrays["x"][1] == 77).all()


@pytest.mark.parametrize("size", ["0", "-3", "axb", "3x4x5", "1e9", 10**9, "9" * 5000])
def test_sizes_that_are_none_are_refused(tmp_path, size):
    put(tmp_path / "a" / "x" / "1.png", gray())
    with pytest.raises(FedMomError, match=r"is not a size. Write a side"):
        fedmom.from_images(tmp_path, size=size)


def test_damaged_images_are_refused_by_name(tmp_path):
    put(tmp_path / "a" / "x" / "1.png", gray((60, 50)))
    whole = (tmp_path / "a" / "x" / "1.png").read_bytes()
    bad = tmp_path / "a" / "x" / "2.png"
    for content in (b"", b"no image", whole[:40], whole[: len(whole) // 2], b"P5 50 60 255\n123"):
        bad.write_bytes(content)
        with pytest.raises(FedMomError, match=r"2\.png is not a readable image"):
            fedmom.from_images(tmp_path)


def test_huge_and_deep_images_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a" / "x" / "1.png"
    put(path, gray((6, 5)).astype(np.uint16))
    with pytest.raises(FedMomError, match=r"kind I;16. Save it as gray levels"):
        fedmom.from_images(tmp_path)
    put(path, gray((6, 5)))
    monkeypatch.setattr(images, "MOST_PIXELS", 29)
    with pytest.raises(FedMomError, match="6x5 pixels; at most 29"):
        fedmom.from_images(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)  # where Pillow itself refuses
    with pytest.raises(FedMomError, match="not a readable image"):
        fedmom.from_images(tmp_path)


def test_folders_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(FedMomError, match="has no images"):
        fedmom.from_images(tmp_path)
    put(tmp_path / "a" / "x" / "1.png", gray())
    with pytest.raises(FedMomError, match="has clients already, and partition="):
        fedmom.from_images(tmp_path, partition="iid:clients=1")
    put(tmp_path / "b" / "1.png", gray())
    with pytest.raises(FedMomError, match="All must lie in folders of one kind"):
        fedmom.from_images(tmp_path)
    with pytest.raises(FedMomError, match="There is no folder"):
        fedmom.from_images(tmp_path / "nowhere")
