"""The schema of data: kept by whatever is made of it, in stores and in files."""

import json

import numpy as np
import pandas as pd
import pytest

import fedmom
from fedmom.core.errors import FedMomError
from fedmom.data.federated import Column
from fedmom.data.leaf_sampling import split
from fedmom.data.partition import repartition
from fedmom.data.schema import Schema
from fedmom.data.store.reader import load_store
from fedmom.data.store.writer import save_store


@pytest.fixture
def table():
    rows = {"who": ["a", "a", "b", "b"] * 3, "age": range(12), "ill": [True, False] * 6}
    frame = pd.DataFrame(rows).assign(late=rows["ill"], y=["no", "no", "yes"] * 4)
    return fedmom.from_dataframe(frame, client="who", label="y", test_fraction=0.3)


def test_columns_are_kept_by_all_that_is_made_of_a_table(table, tmp_path):
    found = Schema.of(table)
    columns = found.columns.inputs
    assert [column[:2] for column in columns] == [
        ("age", "number"),
        ("ill", "bool"),
        ("late", "bool"),
    ]
    kept = json.loads(found.to_json())
    assert kept["columns"]["inputs"][0] == ["age", "number"]  # as before there were categories
    del kept["tokens"]
    assert Schema.from_json(json.dumps(kept).encode(), "earlier") == found
    assert (found.columns.label, found.columns.others) == (("y",), ("who",))
    assert (found.class_names, found.dtype, found.shape) == (("no", "yes"), "float32", (3,))
    save_store(table, tmp_path / "store", {})
    made = [
        load_store(tmp_path / "store"),
        repartition(table, "iid:clients=3"),
        split(table, "user", 0.5),
        split(table, "sample", 0.5),
    ]
    assert [Schema.of(data) for data in made] == [found] * 4


def test_stores_without_columns_are_read(table, tmp_path):
    save_store(table, tmp_path / "store", {})
    file = tmp_path / "store" / "manifest.json"
    manifest = json.loads(file.read_text())
    columns = manifest.pop("columns")
    file.write_text(json.dumps(manifest))
    assert load_store(tmp_path / "store").columns is None
    columns["inputs"] = columns["inputs"][1:]
    file.write_text(json.dumps({**manifest, "columns": columns}))
    with pytest.raises(FedMomError, match="2 columns do not make inputs of shape"):
        load_store(tmp_path / "store")


@pytest.mark.parametrize(
    "data",
    [
        lambda: fedmom.load_data("synthetic:clients=3"),
        lambda: fedmom.load_data("shakespeare:roles=2,samples=900"),
        lambda: fedmom.from_texts({"ann": "né " * 40}, window=9),
        lambda: fedmom.from_arrays(
            np.zeros((6, 4, 4, 3), np.uint8), np.eye(6, dtype=int), partition="iid:clients=2"
        ),
    ],
)
def test_a_schema_is_read_as_it_was_written(data):
    found = Schema.of(data())
    assert Schema.from_json(found.to_json(), "schema.json") == found


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "sound"},
        {"shape": [0]},
        {"shape": "3"},
        {"dtype": "object"},
        {"divided_by": 7},
        {"classes": True},
        {"class_names": ["one"]},
        {"columns": {"inputs": [["a", "number"]], "label": ["y"], "others": []}},
        {"columns": [1]},
        {"columns": {"inputs": [["a", "number"] * 3], "label": "y"}},
    ],
)
def test_damage_is_refused(table, change):
    found = json.loads(Schema.of(table).to_json())
    with pytest.raises(FedMomError, match=r"schema\.json is damaged"):
        Schema.from_json(json.dumps(found | change).encode(), "schema.json")
    for content in (b"", b"[]", b"\xff", b"[" * 9999):
        with pytest.raises(FedMomError, match=r"schema\.json is damaged"):
            Schema.from_json(content, "schema.json")


def test_a_column_of_lists_is_one():
    frame = pd.DataFrame({"x": [[1.5, 2], [3, 4]], "y": [0, 1]})
    data = fedmom.from_dataframe(frame, label="y", partition="iid:clients=2")
    assert data.columns.inputs == (Column("x", "list"),)
    assert Schema.from_json(Schema.of(data).to_json(), "").shape == (2,)
