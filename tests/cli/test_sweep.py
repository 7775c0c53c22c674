"""sweep as a user meets it: the ranking, a grid in a file, runs that diverge, signals."""

import csv
import json
import re
import signal
from pathlib import Path

import pytest

from fedmom.experiments import results
from fedmom.reports import sweep_page
from tests.cli.command import SMALL, invoke, main, page, refused, words
from tests.experiments.small import checkpoint_bytes, logs, process, wait_for_rounds


def test_a_sweep_is_ranked_on_the_terminal_and_in_a_file(tmp_path):
    options = ["--data=synthetic:clients=6", "--rounds=6", "--eval-every=3"]
    text = invoke(
        *("sweep", *options, "--grid=algorithm=fedavg fedmom", "--grid=lr=0.001 0.01", "--out=s")
    )
    assert "Table: s/sweep.csv" in text
    header, *rows = csv.reader((tmp_path / "s/sweep.csv").read_text().splitlines())
    assert header == [name.format("accuracy") for name in sweep_page.FILE_COLUMNS]
    assert len(rows) == 4
    rows = [dict(zip(header, row, strict=True)) for row in rows]
    accuracies = [float(row["test accuracy"]) for row in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    for row in rows:
        run = results.read(tmp_path / "s" / row["runs"])
        assert (row["seeds"], row["stopped"], row["test accuracy low"]) == ("1", "0", "")
        assert float(row["train loss"]) == run.last("train", "loss")
        assert float(row["test accuracy"]) == run.last("test", "accuracy")
        assert float(row["best"]) == run.best()
        shown = f"{row['runs']} 1 {float(row['train loss']):.3f} {float(row['test accuracy']):.3f}"
        assert shown in words(text)
    assert "One seed is not evidence" in words(text)


def test_a_file_may_hold_the_grid_and_seeds_are_taken_together(tmp_path):
    Path("g.toml").write_text(
        'data = "synthetic:clients=6"\nrounds = 4\n'
        '[grid]\nlr = [0.001, "inverse:start=0.01"]\nseed = [0, 1, 2]\n'
    )
    text = invoke("sweep", "--config", "g.toml", "--out", "s")
    assert re.search(r"vs\. +best\nruns .* best +finding", text)
    assert "report it on other seeds, such as fedmom compare --seed 100" in words(text)
    rows = [r.split(",") for r in (tmp_path / "s/sweep.csv").read_text().splitlines()[1:]]
    assert [r[1] for r in rows] == ["3", "3"]
    finals = [
        json.loads(p.read_text().splitlines()[-1])["accuracy"]
        for p in sorted(tmp_path.glob("s/lr0.001_seed*/evals.jsonl"))
    ]
    ours = next(r for r in rows if r[0] == "lr0.001")
    assert float(ours[3]) == pytest.approx(sum(finals) / 3)


def test_a_sweep_survives_one_that_diverges(tmp_path):
    text = invoke("sweep", *SMALL[:3], "--grid=lr=0.001 1e38", "--out=s")
    assert "Table: s/sweep.csv" in text
    assert "lr1e38 stopped: Round 1: client" in words(text)
    rows = {r[0]: r for r in csv.reader((tmp_path / "s/sweep.csv").read_text().splitlines())}
    assert (rows["lr0.001"][-1], rows["lr1e38"][-1]) == ("0", "1")
    assert results.read(tmp_path / "s/lr1e38").diverged
    again = invoke("resume", "s")
    assert "lr1e38 stopped: Round 1: client" in words(again)
    invoke("report", "s")
    assert "Diverged: lr1e38: 0 of 6 rounds (Round 1: client" in page("s/report.html")


def test_a_sweep_of_which_all_diverge_is_shown_and_is_an_error(monkeypatch, capsys):
    options = [*SMALL[:3], "--grid=lr=1e37 1e38", "--out=s"]
    code, out, err = main(monkeypatch, capsys, "sweep", *options)
    assert code == 2
    assert "Page: s/sweep.html" in out
    assert "No run reached its last round, for the reasons above." in words(err)


def test_a_sweep_of_which_nothing_can_run_is_an_error(tmp_path):
    invoke("sweep", *SMALL[:1], "--rounds=1", "--grid=seed=0 1", "--out=s")
    for pointer in tmp_path.glob("s/*/checkpoint/*.json"):
        pointer.write_text("damaged")
    assert refused("resume", "s") == "No run of s could be run, for the reasons above."


def test_a_sweep_stopped_by_a_signal_goes_on(tmp_path):
    options = [
        "--data=synthetic:clients=6",
        "--rounds=800",
        "--eval-every=10",
        "--grid=lr=0.001 0.002 0.003",
    ]
    invoke("sweep", *options, "--out=whole")
    child = process("sweep", *options, "--out=part")
    wait_for_rounds(tmp_path / "part/lr0.002", 10, child)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 130, err
    assert "fedmom resume part" in words(err)
    assert not (tmp_path / "part/sweep.csv").exists()
    invoke("resume", "part")
    for name in ("lr0.001", "lr0.002", "lr0.003"):
        one, other = (tmp_path / f / name for f in ("whole", "part"))
        assert checkpoint_bytes(one) == checkpoint_bytes(other)
        assert logs(one) == logs(other)
    whole, part = (tmp_path / f / "sweep.csv" for f in ("whole", "part"))
    assert whole.read_bytes() == part.read_bytes()
