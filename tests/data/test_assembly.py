"""What all readers of a user's own data share: ids, labels, test rows, partitions."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmom import from_arrays
from fedmom.core.errors import FedMomError
from fedmom.data.batches import reader
from fedmom.data.partition import dealt, partition
from fedmom.data.sources.arrays import from_npz


def numbered(rows, columns=2):
    """Inputs whose first value is the number of the row."""
    return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) * 1.0


def rows_of(data, split, client):
    """The numbers of a client's rows, from inputs made by ``numbered``."""
    start, size = (int(c[client]) for c in data.split(split))
    return (data.arrays["x"][start : start + size, 0] / data.features.shape[0]).astype(int).tolist()


@given(
    ids=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 9),
)
def test_a_test_fraction_is_that_of_every_client(ids, fraction, seed):
    data = from_arrays(numbered(len(ids)), [0] * len(ids), ids, test_fraction=fraction, seed=seed)
    for k, user in enumerate(data.users):
        own = [row for row, i in enumerate(ids) if str(i) == user]
        assert sorted(rows_of(data, "train", k) + rows_of(data, "test", k)) == own
        assert data.test.size[k] == min(round(fraction * len(own)), len(own) - 1)


def test_a_test_fraction_is_drawn_with_the_seed():
    def drawn(seed):
        data = from_arrays(numbered(50), [0] * 50, [0] * 50, test_fraction=0.3, seed=seed)
        return rows_of(data, "test", 0)

    assert drawn(0) == drawn(0) != drawn(1)
    assert drawn(0) != list(range(15))


def test_a_partition_makes_the_clients_that_it_names():
    y = np.arange(60) % 3
    data = from_arrays(numbered(60), y, partition="dirichlet:alpha=0.3,clients=6", seed=4)
    expected = partition("dirichlet:alpha=0.3,clients=6", y, 4)
    assert [rows_of(data, "train", k) for k in range(6)] == [
        np.flatnonzero(expected == k).tolist() for k in range(6)
    ]
    assert list(data.users) == [f"client{k}" for k in range(6)]


def test_test_rows_follow_their_labels():
    y = np.repeat([0, 1], 40)
    is_test = np.arange(80) % 4 == 0
    data = from_arrays(numbered(80), y, is_test=is_test, partition="shards:clients=2,per_client=1")
    for k in range(2):
        labels = {split: set(y[rows_of(data, split, k)]) for split in ("train", "test")}
        assert len(labels["train"]) == 1
        assert labels["test"] == labels["train"]


@pytest.mark.parametrize("spec", ["iid:clients=3", "quantity:clients=3"])
def test_data_without_classes_is_dealt_by_chance(spec):
    data = from_arrays(numbered(30), np.linspace(0, 1, 30), partition=spec, test_fraction=0.2)
    found = [r for k in range(3) for s in ("train", "test") for r in rows_of(data, s, k)]
    assert sorted(found) == list(range(30))


@pytest.mark.parametrize("spec", ["dirichlet:clients=3", "shards:clients=3"])
def test_data_without_classes_is_not_dealt_by_class(spec):
    with pytest.raises(FedMomError, match=r"labels are not classes. Use iid or quantity"):
        dealt(spec, None, np.zeros(30, bool))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "no client IDs given"),
        ({"client_ids": [0, 1, 2], "partition": "iid:clients=2"}, "Give one of the two"),
        ({"client_ids": [0] * 3, "test_fraction": 0.5, "is_test": [0, 0, 1]}, "already marked"),
        ({"client_ids": [0] * 3, "test_fraction": 0}, "above 0 and below 1"),
        ({"client_ids": [0] * 3, "test_fraction": float("nan")}, "above 0 and below 1"),
        ({"client_ids": [0] * 3, "test_fraction": 0.5, "seed": -1}, "seed=-1"),
        ({"client_ids": [0, 1]}, r"but x has 3, y has 3, client_ids has 2\.$"),
        ({"partition": "dirichlett"}, "Did you mean 'dirichlet'"),
        ({"client_ids": [0] * 3, "task": "ranking"}, "no task 'ranking'. Choose one of: classes"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, says):
    with pytest.raises(FedMomError, match=says):
        from_arrays(numbered(3), [0, 1, 0], **options)


def objects(*values):
    return np.array(values, object)


@pytest.mark.parametrize(
    ("ids", "users"),
    [
        ([10, 2, 10], ["2", "10"]),
        (["10", "2", "10"], ["10", "2"]),
        (["b", "a\0", "a"], ["a", "a\0", "b"]),
        ([True, 1, True], ["1", "True"]),
        ([2**70, 2**70 + 1, -1], ["-1", str(2**70), str(2**70 + 1)]),
        (objects(7, 10, 7), ["7", "10"]),
        (objects("x", 10, 7), ["10", "7", "x"]),
        ([True, False, True], ["False", "True"]),
        (np.array([b"b", b"a", b"b"]), ["a", "b"]),
        (np.array(["b", "a", "b"], np.dtypes.StringDType()), ["a", "b"]),
    ],
)
def test_ids_are_names_in_sorted_order(ids, users):
    data = from_arrays(numbered(3), [0, 1, 0], ids)
    assert list(data.users) == users
    texts = [v.decode() if isinstance(v, bytes) else str(v) for v in ids]
    for k, user in enumerate(users):
        assert rows_of(data, "train", k) == [row for row, t in enumerate(texts) if t == user]


NAN = float("nan")
GIVEN = {
    "a masked value": (np.ma.array([5, 6, 7], mask=[0, 1, 0]), "row 1 has a masked value"),
    "masked rows": ([np.ma.array([1, 2], mask=[0, 1])] * 3, "row 0 has a masked value .*2 other"),
    "masked inside": ([[np.ma.array([1], mask=[1])]] * 3, "row 0 has a masked value"),
    "one masked": ([5, np.ma.masked, 7], "row 1 has a masked value"),
    "NaN between texts": (["a", NAN, "b"], "row 1 is nan"),
    "NaN made a text": (np.array(["a", NAN, "b"]), "row 1 is 'nan'.*NumPy makes 'nan'"),
    "none": (["a", None, "b"], "row 1 is None"),
    "a set": ({1, 2, 3}, r"is \{1, 2, 3\}. It must be an array or a list"),
    "a generator": (iter([1, 2, 3]), "of type list_iterator. It must be"),
    "a dict": ({0: 1}, r"is \{0: 1\}. It must be"),
    "a text": ("abc", "is 'abc'. It must be"),
    "a number": (3, "is 3. It must be"),
    "no dimensions": (np.float32(3), "must have one item for every row"),
    "dates": (np.array(["2020-01-01"] * 3, "M8[D]"), "of type datetime64"),
    "a record": (np.zeros(3, [("a", int)]), "of type .*'a'"),
    "complex": (np.array([1j, 0, 1]), "of type complex128"),
    "ragged": ([[1, 2], [3], [4, 5]], r"row 1 has the shape \(1,\), and row 0 has \(2,\)"),
    "ragged objects": (objects([1, 2], [3], [4, 5]), r"row 1 has the shape \(1,\)"),
    "too few": ([1, 2], "numbers of rows must be equal"),
    "none at all": ([], "numbers of rows must be equal"),
}


@pytest.mark.parametrize("argument", ["x", "y", "client_ids", "is_test"])
@pytest.mark.parametrize("case", GIVEN)
def test_what_is_no_row_for_everyone_is_refused_in_every_argument(case, argument):
    value, says = GIVEN[case]
    given = {"x": numbered(3), "y": [0, 1, 0], "client_ids": [0] * 3, argument: value}
    if argument == "is_test":
        says = f"{says}|is_test of row|must be a list, each"
    with pytest.raises(FedMomError, match=says):
        from_arrays(**given)


@pytest.mark.parametrize("argument", ["x", "y", "client_ids"])
def test_sparse_matrices_are_refused(argument):
    sparse = pytest.importorskip("scipy.sparse")
    given = {"x": numbered(3), "y": [0, 1, 0], "client_ids": [0] * 3}
    with pytest.raises(FedMomError, match=rf"{argument} is a sparse csr_array. .*\.toarray\(\)"):
        from_arrays(**{**given, argument: sparse.csr_array(np.eye(3))})


@pytest.mark.parametrize("argument", ["y", "client_ids"])
@pytest.mark.parametrize("kind", ["Int64", "boolean", "string", "category"])
def test_missing_values_of_pandas_are_refused(argument, kind):
    pd = pytest.importorskip("pandas")
    values = [True, None, True] if kind == "boolean" else [1, None, 2]
    series = pd.Series(values if kind != "string" else ["a", None, "b"], dtype=kind)
    given = {"x": numbered(3), "y": [0, 1, 0], "client_ids": [0] * 3, argument: series}
    with pytest.raises(FedMomError, match=r"row 1 is (nan|<NA>)"):
        from_arrays(**given)


class Tensor:
    """As torch's: NumPy can have it only when it is detached, on the CPU, and not bfloat16."""

    def __init__(self, values, steps=("detach", "cpu")):
        self.values, self.steps = values, steps

    def __getattr__(self, name):
        if name != "float" and name not in ("detach", "cpu"):
            raise AttributeError(name)
        return lambda: Tensor(self.values, tuple(s for s in self.steps if s != name))

    def numpy(self):
        if self.steps:
            raise TypeError(f"cannot convert: {self.steps}")
        return np.asarray(self.values)

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("cannot convert")


@pytest.mark.parametrize("steps", [("detach", "cpu"), ("detach", "cpu", "float")])
def test_tensors_are_taken_from_wherever_they_are(steps):
    tensors = [Tensor([1.0, 2.0], steps) for _ in range(3)]
    data = from_arrays(tensors, Tensor([0, 1, 0], ("detach", "cpu")), partition="iid:clients=1")
    np.testing.assert_array_equal(data.arrays["x"], [[1, 2]] * 3)
    np.testing.assert_array_equal(np.sort(data.arrays["y"]), [0, 0, 1])
    half = jnp.array([[0.5], [1], [2]], jnp.bfloat16)
    data = from_arrays(half, [0, 1, 0], [0] * 3)
    np.testing.assert_array_equal(data.arrays["x"], [[0.5], [1], [2]])


def test_names_of_clients_need_their_numbers():
    with pytest.raises(FedMomError, match="users are the names of client_ids"):
        from_arrays(numbered(3), [0, 1, 0], partition="iid:clients=1", users=["ann"])


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([1, "1", 2], r"1 and '1' \(row 1\) would have one name"),
        ([1, 1.0, 2], "client id of row 1 is 1.0"),
        ([2**63, -1, 2.0], "client id of row 2 is 2.0"),
        (objects(1, "1", 2), r"1 and '1' \(row 1\) would have one name"),
        (objects(True, "True", 2), "would have one name"),
        (objects("a", None, "a"), "client id of row 1 is None"),
        (objects("a", float("nan"), "a"), "client id of row 1 is nan"),
        ([0, float("nan"), 1], "client id of row 1 is nan"),
        ([[0], [1], [2]], "2 dimensions"),
        (["a", "\ud800", "a"], "UTF-8"),
        (objects("a", ("b",), "a"), r"client id of row 1 is \('b',\)"),
    ],
)
def test_ids_that_are_none_are_refused_with_their_row(ids, says):
    with pytest.raises(FedMomError, match=says):
        from_arrays(numbered(3), [0, 1, 0], ids)


VALUES, MARKS = [[0.5, 1], [2, 3], [4, 5]], [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
TAGS = [["b", "a"], ["a", "a"], ["c", "b"]]
LABELS = {
    "numbers": ([1, 0, 1], "classes", 2, None, [1, 0, 1]),
    "numbers from 1": ([1, 3, 2], "classes", 3, ("1", "2", "3"), [0, 2, 1]),
    "numbers with a gap": ([2, 0, 2], "classes", 2, ("0", "2"), [1, 0, 1]),
    "large numbers": ([2**40, 7, 7], "classes", 2, ("7", str(2**40)), [1, 0, 0]),
    "one number": ([4, 4, 4], "classes", 1, ("4",), [0, 0, 0]),
    "negative ones": ([1, -1, 1], "classes", 2, ("-1", "1"), [1, 0, 1]),
    "texts": (["dog", "cat", "dog"], "classes", 2, ("cat", "dog"), [1, 0, 1]),
    "texts of Python": (objects("b", "a", "b"), "classes", 2, ("a", "b"), [1, 0, 1]),
    "bools": ([True, False, True], "classes", 2, ("False", "True"), [1, 0, 1]),
    "floats": ([0.5, -1, 3], "regression", 1, None, [[0.5], [-1], [3]]),
    "several floats": (VALUES, "regression", 2, None, VALUES),
    "0 and 1": (MARKS, "multilabel", 3, None, MARKS),
    "a matrix of bools": (np.eye(3, 2, dtype=bool), "multilabel", 2, None, np.eye(3, 2)),
    "positions": ([[4, 0], [1, 2], [3, 3]], "sequence", 5, None, [[4, 0], [1, 2], [3, 3]]),
    "texts at positions": (TAGS, "sequence", 3, ("a", "b", "c"), [[1, 0], [0, 0], [2, 1]]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_what_they_look_like(kind):
    y, task, classes, names, expected = LABELS[kind]
    data = from_arrays(numbered(3), y, ["a", "a", "a"])
    assert (data.features.task, data.features.classes) == (task, classes)
    assert data.class_names == names
    _, read = reader(data.features)(data.arrays, jnp.arange(3))
    assert read.dtype == (jnp.float32 if task == "regression" else jnp.int32)
    np.testing.assert_array_equal(read, expected)


def test_a_task_that_is_given_counts():
    x = numbered(2)
    assert from_arrays(x, [1.0, 0.0], [0, 0], task="classes").features.classes == 2
    assert from_arrays(x, [1, 0], [0, 0], task="regression").arrays["y"].dtype == np.float32
    binary = [[0, 1], [1, 1]]
    assert from_arrays(x, binary, [0, 0], task="sequence").features.classes == 2
    assert from_arrays(x, binary, [0, 0], task="multilabel").features.task == "multilabel"
    vectors = np.zeros((2, 5, 3))
    data = from_arrays(vectors, [[0] * 5, [2] * 5], [0, 0])
    assert data.features[:] == ("vector", (5, 3), 3, "sequence")


@pytest.mark.parametrize(
    ("y", "task", "says"),
    [
        ([[0, 1], [1, 1]], None, "may be several things"),
        ([[0], [1]], None, "may be several things"),
        ([[3, 1, 2], [0, 1, 2]], None, "may be several things"),
        ([0.5, 1], "classes", "label of row 0 is 0.5.*a whole number"),
        ([1e300, 1], "classes", "label of row 0 is 1e"),
        ([float("nan"), 1], "classes", "label of row 0 is nan"),
        ([1e300, 1], "regression", "label of row 0 is 1e"),
        (["a", "b"], "regression", "are not numbers"),
        ([["a", "b"], ["a", "a"]], "multilabel", "are not 0 and 1"),
        ([[0, 1], [1, 2]], "multilabel", "label of row 1, column 1 is 2.*0 or 1"),
        ([0, 1], "multilabel", r"shape \(2,\); task multilabel needs \(2, labels\)"),
        ([[0, 1, 1], [1, 2, 0]], "sequence", r"needs \(2, 2\), a class at every position"),
        ([[0, 1], [1, 2]], "classes", r"shape \(2, 2\); task classes needs \(2,\)"),
        (objects("a", None), None, "labels: row 1 is None"),
        (
            objects("a", 1),
            None,
            "row 1 is 1, and row 0 is 'a'.*Make all of them numbers, or all of them texts",
        ),
        (np.array([1 + 2j, 0]), None, "type complex128"),
        ([[0, 1], [1]], None, "cannot be made an array"),
        (["a", float("nan")], None, "labels: row 1 is nan"),
        ([True, 1], None, "row 0 is True, and row 1 is 1"),
        ([1, "1"], None, "row 0 is 1, and row 1 is '1'"),
        ([["a", "b"], ["a", 1]], "sequence", "row 1 is 1, and row 0 is 'a'"),
        ([2**63, -1], None, "more than 64 bits"),
        ([2**70, 1], None, "more than 64 bits"),
        (["a", "\ud800"], None, "UTF-8"),
    ],
)
def test_labels_that_are_none_are_refused(y, task, says):
    with pytest.raises(FedMomError, match=says):
        from_arrays(numbered(2), y, [0, 0], task=task)


def test_a_long_text_does_not_make_all_labels_long():
    """As a NumPy array of texts of one length, these would need 40 GB."""
    y = np.array(["x" * 1_000_000] + ["y"] * 9_999, object)
    data = from_arrays(np.zeros((10_000, 1)), y, np.zeros(10_000, int))
    assert [len(name) for name in data.class_names] == [1_000_000, 1]


@pytest.mark.parametrize("text", [False, True])
def test_an_npz_file_needs_only_inputs_and_labels(tmp_path, text):
    path = tmp_path / "own.npz"
    np.savez(path, x=numbered(6), y=np.array(["no", "yes"] * 3))
    data = from_npz(path, partition="iid:clients=2", test_fraction=0.4)
    assert (data.clients, data.test.size.tolist(), data.class_names) == (2, [1, 1], ("no", "yes"))
    user = np.array(["b", "a"] * 3 if text else [11, 7] * 3)
    np.savez(path, x=numbered(6), y=np.arange(6) % 2, user=user)
    data = from_npz(path)
    assert list(data.users) == (["a", "b"] if text else ["7", "11"])
    assert rows_of(data, "train", 0) == [1, 3, 5]
