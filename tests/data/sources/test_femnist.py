"""FEMNIST from small archives built like NIST's."""

import hashlib
import io
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from fedmom.core.errors import FedMomError
from fedmom.data.federated import Features
from fedmom.data.sources import femnist
from fedmom.data.store.reader import check_store, load_store, read_manifest
from tests.conftest import SHARED
from tests.data.test_download import running

# Writer: images. One image is too few for a split.
COUNTS = {"f0000_14": 2, "f0001_41": 3, "f2100_61": 10, "f0320_41": 25, "f0009_07": 1}


def drawing(number: int) -> NDArray[np.uint8]:
    """Three strokes on white paper, 128 x 128, different for every number."""
    rng = np.random.default_rng(number)
    paper = np.full((128, 128), 255, np.uint8)
    for top, left, high, wide in rng.integers([20, 20, 4, 4], [90, 90, 40, 20], (3, 4)):
        paper[top : top + high, left : left + wide] = 0
    return paper


def png(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.stack([pixels] * 3, -1)).save(file, "PNG")  # NIST's are RGB
    return file.getvalue()


class Archives(NamedTuple):
    """The two archives, and what must come out: (writer, label, drawing) of every image."""

    by_class: Path
    by_write: Path
    expected: list[tuple[str, int, int]]


def build(folder: Path) -> Archives:
    expected: list[tuple[str, int, int]] = []
    classed = {"by_class/30/hsf_0.mit": b"a list"}
    written = {"by_write/hsf_0/": b""}
    for writer, count in COUNTS.items():
        for i in range(count):
            number, form, kind = len(expected), writer[1:], "dulc"[i % 4]
            label = number * 3 % 62
            code = f"{ord(character(label)):02x}"
            path = f"by_write/hsf_{i % 2}/{writer}/{kind}{form}/{kind}{form}_{i:05d}.png"
            written[path] = png(drawing(number))
            classed[f"by_class/{code}/hsf_{i % 8}/hsf_{i % 8}_{number:05d}.png"] = written[path]
            classed[f"by_class/{code}/train_{code}/train_{code}_{number:05d}.png"] = b"skipped"
            expected.append((writer, label, number))
    write(folder / "by_class.zip", classed)
    write(folder / "by_write.zip", written)
    return Archives(folder / "by_class.zip", folder / "by_write.zip", expected)


def character(label: int) -> str:
    if label < 10:
        return chr(ord("0") + label)
    return chr(ord("A") + label - 10) if label < 36 else chr(ord("a") + label - 36)


def write(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def read(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def reduced(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reduce as LEAF's call did in the Pillow of its time."""
    image = Image.fromarray(pixels)
    image.thumbnail((28, 28), Image.Resampling.LANCZOS, reducing_gap=None)
    return np.asarray(image)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    return build(tmp_path_factory.mktemp("nist"))


@pytest.fixture
def archives(built: Archives, tmp_path: Path) -> Archives:
    """Copies that a test may spoil."""
    folder = tmp_path / "archives"
    shutil.copytree(built.by_class.parent, folder)
    return Archives(folder / "by_class.zip", folder / "by_write.zip", built.expected)


def rows(store: Path) -> Iterator[tuple[str, bool, bytes, int]]:
    """Yield (writer, whether for training, pixels, label) of every sample of a store."""
    data = load_store(store)
    for k, user in enumerate(data.users):
        for split in (data.train, data.test):
            for at in range(split.start[k], split.start[k] + split.size[k]):
                yield (
                    user,
                    split is data.train,
                    data.arrays["x"][at].tobytes(),
                    data.arrays["y"][at],
                )


def refused(tmp_path: Path, archives: Archives, match: str) -> str:
    """Pack what cannot be packed; nothing may be left but the archives."""
    with pytest.raises(FedMomError, match=match) as error:
        femnist.pack(tmp_path / "store", archives.by_class, archives.by_write)
    assert [p.name for p in tmp_path.iterdir()] == ["archives"]
    return str(error.value)


def test_store_holds_every_image_once_with_its_writer_and_label(built, tmp_path):
    femnist.pack(tmp_path / "store", built.by_class, built.by_write)
    found = sorted((w, p, y) for w, _, p, y in rows(tmp_path / "store"))
    assert found == sorted(
        (writer, reduced(drawing(number)).tobytes(), label)
        for writer, label, number in built.expected
        if COUNTS[writer] > 1
    )
    data = load_store(tmp_path / "store")
    assert list(data.users) == sorted(w for w, n in COUNTS.items() if n > 1)
    assert data.name == "femnist"
    assert data.features == Features("image", (28, 28), 62)
    assert len(data.arrays["y"]) == sum(n for n in COUNTS.values() if n > 1)
    assert check_store(tmp_path / "store") == []


def test_nine_tenths_of_a_writer_are_for_training_and_one_at_least_for_each(built, tmp_path):
    femnist.pack(tmp_path / "store", built.by_class, built.by_write)
    data = load_store(tmp_path / "store")
    for user, train, test in zip(data.users, data.train.size, data.test.size, strict=True):
        assert train == COUNTS[user] * 9 // 10
        assert test == COUNTS[user] - train
        assert min(train, test) >= 1


def test_split_is_drawn_by_the_seed_and_keeps_the_order_of_names(built, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        femnist.pack(tmp_path / name, built.by_class, built.by_write, seed=seed)
    a, b, c = (list(rows(tmp_path / name)) for name in "abc")
    assert a == b
    assert a != c
    assert sorted(r[::2] for r in a) == sorted(r[::2] for r in c)
    path = "by_write/hsf_{}/f0320_41/{}0320_41/{}0320_41_{:05d}.png"
    names = [path.format(i % 2, "dulc"[i % 4], "dulc"[i % 4], i) for i in range(25)]
    first = next(n for w, _, n in built.expected if w == "f0320_41")
    place = {
        reduced(drawing(first + i)).tobytes(): sorted(names).index(n) for i, n in enumerate(names)
    }
    for train in (True, False):
        places = [place[p] for w, t, p, _ in a if w == "f0320_41" and t == train]
        assert places == sorted(places)


def test_negative_seed_is_refused(built, tmp_path):
    with pytest.raises(FedMomError, match="seed=-1"):
        femnist.pack(tmp_path / "store", built.by_class, built.by_write, seed=-1)


def test_manifest_records_the_archives(built, tmp_path):
    femnist.pack(tmp_path / "store", built.by_class, built.by_write, seed=3)
    source = read_manifest(tmp_path / "store").source
    assert source["seed"] == 3
    for name in ("by_class", "by_write"):
        content = getattr(built, name).read_bytes()
        assert source["sha256"][name] == hashlib.sha256(content).hexdigest()


def test_image_found_in_two_classes_has_the_first_ones_label(archives, tmp_path):
    classed = read(archives.by_class)
    path, content = next((n, c) for n, c in classed.items() if n.startswith("by_class/39/hsf"))
    write(archives.by_class, {"by_class/7a/hsf_0/x.png": content, **classed})
    femnist.pack(tmp_path / "late", archives.by_class, archives.by_write)
    write(archives.by_class, {**classed, path.replace("/39/", "/30/"): content})
    femnist.pack(tmp_path / "early", archives.by_class, archives.by_write)
    pixels = femnist.reduced(content).tobytes()
    assert [y for _, _, p, y in rows(tmp_path / "late") if p == pixels] == [9]
    assert [y for _, _, p, y in rows(tmp_path / "early") if p == pixels] == [0]


def lanczos(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Lanczos' filter from its formula: sinc(t) sinc(t / 3) over 3 output pixels each way."""
    scale = 128 / 28
    centre = (np.arange(28) + 0.5) * scale
    t = (np.arange(128) + 0.5 - centre[:, None]) / scale
    weights = np.where(np.abs(t) < 3, np.sinc(t) * np.sinc(t / 3), 0)
    weights /= weights.sum(1, keepdims=True)
    across = np.clip(pixels @ weights.T, 0, 255)  # Pillow keeps bytes between the two passes
    return np.clip(weights @ across, 0, 255)


@settings(max_examples=20, deadline=None)
@given(number=st.integers(0, 10**6))
def test_image_is_the_lanczos_filter_of_the_drawing(number):
    found = femnist.reduced(png(drawing(number)))
    assert found.dtype == np.uint8
    assert np.abs(found - lanczos(drawing(number))).max() <= 2  # two roundings


def test_paper_stays_white_and_ink_black():
    paper = np.full((128, 128), 255, np.uint8)
    assert (femnist.reduced(png(paper)) == 255).all()
    assert (femnist.reduced(png(0 * paper)) == 0).all()


def test_grey_levels_are_those_of_leafs_own_files():
    """The filter's ripple beside a stroke: 251 is common and 250 rare.

    With an image halved first (LEAF's call in Pillow 7 and later) 250 is not that rare.
    """
    path = SHARED / "femnist_writers.npz"
    if not path.exists():
        pytest.skip(f"needs {path.name}, LEAF's own images")
    with np.load(path, allow_pickle=False) as file:
        real = file["x"][file["user_source"][file["user"]] == 0]
    strokes = []
    for left in range(40, 60):
        for wide in (6, 8, 10, 12, 14):
            stroke = np.full((128, 128), 255, np.uint8)
            stroke[:, left : left + wide] = 0
            strokes.append(femnist.reduced(png(stroke)))
    drawn = [femnist.reduced(png(drawing(n))) for n in range(200)]
    for images in (real, np.array(strokes), np.array(drawn)):
        share = np.bincount(images.ravel(), minlength=256) / images.size
        assert share[251] > 4 * share[250]
        assert share[255] > 0.6  # paper
        assert share[1:255].sum() > share[0]  # more edge than solid ink, once reduced


@pytest.mark.parametrize("broken", ["by_class", "by_write"])
class TestBrokenArchive:
    def test_missing(self, archives, tmp_path, broken):
        getattr(archives, broken).unlink()
        assert str(getattr(archives, broken)) in refused(tmp_path, archives, "No such file")

    def test_not_a_zip(self, archives, tmp_path, broken):
        getattr(archives, broken).write_text("<html>Sorry</html>")
        message = refused(tmp_path, archives, "not a whole zip archive.*fetch it again")
        assert str(getattr(archives, broken)) in message

    def test_truncated(self, archives, tmp_path, broken):
        path = getattr(archives, broken)
        path.write_bytes(path.read_bytes()[:-2000])
        assert str(path) in refused(tmp_path, archives, "not a whole zip archive")

    def test_damaged_member(self, archives, tmp_path, broken):
        path = getattr(archives, broken)
        with zipfile.ZipFile(path) as archive:  # the last image of the last writer packed
            names = [n for n in archive.namelist() if "hsf_1/f2100_61" in n or "hsf_1_" in n]
            member = archive.getinfo(max(names))
        content = bytearray(path.read_bytes())
        content[member.header_offset + 30 + len(member.filename) + 40] ^= 255
        path.write_bytes(content)
        assert member.filename in refused(tmp_path, archives, "damaged.*fetch it again")

    def test_without_images(self, archives, tmp_path, broken):
        write(getattr(archives, broken), {"readme.txt": b""})
        assert str(getattr(archives, broken)) in refused(tmp_path, archives, "has no by_")


def test_archives_of_different_editions_are_refused(archives, tmp_path):
    classed = read(archives.by_class)
    gone = next(n for n in classed if "/hsf_1/" in n)
    write(archives.by_class, {n: c for n, c in classed.items() if n != gone})
    name = refused(tmp_path, archives, "no label.*fetch both again")
    assert "by_write/hsf_1/" in name


@pytest.mark.parametrize(
    ("content", "match"),
    [(png(drawing(0)[:100]), "128 x 100, not 128 x 128"), (b"GIF89a", "not an image")],
)
def test_file_that_is_no_image_of_nists_is_refused(archives, tmp_path, content, match):
    name = "by_write/hsf_0/f2100_61/d2100_61/d2100_61_99999.png"
    write(archives.by_class, {**read(archives.by_class), "by_class/30/hsf_0/x.png": content})
    write(archives.by_write, {**read(archives.by_write), name: content})
    assert name in refused(tmp_path, archives, match)


def test_class_that_is_no_digit_or_letter_is_refused(archives, tmp_path):
    write(archives.by_class, {**read(archives.by_class), "by_class/2a/hsf_0/x.png": b""})
    assert "'*'" in refused(tmp_path, archives, "by_class/2a/hsf_0/x.png")


def test_kill_while_packing_leaves_no_store(archives, tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from fedmom.data.sources import femnist\n"
        "real, seen = femnist.reduced, []\n"
        "def stops(png):\n"
        "    seen.append(png)\n"
        "    if len(seen) == 30: print('there', flush=True); time.sleep(60)\n"
        "    return real(png)\n"
        "femnist.reduced = stops\n"
        "femnist.pack(*map(Path, sys.argv[1:]))\n"
    )
    store = tmp_path / "store"
    command = [sys.executable, "-c", script, store, archives.by_class, archives.by_write]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"there\n"
        process.kill()
    assert not store.exists()
    femnist.pack(store, archives.by_class, archives.by_write)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["archives", "store"]
    assert check_store(store) == []


def md5s(archives: Archives) -> dict[str, str]:
    return {
        path.name: hashlib.md5(path.read_bytes()).hexdigest()
        for path in (archives.by_class, archives.by_write)
    }


@pytest.fixture(name="server")
def nist_server(built: Archives, monkeypatch: pytest.MonkeyPatch):
    with running(monkeypatch) as server:
        server.files = {f"/SD19/{p.name}": p.read_bytes() for p in (built.by_class, built.by_write)}
        server.base = f"http://127.0.0.1:{server.server_port}/SD19"
        yield server


def test_archives_come_over_the_network_through_a_cut_connection(server, built, tmp_path):
    server.cuts = [1000]
    by_class, by_write = femnist.fetch(tmp_path / "raw", server.base, md5s(built))
    assert server.log == [None, "bytes=1000-", None]
    assert by_class.read_bytes() == built.by_class.read_bytes()
    assert by_write.read_bytes() == built.by_write.read_bytes()
    femnist.pack(tmp_path / "store", by_class, by_write)
    femnist.pack(tmp_path / "direct", built.by_class, built.by_write)
    assert read_manifest(tmp_path / "store") == read_manifest(tmp_path / "direct")
    femnist.fetch(tmp_path / "raw", server.base, md5s(built))
    assert len(server.log) == 3  # what is there is not fetched again


def test_archive_with_a_wrong_checksum_is_refused(server, built, tmp_path):
    wrong = {**md5s(built), "by_write.zip": "0" * 32}
    with pytest.raises(FedMomError, match=f"{server.base}/by_write.zip was removed: its md5 is"):
        femnist.fetch(tmp_path, server.base, wrong)
    assert [p.name for p in tmp_path.iterdir()] == ["by_class.zip"]


def test_nists_own_checksums_are_the_default(server, tmp_path):
    with pytest.raises(FedMomError, match=femnist.NIST_MD5["by_class.zip"]):
        femnist.fetch(tmp_path, server.base)
    assert not list(tmp_path.iterdir())
