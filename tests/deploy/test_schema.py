"""Devices whose data is alike but not in one order: trained as if it were, or refused."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from flwr.supercore.task_identity import TaskIdentity
from safetensors.numpy import load_file

import fedmom
from fedmom.core.errors import FedMomError
from fedmom.data.given import conformed, relabelled
from fedmom.data.schema import Schema, common
from fedmom.flower.device import open_client
from fedmom.flower.server import train
from fedmom.runtimes.devices.client import Owner, answer
from fedmom.runtimes.devices.population import from_json
from tests.runtimes.device_grid import LoopGrid, part_of

CLIENTS = {"ann": ["no", "yes"], "bob": ["maybe"], "cyd": ["yes", "maybe"]}


def table(client, labels):
    rng = np.random.default_rng(len(client + labels[0]))
    columns = {"u": rng.normal(size=12), "flag": rng.random(12) > 0.5, "w": rng.normal(size=12)}
    return pd.DataFrame(columns).assign(who=client, y=np.resize(labels, 12))


def read(frame, **options):
    return fedmom.from_dataframe(frame, client="who", label="y", **options)


def deployed(datas, place):
    """Train on devices with these data; return the model's tensors and what devices said."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as in a server app
    said, troubles = [], []

    def handler(k, data):
        opened = partial(open_client, data=data, folder=place / str(k))
        owner = Owner(data=lambda: data, open=opened, say=said.append, trouble=troubles.append)
        return partial(answer, owner=owner)

    grid = LoopGrid({100 + k: handler(k, data) for k, data in enumerate(datas)})
    settings = {"rounds": 3, "model": "logreg", "lr": 0.1, "clients-per-round": 2}
    runtime = f"flower:devices={len(datas)}"
    result = train(grid, place / "run", {**settings, "runtime": runtime})
    assert (result.done, troubles) == (3, [])
    tensors = sorted((place / "run" / "checkpoint").glob("*.safetensors"))
    return load_file(tensors[-1]), " ".join(said)


def test_columns_and_classes_of_devices_are_matched_by_name(tmp_path):
    frames = {client: table(client, labels) for client, labels in CLIENTS.items()}
    whole = read(pd.concat(frames.values()))
    expected, said = deployed([part_of(whole, k) for k in range(3)], tmp_path / "whole")
    assert (
        "number of labels, names of columns ('u', 'flag', 'w'), names of labels ('maybe'," in said
    )
    frames["bob"] = frames["bob"][["y", "w", "flag", "who", "u"]]
    found, _ = deployed([read(frame) for frame in frames.values()], tmp_path / "own")
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-4, atol=1e-6)
    folder = tmp_path / "own" / "run"
    schema = Schema.from_json((folder / "schema.json").read_bytes(), "")
    assert schema.class_names == ("maybe", "no", "yes")
    assert from_json((folder / "devices.json").read_bytes()).schema == schema


def schemas(*datas):
    return {f"device-{k}": Schema.of(data) for k, data in enumerate(datas)}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: f.rename(columns={"u": "U"}), "device-1 has no column 'u'.* Did you mean 'U'"),
        (lambda f: f.assign(z=1), "device-1 has the column 'z'"),
        (lambda f: f.assign(flag=1), "'flag' holds numbers, and in training it held true or false"),
        (lambda f: f.assign(y=0), "the classes 0 to 0, other data 'no', 'yes'"),
        (lambda f: f.assign(y=0.5), "'classes'.* and .*'regression'"),
    ],
)
def test_devices_with_other_data_are_refused(change, sentence):
    frame = table("ann", ["no", "yes"])
    with pytest.raises(FedMomError, match=sentence):
        common(schemas(read(frame), read(change(frame))))


def test_texts_of_devices_have_one_alphabet():
    datas = [fedmom.from_texts({"a": text}, window=4) for text in ("bca" * 5, "cxb" * 5)]
    schema = common(schemas(*datas))
    assert (schema.class_names, schema.classes) == (("a", "b", "c", "x"), 4)
    for data, codes in zip(datas, ([1, 2, 0], [2, 3, 1]), strict=True):
        mine = relabelled(conformed(data, schema), schema)
        assert mine.arrays["text"][:3].tolist() == codes
        assert mine.features == schema.features
    with pytest.raises(FedMomError, match="character 'x' at place 1 of the text of client 'a'"):
        conformed(datas[1], Schema.of(datas[0]))


@pytest.mark.parametrize(
    ("dtypes", "form"),
    [
        (["uint8", "float32"], ("float32", 255)),
        (["int32", "float32"], ("float32", 1)),
        (["int32", "int32"], ("int32", 1)),
        (["uint8", "int32"], ("float32", 255)),
    ],
)
def test_types_of_devices_have_one_form(dtypes, form):
    x = np.array([[0, 1], [1, 0]])
    datas = [fedmom.from_arrays(x.astype(d), [0, 1], ["a", "a"]) for d in dtypes]
    schema = common(schemas(*datas))
    assert (schema.dtype, schema.divided_by) == form
    for data in datas:
        mine = Schema.of(relabelled(conformed(data, schema), schema))
        assert mine.dtype == schema.dtype


def labelled(y):
    return fedmom.from_arrays(np.zeros((len(y), 1)), y, ["a"] * len(y))


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([[0, 1, 2], [1, 2]], None),
        ([[0, 1], [2, 3]], None),
        ([[0, 1], [3]], ("0", "1", "3")),
        ([[1, 2], [3, 10]], ("1", "2", "3", "10")),
        ([[-1, 1], [0, 1]], ("-1", "0", "1")),
        ([["a", "c"], ["b"]], ("a", "b", "c")),
    ],
)
def test_classes_of_devices_are_those_of_all_data_together(labels, names):
    datas = [labelled(y) for y in labels]
    schema, everything = common(schemas(*datas)), labelled([*labels[0], *labels[1]])
    assert (schema.classes, schema.class_names) == (everything.features.classes, names)
    found = np.concatenate([relabelled(data, schema).arrays["y"] for data in datas])
    assert found.tolist() == everything.arrays["y"].tolist()


def test_labels_that_the_run_does_not_have_are_refused():
    one, other = (read(table("ann", labels)) for labels in (["no", "yes"], ["no", "on"]))
    with pytest.raises(FedMomError, match="has the class 'on', which the model does not have"):
        relabelled(other, Schema.of(one))
