"""What was trained is what is predicted: inputs fit the training data's schema or are refused."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner

import fedmom
from fedmom.cli.main import cli
from fedmom.core.errors import FedMomError
from fedmom.data.given import conformed, inputs_for
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


@pytest.mark.parametrize("kind", ["Table", "RecordBatch"])
def test_columns_of_an_arrow_table_are_matched_by_name(table_run, frame, kind):
    expected = table_run.outputs(frame[COLUMNS])
    table = getattr(pa, kind).from_pandas(frame[["w", "age", "u"]])
    np.testing.assert_array_equal(table_run.outputs(table), expected)


@pytest.mark.parametrize(
    "rows",
    [
        lambda f: [*f.itertuples(index=False)],
        lambda f: [row for _, row in f.iterrows()],
        lambda f: f.to_dict("records"),
    ],
)
def test_names_are_not_ignored(table_run, frame, rows):
    with pytest.raises(FedMomError, match=r"row 0 have names\. .*: pandas\.DataFrame\(x\)"):
        table_run.predict(rows(frame[["w", "age", "u"]]))


def test_columns_of_labels_and_clients_may_be_there(folder, frame):
    owned = frame.assign(who=np.arange(300) % 4)
    data = fedmom.from_dataframe(owned, label="y", client="who")
    run = fedmom.run(data, rounds=5, out=folder / "owned", **TASK)
    run.data = data
    expected = (run.predict(frame[COLUMNS]) == frame.y).mean()
    assert (run.predict(owned) == frame.y).mean() == expected
    owned[["who", "w", "y", "u", "age"]].to_csv(folder / "owned.csv", index=False)
    assert f"{expected:.1%} of 300 labels" in predicted(run, folder / "owned.csv")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: f.rename(columns={"age": "Age"}), "no column 'age'.*Did you mean 'Age'"),
        (lambda f: f.drop(columns="w"), "no column 'w', which the model was trained on"),
        (lambda f: f.assign(z=1.0), "the column 'z', which the model was not trained on"),
        (lambda f: f.iloc[:0], "has no rows"),
        (lambda f: f.assign(u=f.u > 0), "'u' holds true or false, and in training .* numbers"),
    ],
)
def test_other_columns_are_refused_by_name(table_run, frame, folder, change, sentence):
    other = change(frame)
    with pytest.raises(FedMomError, match=sentence):
        table_run.predict(other)
    other.to_csv(folder / "changed.csv", index=False)
    assert re.search(sentence, predicted(table_run, folder / "changed.csv"))


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
        (np.array([[1j, 2, 3]]), "complex"),
        ([["a", "b", "c"]], "holds texts"),
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


def test_names_of_columns_may_be_of_any_type_but_not_twice(folder, table_run, frame):
    y = np.arange(6) % 2
    for number, names in enumerate([[0, 1.5], [("a", "b"), ("a", "c")]]):
        x = pd.DataFrame(np.random.default_rng(number).normal(size=(6, 2)), columns=names)
        data = fedmom.from_dataframe(x.assign(y=y), label="y", partition="iid:clients=2")
        run = fedmom.run(data, "logreg", rounds=2, out=folder / f"names{number}", **TASK)
        expected = run.outputs(x.to_numpy())
        np.testing.assert_array_equal(run.outputs(x[names[::-1]]), expected)
    with pytest.raises(FedMomError, match="two columns called 'u'"):
        table_run.predict(frame[["u", "u", "age", "w"]])


def test_bytes_are_no_floats_unless_columns_have_names(table_run, folder, frame):
    whole = frame[COLUMNS].mul(9).abs().astype(np.uint8)
    np.testing.assert_array_equal(table_run.outputs(whole), table_run.outputs(whole.astype(float)))
    data = fedmom.from_arrays(frame[COLUMNS], frame.y, partition="iid:clients=4")
    run = fedmom.run(data, rounds=1, out=folder / "nameless", **TASK)
    run.data = data
    whole.assign(y=frame.y).to_parquet(folder / "whole.parquet")
    assert "x / 255" in predicted(run, folder / "whole.parquet")
    with pytest.warns(UserWarning, match="no names"), pytest.raises(FedMomError, match="x / 255"):
        run.outputs(whole)


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
    options, columns = OPTIONS.replace(":", ":test_fraction=0.3,", 1), ["w", "u", "age"]
    spec = f"{folder / 'moved.csv'}{options}"
    frame.to_csv(folder / "moved.csv", index=False)
    run = fedmom.run(spec, rounds=3, out=folder / "moved", **TASK)
    expected = run.outputs(frame)
    frame[[*columns, "y"]].to_csv(folder / "moved.csv", index=False)
    again = fedmom.load(run.path)
    np.testing.assert_array_equal(again.outputs(frame[columns]), expected)
    metrics = ["test_loss", "test_accuracy"]
    np.testing.assert_array_equal(again.clients()[metrics], run.clients()[metrics])
    with pytest.raises(FedMomError, match="columns of the data was u, age, w and is w, u, age"):
        again.resume(progress=False)
    (run.path / "schema.json").unlink()  # as in folders of earlier versions
    with pytest.warns(UserWarning, match=r"has no schema\.json, and its data has changed since"):
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


def test_a_schema_that_could_not_be_read_back_is_refused_before_the_run(folder, monkeypatch):
    monkeypatch.setattr("fedmom.experiments.provenance.LARGEST", 100)
    with pytest.raises(FedMomError, match="names of columns and classes of synthetic take"):
        fedmom.run("synthetic:clients=4", rounds=1, out=folder / "large", **TASK)
    assert not (folder / "large").exists()


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


@pytest.fixture(scope="module")
def text_run(folder):
    texts = {"ann": "the cat sat on a mat. " * 9, "bob": "a dog ate the hot oat. " * 9}
    data = fedmom.from_texts(texts, window=8)
    task = TASK | {"lr": 1.0, "local_steps": 40}
    run = fedmom.run(
        data, "char_lstm:embedding=4,hidden=32", rounds=20, out=folder / "bard", **task
    )
    run.data = data  # or it would be no longer there
    return run


def test_texts_of_another_alphabet_are_translated(text_run, folder):
    """Its characters have other numbers: they were taken for others."""
    text = "the hot cat ate a mat. " * 5
    letters = folder / "letters"
    letters.mkdir()
    (letters / "cyd.txt").write_text(text)
    other = fedmom.from_texts(letters, window=8)
    assert set(other.class_names) < set(text_run.schema.class_names)
    windows = [text[place : place + 8] for place in range(len(text) - 8)]
    expected = text_run.predict(windows) == np.array(list(text[8:]))
    assert expected.mean() > 0.5
    said = predicted(text_run, letters, ":window=8")
    assert f"{expected.mean():.1%} of {len(windows)} labels are right" in said
    codes = [[text_run.schema.class_names.index(c) for c in window] for window in windows]
    for same in (codes, np.array(codes, np.int64), np.array(windows), np.array(windows, object)):
        np.testing.assert_array_equal(text_run.predict(same), text_run.predict(windows))


def test_unknown_characters_are_refused(text_run, folder):
    with pytest.raises(FedMomError, match=r"Character 2 of the last 8 of text 1, 'é', is none of"):
        text_run.predict(["the cat", "thé dog"])
    with pytest.raises(FedMomError, match="Character 0 of the prompt, 'X', is none of"):
        text_run.sample("X")
    strange = folder / "strange"
    strange.mkdir()
    for name, text in {"ann": "the cat sat", "bob": "the cat sat çà"}.items():
        (strange / f"{name}.txt").write_text(text)
    said = predicted(text_run, strange, ":window=8")
    assert "the character 'ç' at place 12 of the text of client 'bob' is none of" in said


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        ("the cat", "an array or a list"),
        (["the cat", None], "row 1 is None"),
        ([b"the cat"], "shape"),
        (np.full((1, 8), 99), "row 0, column 0 is 99 .* from 0 to"),
        (np.full((1, 8), -1), "row 0, column 0 is -1 .* from 0 to"),
        (np.full((1, 8), 0.5), "row 0, column 0 is 0.5 .* a whole number"),
        (np.zeros((1, 9), int), r"or a list of texts"),
    ],
)
def test_what_is_no_text_is_refused(text_run, x, sentence):
    with pytest.raises(FedMomError, match=sentence):
        text_run.predict(x)


@pytest.mark.parametrize(
    "options", [{"length": 10**30}, {"length": 0}, {"temperature": np.nan}, {"seed": -1}]
)
def test_samples_are_bounded(text_run, options):
    with pytest.raises(FedMomError, match=f"sample: {next(iter(options))}=.*"):
        text_run.sample("the", **options)


def test_a_text_without_names_of_characters_takes_numbers_only(text_run):
    nameless = dataclasses.replace(text_run.data, class_names=None)
    schema = Schema.of(nameless)
    assert schema.class_names is None
    with pytest.raises(FedMomError, match="does not name its characters"):
        inputs_for(schema, ["the cat"], print)
    with pytest.raises(FedMomError, match="cannot be compared"):
        conformed(nameless, text_run.schema)


def labelled_as(frame, **names):
    return frame.assign(y=frame.y.map(names))


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"yes": "yes", "no": "a"}, "The model has no class 'a': such labels count as wrong"),
        ({"yes": 1, "no": 0}, "are 0 to 1, and the model predicts 'no', 'yes'. So there is no"),
        ({"yes": "on", "no": "off"}, "are 'off', 'on', and the model predicts 'no', 'yes'. So"),
        ({"yes": 0.5, "no": 0.25}, "are regression, and the model predicts classes. So there"),
    ],
)
def test_labels_are_compared_by_name(table_run, frame, folder, names, sentence):
    """Those of other classes in another order, too: "a" is before "yes" as "no" was."""
    path = folder / "labels.csv"
    labelled_as(frame, **names).to_csv(path, index=False)
    said = " ".join(predicted(table_run, path).split())
    assert sentence in said
    right = (table_run.predict(frame) == labelled_as(frame, **names).y).mean()
    assert (f"{right:.1%} of 300 labels are right" in said) == (names["no"] == "a")


def test_classes_without_names_are_their_numbers(folder):
    x = np.random.default_rng(0).normal(size=(60, 2))
    y = np.where(x[:, 0] > 0, 1, -1)
    data = fedmom.from_arrays(x, y, partition="iid:clients=4")
    run = fedmom.run(data, rounds=5, out=folder / "signs", **TASK)
    np.savez(folder / "ones.npz", x=x[y > 0], y=y[y > 0])  # 1 is its class 1 of 2, not 1 of -1, 1
    right = (run.predict(x[y > 0]) == "1").mean()
    run.data = data
    said = predicted(run, folder / "ones.npz", ":partition=iid:clients=2")
    assert f"{right:.1%} of {(y > 0).sum()} labels are right" in said


def test_several_labels_are_compared_by_name(folder, frame):
    both = frame[COLUMNS].assign(a=frame.y == "yes", b=frame.u > 0)
    both.to_csv(folder / "ab.csv", index=False)
    options = ":label=a+b,partition=iid:clients=4"
    spec = f"{folder / 'ab.csv'}{options}"
    run = fedmom.run(spec, "logreg", rounds=20, out=folder / "several", **TASK)
    right = (run.predict(both) == both[["a", "b"]].to_numpy()).mean()
    both.to_csv(folder / "ba.csv", index=False)
    for ab in (options, options.replace("a+b", "b+a")):
        assert f"{right:.1%} of 600 labels are right" in predicted(run, folder / "ba.csv", ab)
    both.rename(columns={"b": "c"}).to_csv(folder / "ac.csv", index=False)
    said = predicted(run, folder / "ac.csv", options.replace("a+b", "a+c"))
    assert "are 'a', 'c', and the model predicts 'a', 'b'" in said
