"""What was trained is what is predicted: inputs fit the training data's schema or are refused."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import fedmom
from fedmom.cli.main import cli
from fedmom.core.errors import FedMomError
from fedmom.data.schema import Schema

TASK = {"progress": False, "lr": 0.1, "clients_per_round": 2}
COLUMNS = ["u", "age", "w"]
OPTIONS = ":label=y,partition=iid:clients=4"


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    columns = {"u": rng.normal(size=300), "age": rng.random(300), "w": 3 * rng.normal(size=300)}
    found = pd.DataFrame(columns)
    return found.assign(y=np.where(2 * found.u - found.w + found.age > 1, "yes", "no"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("predictions")


@pytest.fixture(scope="module")
def table_run(folder, frame):
    frame.to_csv(folder / "train.csv", index=False)
    spec = f"{folder / 'train.csv'}{OPTIONS}"
    return fedmom.run(spec, rounds=20, local_steps=5, out=folder / "table", **TASK)


def predicted(run, path, options=OPTIONS):
    out = path.with_suffix(".predictions")
    args = ["predict", run.path, f"{path}{options}", "--out", out]
    done = CliRunner().invoke(cli, [str(arg) for arg in args])
    return str(done.exception) if done.exit_code else done.output


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_of_a_file_are_matched_by_name(table_run, frame, folder, ending):
    expected = (table_run.predict(frame[COLUMNS].to_numpy()) == frame.y).mean()
    assert expected > 0.9
    path, other = folder / f"other.{ending}", frame[["y", "w", "u", "age"]]
    other.to_parquet(path) if ending == "parquet" else other.to_csv(path, index=False)
    assert f"{expected:.1%} of 300 labels are right" in predicted(table_run, path)


def test_columns_of_a_frame_are_matched_by_name(table_run, frame):
    expected = table_run.outputs(frame[COLUMNS].to_numpy())
    for columns in (COLUMNS, ["w", "u", "age"], ["y", "age", "u", "w"]):  # the label is left out
        np.testing.assert_array_equal(table_run.outputs(frame[columns]), expected)
    shares = frame.astype({"u": "float32"}).convert_dtypes()
    np.testing.assert_allclose(table_run.outputs(shares), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: f.rename(columns={"age": "Age"}), "no column 'age'.*Did you mean 'Age'"),
        (lambda f: f.drop(columns="w"), "no column 'w', which the model was trained on"),
        (lambda f: f.assign(z=1.0), "the column 'z', which the model was not trained on"),
        (lambda f: f.assign(u=f.u > 0), "'u' holds true or false, and in training .* numbers"),
    ],
)
def test_other_columns_are_refused_by_name(table_run, frame, folder, change, sentence):
    other = change(frame)
    with pytest.raises(FedMomError, match=sentence):
        table_run.predict(other)
    other.to_csv(folder / "changed.csv", index=False)
    with pytest.raises(FedMomError, match=sentence):
        raise FedMomError(predicted(table_run, folder / "changed.csv"))


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (None, "x is None"),
        ("abc", "x is 'abc'"),
        ([], "shape"),
        (np.zeros((0, 3)), "no rows"),
        ([[1, 2, np.nan]], "row 0, column 2 is nan"),
        ([[1, -np.inf, 3]], "row 0, column 1 is -inf"),
        (np.ma.masked_array([[1.0, 2, 3]], [[0, 1, 0]]), "masked"),
        ([[1j, 2, 3]], "row 0 is 1j"),
        ([["a", "b", "c"]], "must hold numbers"),
        (np.array([[1, None, 3]], object), "row 0 is None"),
        ([[1, 2, 2**40]], "do not all fit 32 bits"),
        ([[1, 2], [3]], "cannot be made an array"),
        (np.zeros((2, 3), np.uint8), "x / 255"),
    ],
)
def test_inputs_that_are_not_numbers_of_the_model_are_refused(table_run, x, sentence):
    with pytest.raises(FedMomError, match=sentence):
        table_run.predict(x)


@pytest.mark.parametrize("dtype", [">i4", ">f8", "<f2", object, np.int64])
def test_numbers_of_all_types_are_the_same_inputs(table_run, dtype):
    x = np.arange(12).reshape(4, 3)
    expected = table_run.outputs(x.astype(np.float32))
    np.testing.assert_array_equal(table_run.outputs(x.astype(dtype)), expected)


@pytest.mark.parametrize("shape", [(6,), (12, 12)])
def test_bytes_are_scaled_as_in_training(folder, shape):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (40, *shape), dtype=np.uint8)
    data = fedmom.from_arrays(x, rng.integers(0, 2, 40), partition="iid:clients=4")
    out = folder / f"bytes{len(shape)}"
    run = fedmom.run(data, "logreg", rounds=3, local_steps=2, out=out, **TASK)
    (layer,) = run.params
    expected = (x / 255).reshape(40, -1) @ layer["w"] + layer["b"]
    for same in (x, x.astype(np.int64), x / 255):
        np.testing.assert_allclose(run.outputs(same), expected, rtol=1e-4, atol=1e-5)
    for other in (x.astype(float), -x.astype(np.int32), x.astype(np.int32) + 256):
        with pytest.raises(FedMomError, match="from 0 to"):
            run.outputs(other)


def test_whole_numbers_stay_whole(folder):
    x = np.random.default_rng(1).integers(-9, 1000, (40, 3))
    data = fedmom.from_arrays(x, np.arange(40) % 2, partition="iid:clients=4")
    run = fedmom.run(data, "logreg", rounds=2, out=folder / "whole", **(TASK | {"lr": 1e-5}))
    expected = run.outputs(x)
    np.testing.assert_array_equal(run.outputs(x.astype(float)), expected)
    with pytest.raises(FedMomError, match=r"row 0, column 0 is .*a whole number"):
        run.outputs(x + 0.5)
    with pytest.warns(UserWarning, match="columns have no names"):
        run.outputs(pd.DataFrame(x, columns=["a", "b", "c"]))


def test_a_run_remembers_its_schema(table_run, frame, folder):
    """The file may change; what the model was trained on does not."""
    file = table_run.path / "schema.json"
    assert Schema.from_json(file.read_bytes(), "") == table_run.schema
    spec, columns = f"{folder / 'moved.csv'}{OPTIONS}", ["w", "u", "age"]
    frame.to_csv(folder / "moved.csv", index=False)
    run = fedmom.run(spec, rounds=3, out=folder / "moved", **TASK)
    expected = run.outputs(frame)
    frame[[*columns, "y"]].to_csv(folder / "moved.csv", index=False)
    again = fedmom.load(run.path)
    np.testing.assert_array_equal(again.outputs(frame[columns]), expected)
    with pytest.raises(FedMomError, match="columns of the data was u, age, w and is w, u, age"):
        again.resume(progress=False)
    (run.path / "schema.json").unlink()  # as in folders of earlier versions
    assert [c.name for c in fedmom.load(run.path).schema.columns.inputs] == columns
    (run.path / "schema.json").write_text("{}")
    with pytest.raises(FedMomError, match=r"schema\.json is damaged"):
        fedmom.load(run.path).predict(frame)


def test_renamed_columns_are_another_data(frame, folder):
    data, other = (
        fedmom.from_dataframe(f, label="y", partition="iid:clients=4")
        for f in (frame, frame.rename(columns={"u": "v"}))
    )
    stop = [lambda event: event.round == 1]
    run = fedmom.run(data, rounds=2, out=folder / "renamed", callbacks=stop, **TASK)
    with pytest.raises(FedMomError, match="columns of the data was u, age, w and is v, age, w"):
        fedmom.resume(run.path, data=other, progress=False)
    assert fedmom.resume(run.path, data=data, progress=False).status == "finished"


def test_an_exported_model_has_its_schema(table_run, folder):
    made = table_run.export(folder / "exported")
    assert (made / "schema.json").read_bytes() == (table_run.path / "schema.json").read_bytes()
    card = (made / "README.md").read_text()
    assert "| columns | 'u', 'age', 'w' |" in card
    assert "| names of outputs | 'no', 'yes' |" in card


def test_a_run_on_arrays_is_exported_from_python(frame, folder):
    data = fedmom.from_dataframe(frame, label="y", partition="iid:clients=4")
    run = fedmom.run(data, rounds=1, out=folder / "arrays", **TASK)
    assert (fedmom.load(run.path, data=data).export() / "model.safetensors").exists()
    file = run.path / "config.toml"
    file.write_text(file.read_text().replace("dataframe@", "dataframe@0"))  # of another process
    done = CliRunner().invoke(cli, ["export", str(run.path)])
    assert f"fedmom.load({str(run.path)!r}, data=...).export()." in str(done.exception)
