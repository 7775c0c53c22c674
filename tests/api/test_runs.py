"""Whole experiments from Python: what they return, and how they end."""

import numpy as np
import pytest

import fedmom
from fedmom.core.errors import FedMomError

SMALL = {"data": "synthetic:clients=4", "lr": 0.01, "eval_every": 2, "progress": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fedmom.run(**SMALL, rounds=4, out=tmp_path_factory.mktemp("api") / "run")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api") / "compare"
    return fedmom.compare(["fedavg", "fedmom"], **SMALL, rounds=4, seeds=2, out=folder)


def test_frames_hold_the_logs(run):
    assert run.evals["round"].unique().tolist() == [0, 2, 4]
    assert run.evals.to_dict("records") == list(run.result.evals)
    assert run.rounds["round"].tolist() == [1, 2, 3, 4]


def test_clients_have_their_metrics(run):
    clients, data = run.clients, run.experiment.data
    assert clients["train_samples"].tolist() == data.train.size.tolist()
    assert clients["rounds_asked"].sum() == 4 * 2
    mean = np.average(clients["test_accuracy"], weights=clients["test_samples"])
    assert mean == pytest.approx(run.result.last("test", "accuracy"))
    first, size = data.test.start[1], data.test.size[1]
    rows = slice(first, first + size)
    hits = run.predict(data.arrays["x"][rows]) == data.arrays["y"][rows]
    assert clients["test_accuracy"][1] == pytest.approx(hits.mean())


def test_outputs_are_those_of_the_model(run):
    x = run.experiment.data.arrays["x"][:300]
    found = run.outputs(x)
    params = run.params
    (layer,) = params if isinstance(params, list) else [params]
    np.testing.assert_allclose(found, x @ layer["w"] + layer["b"], rtol=1e-4, atol=1e-5)
    assert run.predict(x).tolist() == found.argmax(axis=1).tolist()


def test_inputs_of_another_shape_are_refused(run):
    with pytest.raises(FedMomError, match=r"Give one input per row: \(inputs, 60\)"):
        run.predict(np.zeros((3, 61)))


def test_a_figure_and_html(run, runs):
    assert len(run.plot().axes) > 1
    assert "<svg" in run._repr_html_()
    assert "fedmom" in runs._repr_html_()
    assert "finished, 4 of 4 rounds" in repr(run)


def test_a_page(runs, tmp_path):
    assert runs.report(tmp_path / "page.html").stat().st_size > 1000
    both = fedmom.report([runs, runs["fedmom_seed0"].path], tmp_path / "both.html")
    assert both.exists()


def test_a_comparison_is_a_mapping_with_a_table(runs):
    assert list(runs) == ["fedavg_seed0", "fedavg_seed1", "fedmom_seed0", "fedmom_seed1"]
    table = runs.table
    assert table["algorithm"].tolist() == ["fedavg", "fedavg", "fedmom", "fedmom"]
    last = runs["fedmom_seed1"].result.last("test", "accuracy")
    assert table.loc["fedmom_seed1", "test_accuracy"] == last
    assert set(runs.evals["run"]) == set(runs)


def test_a_comparison_loads_again(runs):
    again = fedmom.load(runs.path)
    assert list(again) == list(runs)
    assert again["fedavg_seed0"].result.evals == list(runs["fedavg_seed0"].result.evals)


def test_a_sweep_varies_settings(tmp_path):
    grid = {"lr": [0.001, 0.01], "local_steps": [1]}
    settings = {key: value for key, value in SMALL.items() if key != "lr"}
    found = fedmom.sweep(grid, **settings, rounds=2, out=tmp_path / "sweep")
    assert [run.settings["lr"] for run in found.values()] == [0.001, 0.01]


def test_a_callback_sees_rounds_and_evaluations_and_ends_the_run(tmp_path):
    seen = []

    def stop_at_three(event):
        seen.append((event.round, sorted(event.evals), event.record and event.record.round))
        return "three are enough" if event.round == 3 else None

    run = fedmom.run(**SMALL, rounds=6, out=tmp_path / "run", callbacks=[stop_at_three])
    both = ["test", "train"]
    assert seen == [(0, both, None), (1, [], 1), (2, both, 2), (3, [], 3)]
    assert (run.status, run.result.why, run.result.done) == ("stopped", "three are enough", 3)
    whole = fedmom.run(**SMALL, rounds=6, out=tmp_path / "whole")
    assert run.resume(progress=False).status == "finished"
    np.testing.assert_array_equal(run.rounds["train_loss"], whole.rounds["train_loss"])
    assert run.result.evals == whole.result.evals


def test_what_a_callback_says_of_the_last_round_changes_nothing(tmp_path):
    run = fedmom.run(**SMALL, rounds=2, out=tmp_path / "run", callbacks=[lambda _event: True])
    assert (run.status, run.result.done, run.result.why) == ("stopped", 1, "lambda ended the run.")
    run = run.resume(progress=False, callbacks=[lambda _event: True])
    assert run.status == "finished"


def test_a_run_that_diverges_is_an_error_and_a_folder(tmp_path):
    settings = SMALL | {"lr": 1e30}
    with pytest.raises(fedmom.DivergedError):
        fedmom.run(**settings, rounds=3, out=tmp_path / "run")
    assert fedmom.load(tmp_path / "run").status == "diverged"


def test_a_refused_run_leaves_no_folder(tmp_path):
    with pytest.raises(FedMomError, match="clients-per-round 9"):
        fedmom.run(**SMALL, clients_per_round=9, out=tmp_path / "run")
    with pytest.raises(FedMomError, match="There is no setting 'rouns'"):
        fedmom.run(**SMALL, rouns=9, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: fedmom.compare("fedavg", **SMALL), r"algorithms is 'fedavg'\. Give a list"),
        (lambda: fedmom.compare([], **SMALL), r"algorithms is \[\]\. Give a list"),
        (lambda: fedmom.sweep({"lr": 0.1}, **SMALL), r"lr is 0\.1\. Give a list of values"),
        (lambda: fedmom.report([]), "no run to report on"),
    ],
)
def test_what_is_not_a_list_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(FedMomError, match=sentence):
        call()


@pytest.mark.parametrize("callbacks", [print, [3]])
def test_callbacks_are_a_list_of_functions(callbacks, tmp_path):
    with pytest.raises(FedMomError, match="Give a list of functions"):
        fedmom.run(**SMALL, rounds=1, callbacks=callbacks, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
