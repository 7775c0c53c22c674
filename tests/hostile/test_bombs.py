"""Files that are small and claim to be endless: refused before they fill the memory or the day."""

import gzip
import io
import os
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from fedmom.core import files
from fedmom.core.errors import FedMomError
from fedmom.data import load, source_files
from fedmom.data.federated import Features
from fedmom.experiments import settings
from fedmom.models import build

SIZE = 2**23  # bytes, unpacked: beyond what the tests call large


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch):
    monkeypatch.setattr(source_files, "LARGE", 2**20)
    monkeypatch.setattr(source_files, "BLOCK", 2**18)


def gzipped(path, head, unit):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(head + unit * (SIZE // len(unit)), 9))
    assert path.stat().st_size * source_files.RATIO < SIZE
    return path


def lines(folder):
    path = gzipped(folder / "x.csv.gz", b"u,x,y\n", b"\n")
    return f"{path}:client=u,label=y"


def rows(folder):
    path = gzipped(folder / "x.csv.gz", b"u,x,y\n", b"1,1,1\n")
    return f"{path}:client=u,label=y"


def idx(folder):
    head = struct.pack(">iiii", 0x803, SIZE // 100, 10, 10)
    path = gzipped(folder / "train-images-idx3-ubyte.gz", head, b"\0")
    for name in ("train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (folder / name).write_bytes(b"\0")
    return path.parent


def leaf(folder):
    for part in ("train", "test"):
        gzipped(folder / part / "a.json.gz", b"{", b" ")
    return folder


def gutenberg(folder):
    head = b"The Complete Works of William Shakespeare\nby William Shakespeare\n" * 9
    return gzipped(folder / "pg100.txt.gz", head, b"\n")


@pytest.mark.parametrize("kind", [lines, rows, idx, leaf, gutenberg], ids=lambda f: f.__name__)
def test_a_gzipped_file_is_not_unpacked_without_end(tmp_path, kind):
    with pytest.raises(FedMomError, match="which no real data does"):
        load(str(kind(tmp_path)))


def test_a_parquet_column_that_repeats_itself_is_not_read(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    row = pa.array([[0.0] * 2000] * 500, pa.list_(pa.float32()))
    table = pa.table({"u": [0, 1] * 250, "x": row, "y": [0, 1] * 250})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(FedMomError, match="column 'x' unpacks to at least 8,000,000 bytes"):
        load(f"{tmp_path / 'x.parquet'}:client=u,label=y")


READ = """
import resource, sys
from fedmom import FedMomError, load_data
from fedmom.data import source_files
source_files.LARGE = 2**24
load_data("synthetic:clients=1")
for file in sys.argv[1:]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        load_data(file)
    except FedMomError as error:
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(grown // 2**10, error)
"""


def test_small_tables_that_would_fill_the_memory_are_not_read(tmp_path):
    """Columns without end took 15 GB, and twenty long texts of one letter 4 GB."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    wide = ",".join(f"c{k}" for k in range(100_000))
    (tmp_path / "wide.csv").write_text(f"{wide}\n{','.join('1' * 100_000)}\n")
    (tmp_path / "commas.csv").write_bytes(b"," * 3_000_000 + b"\n")
    (tmp_path / "quoted.csv").write_bytes(b'\n"a\n"' + b"," * 3_000_000 + b"\n")
    texts = pa.array([chr(97 + k) * 1_100_000 for k in range(16)])
    table = pa.table({"c0": texts, "c1": range(16), "c2": [0, 1] * 8})
    pq.write_table(table, tmp_path / "texts.parquet", compression="zstd")
    files = ["wide.csv", "commas.csv", "quoted.csv", "texts.parquet"]
    given = [f"{tmp_path / file}:label=c0,client=c1" for file in files]
    done = subprocess.run(
        [sys.executable, "-c", READ, *given], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(files), done.stderr
    for line in lines:
        assert "unpacks to at least" in line
        assert int(line.split()[0]) < 200, line  # MB, pyarrow's own included


def npz(path, shape, claim=None):
    """An .npz file whose x claims a shape; ``claim`` is what it says of its length in the file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        head = io.BytesIO()
        about = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(head, about)
        archive.writestr("x.npy", head.getvalue() + bytes(SIZE))
        packed = archive.getinfo("x.npy").compress_size
        labels = io.BytesIO()
        np.save(labels, np.arange(SIZE // 4) % 2)
        archive.writestr("y.npy", labels.getvalue())
    if claim is not None:  # in the directory at the end, which is what is believed
        content = path.read_bytes()
        entry = content.index(b"PK\1\2") + 20
        assert content[entry : entry + 4] == struct.pack("<I", packed)
        path.write_bytes(content[:entry] + struct.pack("<I", claim) + content[entry + 4 :])
    return path


@pytest.mark.parametrize(
    ("shape", "claim", "says"),
    [
        ((SIZE // 4, 1), None, "which no real data does"),
        ((SIZE // 4, 1), SIZE, "which no real data does"),
        ((-1, 1), None, "has the shape \\(-1, 1\\), which no array has"),
    ],
    ids=["plain", "lies about its length", "negative"],
)
def test_an_npz_file_is_not_unpacked_without_end(tmp_path, shape, claim, says):
    with pytest.raises(FedMomError, match=says):
        load(str(npz(tmp_path / "x.npz", shape, claim)))


@pytest.mark.parametrize(
    ("model", "kind", "shape"),
    [
        ("logreg", "vector", (3,)),
        ("mlp", "vector", (3,)),
        ("lenet5", "image", (28, 28)),
        ("leaf_cnn", "image", (28, 28)),
        ("char_lstm", "text", (80,)),
    ],
)
def test_a_label_of_billions_asks_for_no_memory(monkeypatch, model, kind, shape):
    monkeypatch.setattr("fedmom.core.validation.machine_memory", lambda: 16 * 10**9)
    with pytest.raises(FedMomError, match=r"parameters needs at least .* GB"):
        build(model, Features(kind, shape, 2**31 - 1))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are POSIX's")
@pytest.mark.parametrize("name", ["x.csv", "x.npz", "x.parquet", "ann/cat/1.png"])
def test_a_pipe_is_no_data(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / name)
    source = tmp_path if name.endswith(".png") else f"{tmp_path / name}:label=y,client=u"
    with pytest.raises(FedMomError, match="a pipe or a device"):
        load(str(source))


def test_settings_without_end_are_refused(tmp_path):
    (tmp_path / "long.toml").write_bytes(b"#" * (files.LARGEST_TOML + 1))
    with pytest.raises(FedMomError, match=r"has 65,537 bytes\. It must have at most 65,536"):
        settings.read(tmp_path / "long.toml")


@pytest.mark.parametrize(
    "text", ["a" + ".a" * 30_000 + " = 1", "x = {'a'" + ". 'a'" * 9_000 + "=1}"]
)
def test_names_of_settings_without_end_are_refused(tmp_path, text):
    (tmp_path / "deep.toml").write_text(text)
    with pytest.raises(FedMomError, match="a name in it has 100 parts"):
        settings.read(tmp_path / "deep.toml")


def test_a_folder_of_everything_is_not_walked_through(tmp_path):
    """The first picture that lies too deep is told: a disk may have millions after it."""
    for place in ("a/b/c/1.png", "z/b/c/d/2.png"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_bytes(b"")
    with pytest.raises(FedMomError) as caught:
        load(str(tmp_path))
    assert "a/b/c/1.png" in str(caught.value)
    assert "z/b" not in str(caught.value)
