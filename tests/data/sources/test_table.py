"""Tables of a user's own: CSV and Parquet files, pandas DataFrames."""

import gzip
import sys

import numpy as np
import pytest

import fedmom
from fedmom.core.errors import FedMomError
from fedmom.data import load
from fedmom.data.sources import table
from fedmom.data.sources.arrays import from_arrays

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 60


def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "user": [f"{k:03d}" for k in rng.integers(0, 5, ROWS)],
            "height": rng.normal(size=ROWS).astype(np.float32),
            "age": rng.integers(0, 90, ROWS),
            "ill": rng.choice(["no", "yes", "perhaps"], ROWS),
            "held_out": rng.random(ROWS) < 0.3,
        }
    )


def as_csv(tmp_path, content):
    content.to_csv(tmp_path / "t.csv", index=False)
    return fedmom.from_csv, tmp_path / "t.csv"


def as_gzip(tmp_path, content):
    text = content.to_csv(index=False, sep="\t").encode()
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(text))
    return fedmom.from_csv, tmp_path / "t.tsv.gz"


def as_parquet(tmp_path, content):
    content.to_parquet(tmp_path / "t.parquet", row_group_size=7)
    return fedmom.from_parquet, tmp_path / "t.parquet"


def as_frame(_, content):
    return fedmom.from_dataframe, content.set_index(np.arange(len(content))[::-1])


KINDS = {"csv": as_csv, "gzip": as_gzip, "parquet": as_parquet, "frame": as_frame}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def assert_same(one, two):
    assert list(one.users) == list(two.users)
    assert (one.features, one.class_names) == (two.features, two.class_names)
    for name in ("x", "y"):
        assert one.arrays[name].dtype == two.arrays[name].dtype
        np.testing.assert_array_equal(one.arrays[name], two.arrays[name])
    np.testing.assert_array_equal([*one.train, *one.test], [*two.train, *two.test])


@kinds
def test_a_table_is_the_same_as_its_arrays(kind, tmp_path):
    f = frame()
    read, source = kind(tmp_path, f)
    expected = from_arrays(
        np.column_stack([f["height"], f["age"]]).astype(np.float32),
        f["ill"].to_numpy(object),
        f["user"].to_numpy(object),
        is_test=f["held_out"].to_numpy(),
    )
    assert_same(read(source, client="user", label="ill", test="held_out"), expected)
    some = {"client": "user", "label": "ill", "test_fraction": 0.25, "seed": 3}
    one = read(source, features="height+age", **some)
    assert_same(one, read(source, features=["height", "age"], **some))
    x, y, ids = (expected_part for expected_part in (f[["height", "age"]], f["ill"], f["user"]))
    other = from_arrays(
        x.to_numpy(np.float32), y.to_numpy(object), ids.to_numpy(object), test_fraction=0.25, seed=3
    )
    assert_same(one, other)


@kinds
def test_whole_numbers_stay_whole_and_rows_can_be_dealt(kind, tmp_path):
    f = frame()
    read, source = kind(tmp_path, f)
    spec = "dirichlet:alpha=0.3,clients=4"
    data = read(source, label="ill", features="age", partition=spec, seed=2)
    expected = from_arrays(
        f["age"].to_numpy()[:, None], f["ill"].to_numpy(object), partition=spec, seed=2
    )
    assert data.arrays["x"].dtype == np.int32
    assert_same(data, expected)


@kinds
def test_several_columns_are_several_labels(kind, tmp_path):
    f = frame().assign(a=lambda d: d["age"] > 30, b=lambda d: d["age"] > 60)
    read, source = kind(tmp_path, f)
    data = read(source, client="user", label="a+b", features="height")
    assert (data.features.task, data.features.classes, data.class_names) == (
        "multilabel",
        2,
        ("a", "b"),
    )
    data = read(source, client="user", label=["height", "age"], features="a")
    assert (data.features.task, data.features.classes) == ("regression", 2)


@kinds
def test_ids_that_look_like_numbers_are_kept_apart(kind, tmp_path):
    read, source = kind(tmp_path, pd.DataFrame({"u": ["7", "007", "10"], "a": 1.5, "y": [0, 1, 1]}))
    assert list(read(source, client="u", label="y").users) == ["007", "10", "7"]
    read, source = kind(tmp_path, pd.DataFrame({"u": ["7", "2", "10"], "a": 1.5, "y": [0, 1, 1]}))
    assert list(read(source, client="u", label="y").users) == ["2", "7", "10"]


def test_columns_of_lists_are_inputs_and_labels(tmp_path):
    rows = {"u": ["a", "b"], "tokens": [[1, 2, 3], [4, 5, 6]], "tags": [[0, 9, 1], [1, 1, 1]]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    data = fedmom.from_parquet(tmp_path / "t.parquet", client="u", label="tags")
    assert data.features[:] == ("vector", (3,), 10, "sequence")
    np.testing.assert_array_equal(data.arrays["x"], rows["tokens"])
    pixels = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12, dtype=np.uint8)), 2)
    pixels = pa.FixedSizeListArray.from_arrays(pixels, 3)
    pq.write_table(pa.table({"u": [1, 2], "p": pixels, "y": [0, 1]}), tmp_path / "p.parquet")
    data = fedmom.from_parquet(tmp_path / "p.parquet", client="u", label="y")
    assert (data.features.kind, data.arrays["x"].dtype) == ("image", np.uint8)
    np.testing.assert_array_equal(data.arrays["x"], np.arange(12).reshape(2, 3, 2))


def test_categories_are_texts_and_decimals_are_floats():
    from decimal import Decimal

    f = pd.DataFrame({"u": pd.Categorical(["b", "a"]), "a": [Decimal("1.5"), Decimal(2)]})
    data = fedmom.from_dataframe(f.assign(y=pd.Categorical(["n", "m"])), client="u", label="y")
    assert (list(data.users), data.class_names) == (["a", "b"], ("m", "n"))
    np.testing.assert_array_equal(data.arrays["x"], [[2], [1.5]])


U = {"client": "u", "label": "y"}
BAD = {
    "no client": ("u,a,y\n1,2,0\n,3,1\n", U, "client column 'u' has no value in row 1"),
    "no value": (
        "u,a,y\n1,2,0\n2,,1\n3,,1\n",
        U,
        "'a' has no value in row 1 .*1 other row has the same",
    ),
    "no label": ("u,a,y\n1,2,0\n2,3,\n", U, "column 'y' has no value in row 1"),
    "a text": ("u,a,y\n1,2,0\n2,x,1\n", U, "column 'a': the value of row 1 is 'x'.*features="),
    "not a number": ("u,a,y\n1,2,0\n2,nan,1\n", U, "the value of row 1 is nan"),
    "a large number": ("u,a,y\n1,2,0\n2,1e300,1\n", U, r"the value of row 1 is 1e\+300"),
    "a large token": ("u,a,y\n1,2,0\n2,3000000000,1\n", U, "a whole number of 32 bits"),
    "a date": ("u,a,y\n1,2024-01-02,0\n", U, "column 'a' is of type date32"),
    "a short row": ("u,a,y\n1,2,0\n2,3\n", U, "Row #3: Expected 3 columns, got 2"),
    "a long row": ("u,a,y\n1,2,0\n2,3,4,5\n", U, "Row #3: Expected 3 columns, got 4"),
    "semicolons": ("u;a;y\n1;2;0\n", U, "separated by commas"),
    "two of a name": ("u,a,a,y\n1,2,0,1\n", U, "two columns called 'a'"),
    "nothing": ("", U, "Empty CSV"),
    "no rows": ("u,a,y\n", U, "has no rows"),
    "no column": ("u,a,yy\n1,2,3\n", U, "no column in t.csv called 'y'.*Choose one of: u, a, yy"),
    "no inputs": ("u,y\n1,2\n", U, "no column left for the inputs"),
    "twice": ("u,a,y\n1,2,3\n", {**U, "features": "a+u"}, "'u' is named twice"),
    "no clients": ("u,a,y\n1,2,3\n", {"label": "y"}, "no client IDs given"),
    "both": ("u,a,y\n1,2,3\n", {**U, "partition": "iid"}, "Give one of the two"),
    "a mark": ("u,a,y,t\n1,2,3,maybe\n", {**U, "test": "t"}, "is_test of row 0 is 'maybe'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_named(tmp_path, case):
    text, options, says = BAD[case]
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(FedMomError, match=says):
        fedmom.from_csv(tmp_path / "t.csv", **options)


@pytest.mark.parametrize("marks", ["test train Test", "1 0 1", "true false true"])
def test_marks_may_be_words(tmp_path, marks):
    first, second, third = marks.split()
    text = f"u,a,y,t\na,1,0,{second}\na,2,1,{first}\na,3,1,{third}\n"
    (tmp_path / "t.csv").write_text(text)
    data = fedmom.from_csv(tmp_path / "t.csv", client="u", label="y", test="t")
    assert (data.train.size.tolist(), data.test.size.tolist()) == ([1], [2])


def test_mixed_columns_of_a_frame_are_refused():
    f = pd.DataFrame({"u": ["a", "b"], "a": [1, "x"], "y": [0, 1]})
    with pytest.raises(FedMomError, match="column 'a'"):
        fedmom.from_dataframe(f, client="u", label="y")
    f = pd.DataFrame({"u": [1, "1"], "a": [1, 2], "y": [0, 1]})
    with pytest.raises(FedMomError, match="column 'u'"):
        fedmom.from_dataframe(f, client="u", label="y")
    f = pd.DataFrame({"u": ["a", "b"], "a": [1, None], "y": [0, 1]})
    with pytest.raises(FedMomError, match="column 'a' has no value in row 1"):
        fedmom.from_dataframe(f, client="u", label="y")


def test_lists_of_different_lengths_are_refused(tmp_path):
    rows = {"u": ["a", "b"], "x": [[1, 2, 3], [4, 5]], "y": [0, 1]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    with pytest.raises(FedMomError, match="length of the list of row 1 is 2"):
        fedmom.from_parquet(tmp_path / "t.parquet", client="u", label="y")


def test_a_table_too_large_for_the_machine_is_refused(tmp_path, monkeypatch):
    _, path = as_csv(tmp_path, frame())
    monkeypatch.setattr("fedmom.core.validation.machine_memory", lambda: 1000)
    with pytest.raises(FedMomError, match=r"t\.csv with 5 columns needs at least 0\.0 GB"):
        fedmom.from_csv(path, client="user", label="ill")
    _, path = as_parquet(tmp_path, frame().loc[[0] * 200])
    with pytest.raises(FedMomError, match=r"t\.parquet needs at least 0\.0 GB"):
        fedmom.from_parquet(path, client="user", label="ill")


def test_a_long_text_in_many_rows_is_read_once(tmp_path):
    """A file of a few kilobytes, whose column would have 20 GB."""
    text = pa.array(["x" * 1_000_000])
    many = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), text)
    column = pa.table({"u": many, "a": np.ones(20_000, np.float32), "y": np.ones(20_000, int)})
    pq.write_table(column, tmp_path / "t.parquet")
    data = fedmom.from_parquet(tmp_path / "t.parquet", client="u", label="y")
    assert (data.clients, len(data.users[0])) == (1, 1_000_000)
    data = fedmom.from_parquet(tmp_path / "t.parquet", label="u", partition="iid:clients=1")
    assert [len(name) for name in data.class_names] == [1_000_000]


def test_without_pyarrow_it_says_what_to_install(tmp_path, monkeypatch):
    _, path = as_csv(tmp_path, frame())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for read in (fedmom.from_csv, fedmom.from_parquet):
        with pytest.raises(FedMomError, match=r"needs pyarrow: pip install 'fedmom\[pandas\]'"):
            read(path, client="user", label="ill")


@pytest.mark.parametrize("kind", [as_csv, as_parquet])
def test_a_path_with_options_is_a_dataset(tmp_path, kind, monkeypatch):
    read, path = kind(tmp_path, frame())
    data = load(f"{path}:client=user,label=ill,features=height+age,test_fraction=0.5,seed=7")
    options = {"features": "height+age", "test_fraction": 0.5, "seed": 7}
    assert_same(data, read(path, client="user", label="ill", **options))
    monkeypatch.setattr(table, kind.__name__.replace("as_", "_"), None)  # packed by now
    again = load(f"{path}:client=user,label=ill,features=height+age,test_fraction=0.5,seed=7")
    assert again.checksum == data.checksum


def test_texts_that_are_no_utf8_are_refused(tmp_path):
    bad = pa.array([b"ann", b"b\xa0b"]).view(pa.string())
    pq.write_table(pa.table({"u": bad, "a": [1, 2], "y": [0, 1]}), tmp_path / "t.parquet")
    with pytest.raises(FedMomError, match=r"t\.parquet cannot be read: .*UTF8"):
        fedmom.from_parquet(tmp_path / "t.parquet", client="u", label="y")
