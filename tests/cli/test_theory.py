"""`fedmom theory` as a user meets it."""

import json
import re
from pathlib import Path

import pytest

from fedmom import theory
from fedmom.experiments import results
from fedmom.theory import advice
from fedmom.theory.constants import Constants, Setting
from tests.cli.command import invoke, refused, words

TASK = ["--data=synthetic:clients=6", "--lr=0.001", "--algorithm=fedavg"]
TINY = [*TASK, "--clients=3", "--samples=8", "--models=2", "--short-run=4"]
CONSTANTS = ["--L=2", "--sigma2=0.5", "--gap=3", "--G2=0.1", "--B2=1.5"]
SETTING = ["--clients=20", "--clients-per-round=4", "--local-steps=5"]


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


def test_advice_shows_theory_and_experiments_and_draws_both():
    grid = ["--grid", "lr=0.0001 0.001", "--grid", "algorithm=fedavg fedmom"]
    shared = ["--rounds=4", "--eval-every=4"]
    invoke("sweep", TASK[0], *shared, *grid, "--out=s")
    text = invoke("theory", "advise", *TINY, "--rounds=20", "--experiments=s", "--out=t")
    for part in ("Local estimates", "Theorem 1' (corrected)", "least corrected bound", "loose"):
        assert part in text
    best = []
    for algorithm in ("fedavg", "fedmom"):
        runs = [results.read(path) for path in sorted(Path("s").glob(f"*{algorithm}*"))]
        accuracy = {run.config.lr: run.last("test", "accuracy") for run in runs}
        winner = max(accuracy, key=accuracy.get)
        best.append(str(winner))
        said = f"{algorithm}: test accuracy {accuracy[winner]:.3f} after 4 rounds, best of 2 γ"
        assert said in words(text)
    assert f"experiments {' '.join(best)}" in words(text)
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
