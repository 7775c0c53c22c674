"""`fedmom theory` as a user meets it."""

import json
import re
import shlex
from pathlib import Path

import pytest

from fedmom import theory
from fedmom.experiments import results
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
    largest = theory.CORRECTED_FEDMOM.max_lr(constants, setting)
    last = next(line for line in text.splitlines() if line.startswith("Theorem 2' (corrected)"))
    assert last.split()[-3:] == [
        f"{largest:.3g}",
        f"{theory.CORRECTED_FEDMOM.bound(constants, setting, largest, 300):.3g}",
        f"{theory.CORRECTED_FEDMOM.bound(constants, setting, 0.001, 300):.3g}",
    ]
    best = theory.CORRECTED_FEDMOM.best_lr(constants, setting, 300)
    assert f"fedmom: γ = {best:.3g}" in text


def test_advice_leads_with_experiments_and_draws_what_is_proven():
    grid = ["--grid", "lr=0.0001 0.001", "--grid", "algorithm=fedavg fedmom"]
    shared = ["--rounds=4", "--eval-every=4"]
    invoke("sweep", TASK[0], *shared, *grid, "--out=runs/s")  # in `runs` it looks by itself
    text = invoke("theory", "advise", *TINY, "--rounds=20", "--out=t")
    best = []
    for algorithm in ("fedavg", "fedmom"):
        runs = [results.read(path) for path in sorted(Path("runs/s").glob(f"*{algorithm}*"))]
        accuracy = {run.config.lr: run.last("test", "accuracy") for run in runs}
        winner = max(accuracy, key=accuracy.get)
        best.append(f"{winner:g}")
        said = f"{algorithm}: test accuracy {accuracy[winner]:.3f} after 4 rounds, best of 2 γ"
        assert said in words(text)
        tried = ", ".join(f"{lr:g} ({accuracy[lr]:.3f})" for lr in sorted(accuracy))
        assert f"{algorithm}: γ tried, with test accuracy: {tried}." in text
        end = "largest" if winner == max(accuracy) else "smallest"
        assert f"{algorithm}: {winner:g} has the best mean; it is the {end} γ tried" in text
    assert f"experiments {' '.join(best)}" in words(text)
    order = ("experiments", "run next", "What is proven", "Theorem 1' (corrected)", "Local estima")
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert Path("t/advise.png").read_bytes().startswith(b"\x89PNG")


def test_without_experiments_advice_leads_with_sweeps_that_run():
    text = invoke("theory", "advise", *TINY, "--rounds=3", "--momentum=0.8", "--out=t")
    commands = [line.strip() for line in text.splitlines() if line.startswith("  fedmom sweep")]
    assert text.index(commands[0]) < text.index("What is proven")
    rates = {}
    for command in commands:
        invoke(*shlex.split(command)[1:])
        folder = Path(shlex.split(command)[-1])
        runs = [results.read(path.parent) for path in folder.rglob("config.toml")]
        (algorithm,) = {run.config.algorithm for run in runs}
        assert {run.done for run in runs} == {3}
        rates[algorithm] = sorted({run.config.lr for run in runs})
    beta = 0.9  # the task is FedAvg's, so FedMom's momentum is the default
    assert rates["fedmom"] == pytest.approx([(1 - beta) * lr for lr in rates["fedavg"]], rel=0.05)


def test_advice_without_descent_leaves_the_theorems_out():
    Path("none").mkdir()
    tiny = [word for word in TINY if not word.startswith("--lr")]
    text = invoke("theory", "advise", *tiny, "--lr=1000", "--experiments=none", "--out=t")
    assert "No finished run of this data and model is in none" in text
    assert "fedmom sweep" in text
    assert "never came below its first loss" in text
    assert "What is proven" not in text
    assert not Path("t").exists()


def test_the_counterexample_is_a_table_and_a_figure():
    text = invoke("theory", "counterexample", "--out=t")
    rows = [line for line in text.splitlines() if re.match(r"10*(,000)* ", line)]
    assert "holds" in rows[0]
    assert "is broken" in rows[-1]
    assert Path("t/counterexample.png").read_bytes().startswith(b"\x89PNG")


def test_without_out_nothing_is_written():
    invoke("theory", "counterexample")
    text = invoke("theory", "advise", *TINY, "--rounds=3")
    assert "What is proven" in text
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["bounds", "--L=1"], "--sigma2, --gap, --clients, --clients-per-round"),
        (["bounds", "--estimates=none.json"], "none.json cannot be read"),
        (["bounds", "--estimates=bad.json"], "bad.json is not a file of estimates"),
        (
            ["bounds", *CONSTANTS, *SETTING, "--momentum=1"],
            r"momentum .* is 1\.0\. It must be at least 0 and below 1",
        ),
        (["estimate", *TASK, "--clients=1"], "clients 1 is too few"),
        (["estimate", TASK[0], "--algorithm=fedadam"], "There is no bound for fedadam"),
        (["advise", *TINY, "--experiments=nowhere"], "There is no folder nowhere"),
    ],
)
def test_mistakes_are_sentences(args, says):
    Path("bad.json").write_text('{"estimates": 3}')
    assert re.search(says, refused("theory", *args))
