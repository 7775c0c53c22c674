"""Columns of categories: each category becomes an input of 0 and 1, and is kept in the schema."""

import numpy as np
import pytest
from click.testing import CliRunner

import fedmom
from fedmom import FedMomError
from fedmom.cli.main import cli
from fedmom.data.given import conformed, inputs_for
from fedmom.data.schema import Schema, common

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

CITIES, ZIPS = ["Rome", "Bern", "Rome", "Oslo"], ["007", "7", "7", "10"]
FRAME = pd.DataFrame(
    {
        "age": [31, 54, 20, 43],
        "city": CITIES,
        "zip": ZIPS,
        "member": [True, False, False, True],
        "ill": ["no", "yes", "no", "yes"],
        "user": ["a", "b", "a", "b"],
    }
)
NAMED = {"client": "user", "label": "ill", "categories": ["city", "zip"]}
# By client: rows 0, 2, 1, 3. Bern, Oslo, Rome and 007, 10, 7.
EXPECTED = [
    [31, 0, 0, 1, 1, 0, 0, 1],
    [20, 0, 0, 1, 0, 0, 1, 0],
    [54, 1, 0, 0, 0, 0, 1, 0],
    [43, 0, 1, 0, 0, 1, 0, 1],
]
READERS = ["csv", "parquet", "frame", "huggingface"]


def read(kind, folder, frame=FRAME, **named):
    """Read a frame from wherever."""
    if kind == "csv":
        frame.to_csv(folder / "t.csv", index=False)
        return fedmom.from_csv(folder / "t.csv", **named)
    if kind == "parquet":
        frame.to_parquet(folder / "t.parquet")
        return fedmom.from_parquet(folder / "t.parquet", **named)
    if kind == "frame":
        return fedmom.from_dataframe(frame, **named)
    datasets = pytest.importorskip("datasets")
    return fedmom.from_huggingface(datasets.Dataset.from_pandas(frame), **named)


@pytest.mark.parametrize("kind", READERS)
def test_categories_become_inputs_of_0_and_1(kind, tmp_path):
    data = read(kind, tmp_path, **NAMED)
    np.testing.assert_array_equal(data.arrays["x"], EXPECTED)
    assert (data.arrays["x"].dtype, data.features.shape) == (np.float32, (8,))
    columns = data.columns.inputs
    assert columns[1] == ("city", "category", ("Bern", "Oslo", "Rome"))
    assert columns[2] == ("zip", "category", ("007", "10", "7"))
    assert (columns[0], columns[3]) == (("age", "number", ()), ("member", "bool", ()))
    schema = Schema.of(data)
    assert Schema.from_json(schema.to_json(), "here") == schema


def test_categories_of_pandas_are_known():
    """Also those that no row has, in the order of the type; whole numbers are categories, too."""
    kind = pd.CategoricalDtype(["Rome", "Lima", "Bern", "Oslo"])
    frame = FRAME.assign(city=FRAME.city.astype(kind), zip=pd.Categorical([2, 1, 1, 10]))
    data = fedmom.from_dataframe(frame, client="user", label="ill", features=["city", "zip"])
    assert [column.categories for column in data.columns.inputs] == [
        ("Rome", "Lima", "Bern", "Oslo"),
        ("1", "2", "10"),
    ]
    expected = [[1, 0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 1, 0, 0], [0, 0, 1, 0, 1, 0, 0]]
    np.testing.assert_array_equal(data.arrays["x"], [*expected, [0, 0, 0, 1, 0, 0, 1]])
    by_label = fedmom.from_dataframe(frame, client="city", label="zip", features="age")
    assert by_label.columns.inputs == (("age", "number", ()),)


def test_whole_numbers_are_categories_where_asked():
    data = fedmom.from_dataframe(
        FRAME, client="user", label="ill", features="age", categories="age"
    )
    assert data.columns.inputs[0].categories == ("20", "31", "43", "54")
    assert data.arrays["x"].argmax(1).tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"categories": None}, "column 'city': the value of row 0 is 'Rome'.*in categories=, or"),
        ({"categories": "town"}, "categories names 'town', which is not a column of inputs"),
        ({"categories": "ill"}, "categories names 'ill', which is not a column of inputs.*'city'"),
        ({"categories": ["city", "zip", "h"]}, "'h' cannot be categories: it holds float64"),
    ],
)
def test_what_cannot_be_categories_is_refused(options, says):
    with pytest.raises(FedMomError, match=says):
        fedmom.from_dataframe(FRAME.assign(h=0.5), **{**NAMED, **options})


def test_missing_and_too_many_categories_are_refused():
    with pytest.raises(FedMomError, match="column 'city' has no value in row 1"):
        fedmom.from_dataframe(FRAME.assign(city=["a", None, "b", "a"]), **NAMED)
    many = pd.DataFrame({"a": [f"n{k}" for k in range(1001)], "y": 0.5, "u": 1})
    with pytest.raises(FedMomError, match="has 1,001 different values, and 1,000 categories are"):
        fedmom.from_dataframe(many, client="u", label="y", categories="a")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("categories")
    FRAME.to_csv(folder / "train.csv", index=False)
    spec = f"{folder / 'train.csv'}:client=user,label=ill,categories=city+zip"
    options = {"rounds": 2, "lr": 1e-4, "clients_per_round": 2, "progress": False}
    return fedmom.run(spec, out=folder / "run", **options)


def test_predict_puts_categories_in_the_trained_order(run, tmp_path):
    """From frames with other columns first, fewer categories, numbers for texts; and from files."""
    x = np.array(EXPECTED, np.float32)
    expected = run.outputs(x)
    rows = FRAME.iloc[[0, 2, 1, 3]]
    for frame in (rows, rows[["zip", "member", "city", "age"]]):
        np.testing.assert_array_equal(run.outputs(frame), expected)
    other = rows.iloc[2:].assign(zip=[7, 10], city=pd.Categorical(["Bern", "Oslo"]))
    np.testing.assert_array_equal(run.outputs(other), expected[2:])
    data = read("csv", tmp_path, other[[*other.columns[::-1]]], **NAMED)
    assert data.features.shape == (6,)
    np.testing.assert_array_equal(conformed(data, run.schema).arrays["x"], x[2:])
    spec = f"{tmp_path / 't.csv'}:client=user,label=ill,categories=zip+city"
    done = CliRunner().invoke(cli, ["predict", str(run.path), spec, "--out", str(tmp_path / "p")])
    right = np.mean(run.predict(other) == other.ill)
    assert f"{right:.1%} of 2 labels are right" in done.output


def test_other_categories_are_refused(run, tmp_path):
    new = FRAME.assign(city=["Rome", "Lima", "Rome", "Lima"])
    says = r"column 'city': the value of row 1 is 'Lima' .*1 other row.*'Bern', 'Oslo', 'Rome'"
    with pytest.raises(FedMomError, match=says):
        run.predict(new)
    with pytest.raises(FedMomError, match=r"'city' has 'Lima' in 2 rows.*'Bern', 'Oslo', 'Rome'"):
        conformed(read("csv", tmp_path, new, **NAMED), run.schema)
    numbers = FRAME.assign(city=1)
    with pytest.raises(FedMomError, match="column 'city' holds numbers, and in training it held c"):
        conformed(read("frame", tmp_path, numbers, **{**NAMED, "categories": "zip"}), run.schema)


def test_data_with_other_categories_is_other_data():
    """Of devices, and of a run that is resumed."""
    one = Schema.of(fedmom.from_dataframe(FRAME, **NAMED))
    two = Schema.of(
        fedmom.from_dataframe(FRAME.assign(city=["Rome", "Lima", "Rome", "Oslo"]), **NAMED)
    )
    assert one.facts()["categories of the columns"] == "city: Bern, Oslo, Rome; zip: 007, 10, 7"
    assert one.facts() != two.facts()
    with pytest.raises(FedMomError, match="The data of a and of b do not look alike"):
        common({"a": one, "b": two})


def test_inputs_without_names_have_a_number_for_every_category():
    schema = Schema.of(fedmom.from_dataframe(FRAME, **NAMED))
    np.testing.assert_array_equal(inputs_for(schema, EXPECTED, print), EXPECTED)
    with pytest.raises(FedMomError, match=r"Give one input per row: \(inputs, 8\)"):
        inputs_for(schema, [[31, 1, 1, 1]], print)
