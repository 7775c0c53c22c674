"""`fedmom theory` as a user meets it, and the line at the start of a run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fedmom
from fedmom import config as settings
from fedmom import theory
from fedmom.cli import cli
from fedmom.theory import advice, check
from fedmom.theory.quantities import Constants, Setting

TASK = ["--data=synthetic:clients=6", "--lr=0.001", "--algorithm=fedavg"]
TINY = [*TASK, "--clients=3", "--samples=8", "--models=2", "--short-run=4"]
CONSTANTS = ["--L=2", "--sigma2=0.5", "--gap=3", "--G2=0.1", "--B2=1.5"]
SETTING = ["--clients=20", "--clients-per-round=4", "--local-steps=5"]


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def invoke(*args):
    result = CliRunner().invoke(cli, list(args), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def refused(*args):
    result = CliRunner().invoke(cli, list(args))
    assert isinstance(result.exception, fedmom.FedMomError)
    return str(result.exception)


def test_estimates_are_printed_and_serve_for_bounds():
    text = invoke("theory", "estimate", *TINY, "--out=c.json")
    for part in ("Local estimates", "L ", "σ²", "G²", "B²", "f(w_0) - f_inf", "are local"):
        assert part in text
    row = json.loads(Path("c.json").read_text())
    assert row["setting"]["clients"] == 6
    assert row["estimates"]["rounds"][-1] == 4
    assert f"{row['estimates']['smoothness']['value']:.3g}" in text
    bounds = invoke("theory", "bounds", "--estimates=c.json", "--rounds=50")
    assert "K = 6, M = 2, H = 10, η = 3" in bounds
    assert "K = 9" in invoke("theory", "bounds", "--estimates=c.json", "--clients=9")


def test_bounds_are_those_of_the_theory():
    options = [*CONSTANTS, *SETTING, "--server-lr=2", "--momentum=0.5", "--rounds=300"]
    text = invoke("theory", "bounds", *options, "--lr=0.001")
    constants = Constants(smoothness=2, variance=0.5, gap=3, dissimilarity=0.1, similarity=1.5)
    setting = Setting(clients=20, per_round=4, local_steps=5, server_lr=2, momentum=0.5)
    largest = theory.corrected_fedmom_max_lr(constants, setting)
    last = next(line for line in text.splitlines() if line.startswith("Theorem 2' (corrected)"))
    assert last.split()[-3:] == [
        f"{largest:.3g}",
        f"{theory.corrected_fedmom(constants, setting, largest, 300):.3g}",
        f"{theory.corrected_fedmom(constants, setting, 0.001, 300):.3g}",
    ]
    best = theory.corrected_best_lr(constants, setting, 300)
    assert f"fedmom: γ = {best:.3g}" in text


def test_statements_are_silent_where_they_do_not_hold():
    constants = Constants(smoothness=2, variance=0.5, gap=3)
    outside = Setting(clients=20, per_round=4, local_steps=5, server_lr=6, momentum=0.5)
    rows = {r.name: r for r in advice.statements(constants, outside, 100, lr=1e9)}
    assert rows["Theorem 1 (paper)"].largest_lr is None
    assert rows["Theorem 2 (paper)"].largest_lr is None
    assert rows["Theorem 2' (corrected)"].largest_lr > 0
    assert all(r.bound_at is None for r in rows.values())


def test_advice_shows_theory_and_experiments_and_draws_both():
    grid = ["--grid", "lr=0.0001 0.001", "--grid", "algorithm=fedavg fedmom"]
    shared = ["--rounds=4", "--eval-every=4"]
    invoke("sweep", TASK[0], *shared, *grid, "--out=s")
    text = invoke("theory", "advise", *TINY, "--rounds=20", "--experiments=s", "--out=t")
    for part in ("Local estimates", "Theorem 1' (corrected)", "least corrected bound", "loose"):
        assert part in text
    accuracy = {}
    for folder in Path("s").glob("*fedavg*"):
        run = fedmom.runs.RunFolder.open(folder)
        accuracy[run.settings().lr] = run.rows("evals.jsonl")[-1]["accuracy"]
    winner = max(accuracy, key=accuracy.get)
    words = re.sub(r"\s+", " ", text)
    assert f"experiments {winner}" in words
    assert "best of 2 γ" in words
    assert Path("t/advise.png").read_bytes().startswith(b"\x89PNG")


def test_advice_says_how_to_get_experiments(tmp_path):
    text = invoke("theory", "advise", *TINY, "--out=t")
    assert "fedmom sweep" in text
    (tmp_path / "none").mkdir()
    assert advice.found_best(tmp_path / "none", "synthetic", "logreg", "fedmom") is None


def test_the_counterexample_is_a_table_and_a_figure():
    text = invoke("theory", "counterexample", "--out=t")
    rows = [line for line in text.splitlines() if re.match(r"10*(,000)* ", line)]
    assert "holds" in rows[0]
    assert "is broken" in rows[-1]
    assert Path("t/counterexample.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["bounds", "--L=1"], "--sigma2, --gap, --clients, --clients-per-round"),
        (["bounds", "--estimates=none.json"], "none.json cannot be read"),
        (["bounds", "--estimates=bad.json"], "bad.json is no file of estimates"),
        (["bounds", *CONSTANTS, *SETTING, "--momentum=1"], r"momentum 1.0 is not in \[0, 1\)"),
        (["estimate", *TASK, "--clients=1"], "clients 1 is too few"),
        (["estimate", TASK[0], "--algorithm=fedadam"], "The theory does not speak of fedadam"),
        (["advise", *TINY, "--experiments=nowhere"], "There is no folder nowhere"),
    ],
)
def test_mistakes_are_sentences(args, says):
    Path("bad.json").write_text('{"estimates": 3}')
    assert re.search(says, refused("theory", *args))


def prepared(**values):
    return settings.prepare(settings.parse({"data": "synthetic:clients=6", **values}))


def test_a_step_that_no_theorem_covers_is_told_in_one_line():
    experiment = prepared(lr=0.5)
    (note,) = check.notes(experiment)
    setting = check.setting_of(experiment)
    smoothness = check.quick_smoothness(experiment)
    constants = Constants(smoothness=smoothness, variance=0, gap=0)
    largest = theory.corrected_fedmom_max_lr(constants, setting)
    for part in (f"lr 0.5 is above {largest:.2g}", "η = 3", "H = 10", "docs/theory.md"):
        assert part in note
    assert "\n" not in note
    assert check.notes(prepared(lr=largest * 0.99)) == []
    assert check.notes(prepared(lr=f"linear:start={largest / 2},end=1,rounds=9"))  # later on


@pytest.mark.parametrize(
    "values", [{"solver": "adam"}, {"weighting": "cohort"}, {"algorithm": "fedadam"}, {"prox": 1}]
)
def test_what_the_theorem_does_not_speak_of_is_not_told(values):
    assert check.notes(prepared(lr=100.0, **values)) == []


def test_the_quick_smoothness_is_below_the_true_one():
    """The Hessian of a sample of logistic regression is at most |(x, 1)|²/2."""
    experiment = prepared(seed=4)
    smallest = int(np.argmin(experiment.data.train.size))
    start, size = (int(v[smallest]) for v in experiment.data.train)
    x = experiment.data.arrays["x"][start : start + size]
    found = check.quick_smoothness(experiment)
    assert 0 < found <= (np.sum(x**2, axis=1) + 1).max() / 2


def test_setting_of_a_run_is_what_it_does():
    experiment = prepared(**{"local-epochs": 2, "batch-size": 7, "momentum": 0.3})
    setting = check.setting_of(experiment)
    mean = round(experiment.data.train.size.mean())
    sizes = experiment.data.train.size
    assert setting.local_steps == 2 * -(-mean // 7)
    assert (setting.clients, setting.per_round, setting.server_lr) == (6, 2, 3.0)
    assert setting.momentum == 0.3
    assert setting.largest_weight == pytest.approx(sizes.max() / sizes.sum())
