"""Whole experiments from Python: what they return, and how they end."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import fedmom
from fedmom.cli.main import cli
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
    clients, data = run.clients(), run.experiment.data
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


def test_rounds_have_the_metrics_of_the_method_as_columns(run, runs):
    rows = [{**row, "metrics": {"noise/std": 0.5 * row["round"]}} for row in run.result.rounds]
    reporting = fedmom.load(run.path)
    reporting.result = dataclasses.replace(run.result, rounds=rows)
    assert reporting.rounds["noise/std"].tolist() == [0.5, 1.0, 1.5, 2.0]
    assert "metrics" not in reporting.rounds
    both = fedmom.Runs(run.path, {"plain": run, "reporting": reporting}).rounds
    assert both["run"].tolist() == ["plain"] * 4 + ["reporting"] * 4
    assert runs.rounds["round"].tolist() == [1, 2, 3, 4] * 4


def test_findings_of_a_pair(runs):
    found = runs.findings
    assert found["measure"].tolist() == ["test accuracy", "training loss"]
    assert set(found["finding"]) == {"not enough seeds"}
    ends = {name: run.result.last("test", "accuracy") for name, run in runs.items()}
    apart = [ends[f"fedmom_seed{seed}"] - ends[f"fedavg_seed{seed}"] for seed in (0, 1)]
    assert found["difference"][0] == pytest.approx(np.mean(apart))
    assert found[["run", "other", "seeds"]].values.tolist() == [["fedmom", "fedavg", 2]] * 2
    assert found[["low", "high"]].isna().all(axis=None)
    alone = fedmom.Runs(runs.path, {"one": runs["fedavg_seed0"]}).findings
    assert alone.empty
    assert list(alone) == list(found)


def test_findings_have_intervals_and_corrected_p_values(tmp_path):
    settings = SMALL | {"rounds": 2, "seeds": 3, "out": tmp_path / "c"}
    runs = fedmom.compare(["fedavg", "fedmom"], **settings)
    first = runs.findings.iloc[0]
    ends = np.array([run.result.last("test", "accuracy") for run in runs.values()])
    apart = stats.ttest_rel(ends[3:], ends[:3])
    interval = apart.confidence_interval(0.95)
    assert (first["low"], first["high"]) == pytest.approx((interval.low, interval.high))
    assert first["p"] == pytest.approx(apart.pvalue)


def test_a_figure_is_shown_by_a_notebook_that_has_not_loaded_pyplot(run):
    formatters = pytest.importorskip("IPython.core.formatters")
    png = formatters.PNGFormatter()(run.plot())
    assert png.startswith(b"\x89PNG")


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


@pytest.fixture
def lying(monkeypatch):
    """The runtime's replies claim a sample too many."""
    from fedmom.runtimes.local import LocalRuntime

    replies = LocalRuntime.replies

    def lie(self, timeout=None):
        for block in replies(self, timeout):
            yield block._replace(samples=block.samples + 1)

    monkeypatch.setattr(LocalRuntime, "replies", lie)


@pytest.mark.usefixtures("lying")
def test_a_run_of_bad_replies_is_an_error_and_a_folder(tmp_path):
    with pytest.raises(fedmom.BadReplyError, match="--bad-replies skip"):
        fedmom.run(**SMALL, rounds=3, out=tmp_path / "run")
    assert fedmom.load(tmp_path / "run").status == "stopped"
    with pytest.raises(fedmom.BadReplyError):
        fedmom.resume(tmp_path / "run", progress=False)
    with pytest.warns(UserWarning, match="fedavg stopped: .*--bad-replies skip"):
        runs = fedmom.compare(["fedavg"], **SMALL, rounds=3, out=tmp_path / "runs")
    assert runs["fedavg"].status == "stopped"


def test_a_folder_is_resumed(tmp_path):
    def two(event):
        return "two are enough" if event.round == 2 else None

    folder = tmp_path / "run"
    run = fedmom.run(**SMALL, rounds=4, out=folder, callbacks=[two])
    runs = fedmom.compare(["fedavg"], **SMALL, rounds=4, out=tmp_path / "runs", callbacks=[two])
    assert (run.status, runs["fedavg"].status) == ("stopped", "stopped")
    assert fedmom.resume(folder, progress=False).status == "finished"
    assert runs.resume(progress=False)["fedavg"].result.done == 4
    assert fedmom.resume(tmp_path / "runs", progress=False)["fedavg"].status == "finished"


def test_a_resumed_comparison_raises_what_could_not_be_run_after_the_others(tmp_path):
    runs = fedmom.compare(["fedavg", "fedmom"], **SMALL, rounds=2, out=tmp_path / "runs")
    for pointer in (runs["fedavg"].path / "checkpoint").glob("*.json"):
        pointer.write_text("damaged")
    config = runs["fedmom"].path / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 3"))
    with pytest.raises(FedMomError, match="damaged"):
        fedmom.resume(tmp_path / "runs", progress=False, accept_changes=True)
    assert fedmom.load(tmp_path / "runs")["fedmom"].result.done == 3


def test_runs_are_overwritten_if_that_is_asked_for(tmp_path):
    for call in (
        lambda **how: fedmom.run(**SMALL, rounds=1, out=tmp_path / "run", **how),
        lambda **how: fedmom.compare(["fedavg"], **SMALL, rounds=1, out=tmp_path / "c", **how),
        lambda **how: fedmom.sweep({"seed": [1]}, **SMALL, rounds=1, out=tmp_path / "s", **how),
    ):
        first = call()
        with pytest.raises(FedMomError, match="already holds"):
            call()
        with pytest.raises(FedMomError, match="clients-per-round 9"):
            call(overwrite=True, clients_per_round=9)
        assert first.path.exists()  # nothing is removed for a mistake
        assert call(overwrite=True).path == first.path
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(FedMomError, match=r"mine\.txt is not part of a run"):
        fedmom.run(**SMALL, rounds=1, out=tmp_path / "run", overwrite=True)


def test_compare_has_the_defaults_of_the_command(monkeypatch):
    given = []

    def noted(_folder, configs, *_, **__):
        given.append(configs)
        raise SystemExit

    monkeypatch.setattr("fedmom.experiments.collection.create", noted)
    with pytest.raises(SystemExit):
        fedmom.compare()
    with pytest.raises(SystemExit):
        cli(["compare"], standalone_mode=False)
    with pytest.raises(SystemExit):
        fedmom.compare(["fedavg"], data="synthetic", rounds=3)
    assert given[0] == given[1]
    assert list(given[0]) == ["fedsgd", "fedavg", "fedmom"]
    one = given[2]["fedavg"]
    assert (one.data, one.rounds, one.eval_samples) == ("synthetic", 3, 2000)


def test_a_refused_run_leaves_no_folder(tmp_path):
    with pytest.raises(FedMomError, match="clients-per-round 9"):
        fedmom.run(**SMALL, clients_per_round=9, out=tmp_path / "run")
    with pytest.raises(FedMomError, match="There is no setting 'rouns'"):
        fedmom.run(**SMALL, rouns=9, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", [".", "..", "/"])
def test_a_page_in_the_place_of_a_folder_is_refused(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    run = fedmom.run(**SMALL, rounds=1, out="run")
    for write in (run.report, lambda out: fedmom.report(run, out)):
        with pytest.raises(FedMomError, match=r"out \S+ is a folder\. Name a file in it"):
            write(place)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: fedmom.compare("fedavg", **SMALL), r"algorithms is 'fedavg'\. It must be a list"),
        (lambda: fedmom.compare([], **SMALL), r"algorithms is empty\. Give a list"),
        (lambda: fedmom.sweep({"lr": 0.1}, **SMALL), "a dict from texts to lists of values"),
        (lambda: fedmom.report([]), "no run to report on"),
    ],
)
def test_what_is_not_a_list_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(FedMomError, match=sentence):
        call()


@pytest.mark.parametrize("callbacks", [print, [3]])
def test_callbacks_are_a_list_of_functions(callbacks, tmp_path):
    with pytest.raises(FedMomError, match="It must be a list of functions of 1 argument"):
        fedmom.run(**SMALL, rounds=1, callbacks=callbacks, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_report_of_a_sweep_has_its_grid(tmp_path):
    runs = fedmom.sweep({"momentum": [0.5, 0.9]}, **SMALL | {"lr": 0.001}, rounds=2, out=tmp_path)
    assert ">Grid</h2>" in runs.report().read_text()
    assert ">Grid</h2>" in fedmom.report(tmp_path, tmp_path / "page.html").read_text()
    assert ">Grid</h2>" not in fedmom.report([*runs.values()], tmp_path / "both.html").read_text()
