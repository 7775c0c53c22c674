"""run and resume as a user meets them: what they print, write and refuse."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import fedmom
from fedmom.experiments import results
from fedmom.experiments.folder import RunFolder
from tests.cli.command import SMALL, TOO_LARGE, invoke, main, page, table, words
from tests.experiments.small import checkpoint_bytes, logs


def test_a_run_prints_its_folder_and_its_last_evaluation(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fedmom", "run", *SMALL, "--out", "mine"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout  # plain when not a terminal
    run = results.read(tmp_path / "mine")
    lines = done.stdout.splitlines()
    for train, test in zip(run.evals[::2], run.evals[1::2], strict=True):
        shown = (
            f"fedmom {train['round']}/6  train loss {train['loss']:.4f} accuracy"
            f" {train['accuracy']:.4f}  test loss {test['loss']:.4f} accuracy"
            f" {test['accuracy']:.4f}"
        )
        assert shown in lines
    last = f"{run.last('train', 'loss'):.3f}", f"{run.last('test', 'accuracy'):.3f}"
    assert table(done.stdout)["fedmom"][1:3] == [*last]
    assert "Last evaluation, round 6" in lines
    identical = f"({run.last('test', 'accuracy_p10_identical'):.3f})"
    assert identical in done.stdout
    samples = sum(fedmom.load_data("synthetic:clients=6").test.size)
    assert f"over 6 clients with {samples} test samples in all" in words(done.stdout)
    assert lines[-1] == "Run folder: mine"


def test_runs_get_folders_of_their_own():
    one = ["--data=synthetic:clients=6", "--rounds=1"]
    assert invoke("run", *one).endswith("Run folder: runs/synthetic-clients-6-fedmom\n")
    assert invoke("run", *one).endswith("Run folder: runs/synthetic-clients-6-fedmom-2\n")


def test_options_override_the_file(tmp_path):
    Path("c.toml").write_text(
        'data = "synthetic:clients=6"\nrounds = 4\nlr = 0.5\nlocal-epochs = 1\n'
    )
    invoke("run", "--config", "c.toml", "--lr", "0.02", "--out", "r")
    config = RunFolder.open(tmp_path / "r").settings()
    assert (config.rounds, config.lr, config.local_epochs) == (4, 0.02, 1.0)


def test_every_new_setting_reaches_the_run(tmp_path):
    options = {
        "algorithm": "fedadam:tau=0.1",
        "solver": "sgd:momentum=0.9",
        "aggregate": "clip:norm=0.5+trimmed_mean:share=0.2",
        "weighting": "uniform",
        "sampler": "weighted",
        "pace": "over_selected:extra=0.5",
        "runtime": "local:workers=1",
        "bad-replies": "skip",
    }
    invoke("run", *SMALL, *(f"--{k}={v}" for k, v in options.items()), "--out=r")
    config = RunFolder.open(tmp_path / "r").settings().model_dump(by_alias=True)
    assert {key: config[key] for key in options} == options
    rounds = RunFolder(tmp_path / "r").rows("rounds.jsonl")
    assert [len(r["cohort"]) for r in rounds] == [3] * 6  # two, and half as many more
    assert all(r["update_norm"] <= 0.5 + 1e-6 for r in rounds)


def test_a_run_that_diverges_says_so_everywhere(monkeypatch, capsys, tmp_path):
    code, out, err = main(monkeypatch, capsys, "run", *TOO_LARGE, "--out=r")
    assert code == 2
    assert "error: Round 1: client" in err
    assert "Training diverged: use a smaller --lr" in words(err)
    fact = json.loads((tmp_path / "r/stopped.json").read_bytes())
    assert fact["kind"] == "diverged"
    assert fact["why"] in words(err)
    assert results.read(tmp_path / "r").status == "diverged"
    invoke("report", "r")
    shown = page("r/report.html")
    assert "Diverged: fedmom: 0 of 6 rounds (Round 1: client" in shown
    assert "0 of 6, diverged" in shown
    assert "Unfinished" not in shown
    assert "train loss" in out  # the first evaluation
    code, _, err = main(monkeypatch, capsys, "resume", "r")  # tries again, to the same end
    assert (code, "Training diverged" in words(err)) == (2, True)


def test_a_note_is_shown_at_the_start_and_none_when_a_run_goes_on(
    monkeypatch, capsys, tmp_path, stopped
):
    err = stopped(3, "run", *SMALL, "--server-lr=0.5", "--out=r")
    assert "note: server-lr 0.5 is outside [1, K/M] = [1, 3]" in err
    assert err.count("note: ") == 1
    assert "Resume with: fedmom resume r" in err
    code, out, err = main(monkeypatch, capsys, "resume", "r")
    assert (code, "note: " in err) == (0, False)
    assert "fedmom 6/6" in out
    assert results.read(tmp_path / "r").finished


def test_no_note_where_there_is_nothing_to_say(monkeypatch, capsys):
    assert main(monkeypatch, capsys, "run", *SMALL[:-1], "--lr=1e-5", "--out=r")[2] == ""


def test_resume_goes_on_as_if_the_run_had_never_stopped(tmp_path, stopped):
    options = ["--solver=sgd:momentum=0.5", "--algorithm=fedadam:tau=0.1"]
    invoke("run", *SMALL, *options, "--out=whole")
    stopped(5, "run", *SMALL, *options, "--out=part")
    invoke("resume", "part")
    assert checkpoint_bytes(tmp_path / "part") == checkpoint_bytes(tmp_path / "whole")
    assert logs(tmp_path / "part") == logs(tmp_path / "whole")


def test_a_terminal_gets_a_live_bar():
    import pty

    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "fedmom", "run", *SMALL, "--out", "r"],
        stdout=follower,
        stderr=follower,
        env={**os.environ, "COLUMNS": "150", "TERM": "xterm"},
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    assert child.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    for part in ("6/6", "rounds/s", "loss ", "train acc ", "test acc ", "0:00"):
        assert part in text
