"""A trained model at work: predictions, text and files for others."""

import csv

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

import fedmom
from fedmom.api import trained_model
from fedmom.cli.main import cli
from fedmom.data.sources.shakespeare import SYMBOLS

TASK = {"progress": False, "rounds": 2, "clients_per_round": 2}


@pytest.fixture(scope="module")
def vector_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "vectors"
    return fedmom.run("synthetic:clients=4", out=folder, lr=0.01, **TASK)


@pytest.fixture(scope="module")
def text_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "bard"
    model = "char_lstm:embedding=4,hidden=8"
    return fedmom.run("shakespeare:roles=3,samples=900", model, out=folder, local_steps=2, **TASK)


def call(*args):
    done = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert done.exit_code == 0, done.output
    return done.output


def read(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def refused(*args):
    done = CliRunner().invoke(cli, [str(arg) for arg in args])
    return str(done.exception)


def test_predictions_are_written_beside_the_labels(vector_run, tmp_path):
    out = call("predict", vector_run.path, "synthetic:clients=4", "--out", tmp_path / "p.csv")
    rows = read(tmp_path / "p.csv")
    data = vector_run.experiment.data
    assert len(rows) == data.train.size.sum() + data.test.size.sum()
    hits = np.array([row["label"] == row["prediction"] for row in rows])
    assert f"{hits.mean():.1%} of {len(rows):,} labels are right" in out
    on_test = np.array([row["split"] == "test" for row in rows])
    assert hits[on_test].mean() == pytest.approx(vector_run.result.last("test", "accuracy"))


def test_clients_of_all_sizes_share_one_program(vector_run, tmp_path, compilations):
    """Each size of a client was compiled by itself, and the whole data was copied for it."""
    call("predict", vector_run.path, "synthetic:clients=4", "--out", tmp_path / "first.csv")
    data = fedmom.load_data("synthetic:clients=30,seed=3")
    assert len(set(data.train.size.tolist())) > 10
    before = len(compilations)
    call("predict", vector_run.path, "synthetic:clients=30,seed=3", "--out", tmp_path / "p.csv")
    assert len(compilations) - before <= 2  # the last call of each split may be a smaller one
    rows = read(tmp_path / "p.csv")
    sizes = {"train": data.train.size, "test": data.test.size}
    for split, expected in sizes.items():
        clients = [row["client"] for row in rows if row["split"] == split]
        assert clients == np.repeat(data.users, expected).tolist()
    starts = np.concatenate([np.arange(a, a + n) for a, n in zip(*data.train, strict=True)])
    labels = [int(row["label"]) for row in rows if row["split"] == "train"]
    assert labels == data.arrays["y"][starts].tolist()


def test_labels_of_a_text_are_characters(text_run, tmp_path):
    call("predict", text_run.path, "shakespeare:roles=3,samples=900", "--split=test", "--out=p.csv")
    rows = read(tmp_path / "p.csv")
    text = fedmom.load_data("shakespeare:roles=3,samples=900").arrays["text"]
    first = int(text_run.experiment.data.test.start[0])
    assert SYMBOLS[text[first + 80]] == rows[0]["label"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_data_of_another_shape_is_refused(text_run):
    assert "the model was trained on text inputs" in refused("predict", text_run.path, "synthetic")


def test_text_goes_on_from_its_prompt(text_run):
    options = ("--length", 30, "--temperature")
    one, again = (call("sample", text_run.path, "--prompt", "To be", *options, 1) for _ in "ab")
    other = call("sample", text_run.path, "--prompt", "To be", *options, 1, "--seed", 1)
    assert one == again != other
    assert one.startswith("To be")
    assert len(one) == len("To be") + 30 + 1


def test_the_coldest_text_takes_the_likeliest_character(text_run):
    text = call("sample", text_run.path, "--prompt", "Ay", "--length", 3, "--temperature", 0)[:-1]
    for length in (2, 3, 4):
        (likeliest,) = text_run.predict([text[:length]])
        assert text[length] == likeliest


def test_a_draw_follows_the_softmax():
    logits, rng = np.log([0.1, 0.2, 0.7]), np.random.default_rng(0)
    draws = np.bincount([trained_model._drawn(logits, 1.0, rng) for _ in range(4000)]) / 4000
    np.testing.assert_allclose(draws, [0.1, 0.2, 0.7], atol=4 * np.sqrt(0.25 / 4000))
    cold = np.bincount([trained_model._drawn(logits, 0.5, rng) for _ in range(4000)]) / 4000
    squares = np.array([0.01, 0.04, 0.49]) / 0.54
    np.testing.assert_allclose(cold, squares, atol=4 * np.sqrt(0.25 / 4000))


def test_strange_characters_and_other_models_are_refused(text_run, vector_run):
    assert "'é', is none of the 80 characters" in refused("sample", text_run.path, "--prompt=é")
    assert "logreg does not write text" in refused("sample", vector_run.path)


def test_an_exported_model_has_its_parameters_and_a_card(vector_run, tmp_path):
    call("export", vector_run.path, "--out", tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    x = vector_run.experiment.data.arrays["x"][:5]
    weights = {name.rpartition("/")[2]: tensor for name, tensor in tensors.items()}
    found = x @ weights["w"] + weights["b"]
    np.testing.assert_allclose(found, vector_run.outputs(x), rtol=1e-4, atol=1e-5)
    card = (tmp_path / "model" / "README.md").read_text()
    accuracy = vector_run.result.last("test", "accuracy")
    for text in ("synthetic: 4 clients", f"{accuracy:.4f}", "| lr | 0.01 |", "privacy | none"):
        assert text in card
    assert "is not an empty folder" in refused("export", vector_run.path, "--out=model")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vector_run", "text_run"])
def test_an_onnx_file_gives_the_models_outputs(name, request, tmp_path):
    import onnxruntime

    run = request.getfixturevalue(name)
    call("export", run.path, "--onnx", "--batch", 3, "--out", tmp_path / "model")
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    if name == "text_run":
        x = np.stack([np.arange(80) % 7, np.arange(80) % 80, np.arange(80) % 3]).astype(np.int32)
    else:
        x = run.experiment.data.arrays["x"][:3].astype(np.float32)
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(found, run.outputs(x), rtol=1e-4, atol=1e-5)


def test_one_of_several_runs_must_be_chosen(tmp_path):
    settings = {**TASK, "data": "synthetic:clients=4", "lr": 0.01, "out": tmp_path / "both"}
    fedmom.compare(["fedavg", "fedmom"], **settings)
    assert "holds 2 runs. Give one, such as" in refused("export", tmp_path / "both")
