"""A run whose model is measured by something else than accuracy, from its log to its page."""

import io
import json

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

import fedmom
from fedmom.api import trained_model
from fedmom.api.live_progress import RunProgress, _score
from fedmom.cli.report import report
from fedmom.data.federated import FederatedData, Split, aligned
from fedmom.experiments import build, logs, seed_statistics, settings
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.results import Group, Result, as_groups, read, target
from fedmom.experiments.settings import RunConfig
from fedmom.reports import curves, differences, result_tables, run_page, sweep_page

K, N, D, OUT = 4, 30, 3, 2


def values_of_clients():
    """Two values to predict from three numbers, a little different for every client."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(K * N, D)).astype(np.float32)
    slope = rng.normal(size=(D, OUT))
    y = (x @ slope + rng.normal(size=(K * N, OUT)) * 0.1).astype(np.float32)
    start = np.arange(K) * N
    return FederatedData(
        name="values",
        users=[f"u{k}" for k in range(K)],
        features=fedmom.Features("vector", (D,), OUT, "regression"),
        arrays={"x": aligned(x), "y": aligned(y)},
        train=Split(start, np.full(K, N - 10)),
        test=Split(start + N - 10, np.full(K, 10)),
    )


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    """A run of linear regression: its data, its folder and what it printed."""
    path, data, console = tmp_path_factory.mktemp("runs") / "r", values_of_clients(), io.StringIO()
    values = {"data": "synthetic", "model": "logreg", "rounds": 8, "lr": 0.1, "eval-every": 4}
    experiment = build.prepare(settings.parse({**values, "clients-per-round": 2}), data)
    progress = RunProgress(Console(file=console, width=300), {path: experiment})
    execute(RunFolder.create(path, experiment.config), experiment, [progress])
    return data, read(path), console.getvalue()


def test_the_log_has_the_models_metrics_and_no_other(regression):
    data, run, _ = regression
    row = run.evals[-1]
    percentiles = [f"{name}_p{p}" for name in ("mse", "mae") for p in (10, 50, 90)]
    names = ["mse", *percentiles[:3], "mae", *percentiles[3:]]
    rest = ["clients", "samples", "lower_is_better"]
    assert list(row) == ["round", "split", "loss", *names, *rest]
    assert row["lower_is_better"] == ["mse", "mae"]
    tensors = load_file(run.path / "checkpoint" / "round-00000008.safetensors")
    (w,) = (t for name, t in tensors.items() if t.shape == (D, OUT) and name.startswith("[0]"))
    (b,) = (t for name, t in tensors.items() if t.shape == (OUT,) and name.startswith("[0]"))
    rows = np.concatenate([np.arange(s, s + 10) for s in data.test.start])
    errors = data.arrays["x"][rows] @ w + b - data.arrays["y"][rows]
    squares = (errors**2).mean(1).reshape(K, 10).mean(1)
    assert row["mse"] == pytest.approx((errors**2).mean(), rel=1e-4)
    assert row["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    assert row["mse_p90"] == pytest.approx(np.percentile(squares, 90), rel=1e-4)
    assert row["loss"] == row["mse"]


def test_lower_is_better_where_it_is(regression):
    _, run, _ = regression
    assert (run.metrics, run.metric) == (["mse", "mae"], "mse")
    assert (run.better("mse"), run.better("accuracy")) == (-1, 1)
    curve = dict(run.curve("test", "mse"))
    assert curve[8] < curve[4] < curve[0]
    assert run.best() == curve[8]
    assert run.rounds_to(curve[4]) == 4
    assert run.rounds_to(curve[8] / 2) is None


def test_tables_curves_lines_and_pages_show_them(regression, tmp_path):
    _, run, printed = regression
    last = run.last("test", "mse"), run.last("test", "mae")
    assert f"mse {last[0]:.4f} mae {last[1]:.4f}" in printed.splitlines()[-1]
    assert _score("test", run.evals[-1]) == f"test mse {last[0]:.3f}"
    groups = [Group("ours", [run])]
    grid = result_tables.grid(groups, target(groups))
    shown = dict(zip(grid.columns, grid.rows[0], strict=True))
    assert (shown["test mse"], shown["test mae"]) == tuple(f"{value:.4g}" for value in last)
    assert shown["p90"] == f"{run.last('test', 'mse_p90'):.4g}"
    assert "identical" not in grid.note
    titles = [chart.title for chart in curves.evaluations(groups).charts]
    assert titles == ["Training loss", "Test mse", "Test mae", "Test mse, p90 of clients"]
    view = run_page.overview([run])
    page = run_page.write(view, tmp_path / "page.html").read_text()
    assert "test mse" in page
    assert "ccuracy" not in page.partition("<script")[0] + printed


def ended(seed, **metrics):
    rows = [{"round": 1, "split": split, "loss": 1.0, **metrics} for split in ("train", "test")]
    return Result(None, RunConfig(rounds=1, seed=seed), rows)


def test_the_lower_error_is_ahead_and_ranks_first():
    low = ["mse"]
    better, worse = (
        Group(label, [ended(s, mse=level * (1 + 0.01 * s), lower_is_better=low) for s in range(4)])
        for label, level in (("better", 1.0), ("worse", 2.0))
    )
    assert seed_statistics.ranking_measure([worse, better]).better == -1
    family, _ = differences.families([worse, better])
    assert differences.sentence(family).startswith(
        "Test mse over 4 seeds: better is ahead of worse"
    )
    note = differences.grid(family).note
    assert "Lower is better." in note
    assert "Equal" not in note  # errors have no margin that suits all
    grid = sweep_page.ranking([worse, better])
    assert grid.title == "Best first, by test mse"
    assert [row[0] for row in grid.rows] == ["better", "worse"]
    assert target([worse, better]) == pytest.approx(2.06)  # of the runner-up's seeds, the worst
    assert (
        result_tables.verdict([worse, better], 1.5)
        == "Test mse 1.5: better took 1 rounds (no other did)."
    )


def test_a_model_without_metrics_is_ranked_by_its_loss():
    groups = [Group("a", [ended(0)]), Group("b", [ended(1)])]
    grid = result_tables.grid(groups, target(groups))
    assert "test loss" in grid.columns
    assert "p10" not in grid.columns
    assert [chart.title for chart in curves.evaluations(groups).charts] == [
        "Training loss",
        "Test loss",
    ]


def gap(outputs, labels):
    return jnp.abs(outputs - labels).mean(-1)


def compared(path, metric, *callbacks):
    """Two rules on values of clients, one of which reaches a far smaller error."""
    data = values_of_clients()
    functions = lambda _key: jnp.zeros((D, OUT)), lambda w, x, _key: x @ w
    model = fedmom.model(functions, data, metrics=[metric])
    how = {"rounds": 4, "lr": 0.1, "local_steps": 5, "seeds": 3, "clients_per_round": 4}
    how |= {"out": path, "progress": False, "callbacks": list(callbacks)}
    return fedmom.compare(["fedavg", "fedsgd"], data=data, model=model, **how)


@pytest.mark.parametrize("metric", [gap, fedmom.Metric("gap", gap)])
def test_a_metric_that_does_not_say_which_values_are_better_has_no_verdict(tmp_path, metric):
    runs = compared(tmp_path / "runs", metric)
    row = runs["fedavg_seed0"].result.evals[-1]
    assert row["unranked"] == ["gap"]
    assert "lower_is_better" not in row
    run = runs["fedavg_seed0"].result
    assert (run.metrics, run.metric, run.better("gap")) == (["gap"], "loss", 0)
    assert set(runs.findings["measure"]) == {"test loss", "training loss"}
    assert not {"unranked", "lower_is_better"} & set(runs.evals.columns)
    groups = [Group(name, [each.result]) for name, each in runs.items()]
    grid = result_tables.grid(groups, target(groups))
    assert "test gap" in grid.columns
    assert "No verdict on gap" in grid.note
    assert "No verdict on gap" in sweep_page.ranking(groups).note
    assert sweep_page.ranking(groups).title == "Best first, by test loss"
    titles = [chart.title for chart in curves.evaluations(groups).charts]
    assert titles == ["Training loss", "Test loss", "Test gap"]
    assert "Test gap over" not in runs.report().read_text()


def no_number(outputs, labels):
    return gap(outputs, labels) * jnp.nan


def test_a_metric_without_a_value_is_nan_everywhere(tmp_path):
    metric = fedmom.Metric("gap", no_number, higher_is_better=False)
    seen = []
    runs = compared(tmp_path / "runs", metric, lambda event: seen.append(event.evals))
    assert np.isnan(seen[0]["test"]["gap"])
    run = fedmom.load(tmp_path / "runs")["fedavg_seed0"]
    row = run.result.evals[-1]
    assert np.isnan(row["gap"])
    assert "gap_p10" not in row
    assert '"gap": null' in (run.path / "evals.jsonl").read_text()
    groups = as_groups({name: each.result for name, each in runs.items()})
    grid = result_tables.grid(groups, target(groups))
    cells = dict(zip(grid.columns, grid.rows[0], strict=True))
    assert cells["test gap"] == "nan"
    assert {"not settled"} == set(runs.findings.set_index("measure").loc[["test gap"]]["finding"])
    assert [row[0] for row in sweep_page.ranking(groups).rows] == [g.label for g in groups]
    assert runs.report().exists()
    assert run.resume(progress=False).status == "finished"


def test_a_metric_of_which_lower_is_better_ranks_so(tmp_path):
    runs = compared(tmp_path / "runs", fedmom.Metric("gap", gap, higher_is_better=False))
    found = runs.findings.set_index("measure").loc["test gap"]
    last = {name: run.result.last("test", "gap") for name, run in runs.items()}
    assert last["fedavg_seed0"] < last["fedsgd_seed0"] / 2
    assert (found["run"], found["other"], found["finding"]) == ("fedsgd", "fedavg", "behind")


@pytest.mark.parametrize("value", ["mse", 3, [1], [{}], None])
def test_what_is_no_list_of_names_is_a_sentence(tmp_path, value):
    row = {"round": 0, "split": "test", "loss": 1.0, "mse": 1.0, "lower_is_better": value}
    (tmp_path / "evals.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(fedmom.FedMomError, match="its lower_is_better is"):
        logs.read(tmp_path / "evals.jsonl")


def test_a_model_card_has_numbers_only(regression):
    _, run, _ = regression
    assert "lower_is_better" not in trained_model._metrics(run.evals)


def test_a_target_is_a_value_of_the_metric(regression, tmp_path, monkeypatch):
    _, run, _ = regression
    monkeypatch.chdir(tmp_path)
    goal = dict(run.curve("test", "mse"))[4]
    report.callback((run.path,), tmp_path / "page.html", goal)
    assert f"rounds to {goal:.4g}" in (tmp_path / "page.html").read_text()
