"""Sweeps: the grid, runs side by side, and going on after a stop."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import fedmom
from fedmom import sweeps
from fedmom.cli import cli

SHARED = {"data": "synthetic", "rounds": 6, "eval-every": 3}
GRID = {
    "algorithm": ["fedavg", "fedmom"],
    "lr": [0.001, 0.01],
    "momentum": [0.5, 0.9],
    "seed": [0, 1],
}


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_grid_is_the_product_without_what_is_equal():
    found = sweeps.cells(SHARED, GRID)
    # FedAvg has no momentum: 2 lr x 2 seeds; FedMom: 2 lr x 2 β x 2 seeds.
    assert len(found) == 4 + 8
    assert found["fedavg_lr0.01_seed1"].momentum is None
    assert found["fedmom_lr0.001_momentum0.5_seed0"].momentum == 0.5


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({"speed": [1]}, "no setting 'speed'"),
        ({"lr": []}, "must be a list"),
        ({"lr": 0.1}, "must be a list"),
        ({"lr": [-1]}, "lr = -1"),
    ],
)
def test_mistakes_are_sentences(grid, says):
    with pytest.raises(fedmom.FedMomError, match=says):
        sweeps.cells(SHARED, grid)


def run(*args):
    result = CliRunner().invoke(cli, list(args), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_a_run_of_a_sweep_is_the_run_alone(tmp_path):
    options = ["--data=synthetic", "--rounds=6", "--eval-every=3"]
    text = run(
        "sweep", *options, "--grid=algorithm=fedavg fedmom", "--grid=lr=0.001 0.01", "--out=s"
    )
    assert "Table: s/sweep.csv" in text
    run("run", *options, "--algorithm=fedmom", "--lr=0.01", "--out=alone")
    one, other = (
        (tmp_path / folder / "checkpoint/round-00000006.safetensors").read_bytes()
        for folder in ("alone", "s/fedmom_lr0.01")
    )
    assert one == other
    rows = (tmp_path / "s/sweep.csv").read_text().splitlines()
    assert len(rows) == 1 + 4
    accuracies = [float(r.split(",")[3]) for r in rows[1:]]
    assert accuracies == sorted(accuracies, reverse=True)


def test_a_file_may_hold_the_grid_and_seeds_are_taken_together(tmp_path):
    Path("g.toml").write_text(
        'data = "synthetic"\nrounds = 4\n'
        '[grid]\nlr = [0.001, "inverse:start=0.01"]\nseed = [0, 1, 2]\n'
    )
    run("sweep", "--config", "g.toml", "--out", "s")
    rows = [r.split(",") for r in (tmp_path / "s/sweep.csv").read_text().splitlines()[1:]]
    assert [r[1] for r in rows] == ["3", "3"]
    finals = [
        json.loads(p.read_text().splitlines()[-1])["accuracy"]
        for p in sorted(tmp_path.glob("s/lr0.001_seed*/evals.jsonl"))
    ]
    ours = next(r for r in rows if r[0] == "lr0.001")
    assert float(ours[3]) == pytest.approx(sum(finals) / 3)


def test_one_that_diverges_does_not_stop_the_rest():
    text = run("sweep", "--data=synthetic", "--rounds=4", "--grid=lr=0.001 1e38", "--out=s")
    assert "Table: s/sweep.csv" in text
    assert "lr1e38 stopped: Round" in " ".join(text.split())


def test_a_stopped_sweep_goes_on(tmp_path):
    options = [
        "--data=synthetic",
        "--rounds=300",
        "--eval-every=100",
        "--grid=lr=0.001 0.002 0.003",
    ]
    run("sweep", *options, "--out=whole")
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmom", "sweep", *options, "--out=part"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
    )
    log = tmp_path / "part/lr0.002/rounds.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and len(log.read_bytes()) > 2000) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err.decode()
    assert "fedmom resume part" in " ".join(err.decode().split())
    run("resume", "part")
    for name in ("lr0.001", "lr0.002", "lr0.003"):
        one, other = (
            (tmp_path / f / name / "checkpoint/round-00000300.safetensors").read_bytes()
            for f in ("whole", "part")
        )
        assert one == other
