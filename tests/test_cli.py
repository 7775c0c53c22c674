"""The command line as a user meets it: what it prints, writes and refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedmom.cli import cli
from fedmom.runs import RunFolder

SMALL = ["--data=synthetic", "--rounds=6", "--eval-every=3", "--lr=0.01"]


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fedmom(*args):
    """Run the command line in a process of its own, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "fedmom", *args], capture_output=True, text=True, check=False
    )


def invoke(*args):
    """Run the command line in this process; exceptions pass."""
    result = CliRunner().invoke(cli, list(args), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_help_teaches_with_examples():
    assert "fedmom compare" in invoke("--help")
    text = invoke("run", "--help")
    assert "fedmom run --data synthetic" in text
    options = (
        "data model algorithm rounds clients-per-round batch-size local-steps local-epochs lr"
        " server-lr momentum weighting seed eval-every out config"
    )
    for option in options.split():
        assert f"--{option} " in text


def test_list_names_everything():
    text = invoke("list")
    for name in ("fedsgd", "fedmom", "fedyogi", "char_lstm", "leaf_cnn", "glyphs", "cosine"):
        assert name in text


def test_a_run_prints_its_folder_and_its_last_evaluation(tmp_path):
    done = fedmom("run", *SMALL, "--out", "mine")
    assert done.returncode == 0, done.stderr
    assert "Run folder: mine" in done.stdout
    assert "fedmom 6/6  train loss" in done.stdout
    assert "\x1b" not in done.stdout  # plain when not a terminal
    accuracy = RunFolder.open(tmp_path / "mine").rows("evals.jsonl")[-1]["accuracy"]
    assert f"{accuracy:.3f}" in done.stdout


def test_runs_get_folders_of_their_own():
    assert "Run folder: runs/synthetic-fedmom\n" in invoke("run", *SMALL)
    assert "Run folder: runs/synthetic-fedmom-2\n" in invoke("run", *SMALL)


def test_options_override_the_file(tmp_path):
    Path("c.toml").write_text('data = "synthetic"\nrounds = 4\nlr = 0.5\nlocal-epochs = 1\n')
    invoke("run", "--config", "c.toml", "--lr", "0.02", "--out", "r")
    config = RunFolder.open(tmp_path / "r").experiment().config
    assert (config.rounds, config.lr, config.local_epochs) == (4, 0.02, 1.0)


def test_compare_uses_the_same_cohorts_and_draws_a_figure(tmp_path):
    text = invoke("compare", *SMALL, "--local-steps=4", "--momentum=0.5", "--out=c")
    assert "Figure: c/compare.png" in text
    assert Path("c/compare.png").read_bytes().startswith(b"\x89PNG")
    assert "Test accuracy" in text
    folders = [RunFolder.open(tmp_path / "c" / a) for a in ("fedsgd", "fedavg", "fedmom")]
    cohorts = [[r["cohort"] for r in f.rows("rounds.jsonl")] for f in folders]
    assert cohorts[0] == cohorts[1] == cohorts[2]
    first = [f.rows("evals.jsonl")[0] for f in folders]
    assert first[0] == first[1] == first[2]
    configs = [f.experiment().config for f in folders]
    assert [c.local_steps for c in configs] == [None, 4, 4]
    assert [c.momentum for c in configs] == [None, None, 0.5]


def test_a_comparison_goes_on_where_it_was_stopped(tmp_path):
    invoke("compare", *SMALL, "--algorithms=fedavg,fedmom", "--out=whole")
    invoke("compare", *SMALL, "--algorithms=fedavg,fedmom", "--out=part")
    for name in ("checkpoint/checkpoint.json", "rounds.jsonl", "evals.jsonl"):
        (tmp_path / "part/fedmom" / name).unlink()
    (tmp_path / "part/compare.png").unlink()
    assert "Figure: part/compare.png" in invoke("resume", "part")
    for algorithm in ("fedavg", "fedmom"):
        whole, part = (
            (tmp_path / f / algorithm / "checkpoint/round-00000006.safetensors").read_bytes()
            for f in ("whole", "part")
        )
        assert whole == part


def test_a_comparison_survives_one_that_diverges():
    text = invoke("compare", *SMALL[:-1], "--lr=1e30", "--algorithms=fedsgd,fedmom", "--out=c")
    assert "(stopped)" in text
    assert "Figure: c/compare.png" in text


def test_weights_of_the_papers_range_are_told():
    done = fedmom("run", *SMALL, "--server-lr=100")
    assert done.returncode == 0
    assert "server-lr 100 is outside [1, K/M] = [1, 15]" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "--data=synthetik"], "There is no dataset 'synthetik'. Did you mean 'synthetic'"),
        (["run", "--data=nowhere/x.npz"], "There is no nowhere/x.npz"),
        (["run", "--data=femnist"], "fedmom data prepare femnist"),
        (["run", "--data=synthetic", "--model=char_lstm"], "char_lstm reads text data"),
        (
            ["run", "--data=synthetic", "--momentum=1"],
            "momentum = '1': input should be less than 1",
        ),
        (["run", "--local-steps=1", "--local-epochs=1"], "local-steps 1 and local-epochs 1.0"),
        (["run", "--rounds=x"], "rounds = 'x': input should be a valid integer"),
        (["run", "--config=none.toml"], "none.toml cannot be read"),
        (["run", "--speed=9"], "No such option"),
        (["compare", "--algorithms=fedavg,fedavg"], "each of them once"),
        (["compare", "--algorithm=fedavg"], "compare takes --algorithms"),
        (["compare", "--algorithms=fedsdg"], "Did you mean 'fedsgd'"),
        (["resume", "nothing"], "nothing holds no run"),
        (["data", "stats", "none"], "There is no dataset 'none'"),
        (["data", "prepare", "synthetic"], "--out is missing"),
        (["data", "prepare", "synthetic", "--sf=2", "--out=x"], "--sf 2.0 must be above 0"),
        (["data", "prepare", "shakespeare:roles=3", "--partition=iid", "--out=x"], "is text"),
    ],
)
def test_mistakes_are_one_sentence_without_a_traceback(args, says):
    done = fedmom(*args)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_terminal_gets_a_live_bar():
    import pty

    leader, follower = pty.openpty()
    process = subprocess.Popen(
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
    assert process.wait() == 0
    text = shown.decode()
    for part in ("6/6", "rounds/s", "local loss", "accuracy", "0:00:0"):
        assert part in text


def test_data_prepare_writes_a_store_that_runs(tmp_path):
    out = invoke("data", "prepare", "synthetic", "--sf", "0.5", "-k", "60", "-t", "sample",
                 "--tf", "0.8", "--out", "half")  # fmt: skip
    assert "Use it as --data half" in out
    manifest = json.loads((tmp_path / "half/manifest.json").read_text())
    assert manifest["source"]["flags"]["sf"] == 0.5
    assert "is sound" in invoke("data", "check", "half")
    assert "synthetic" in invoke("data", "stats", "half")
    invoke("run", "--data", "half", "--rounds", "2", "--lr", "0.01", "--out", "r")
    assert (tmp_path / "r/config.toml").read_text().count(str(tmp_path / "half")) == 1


def test_data_check_finds_a_changed_store(tmp_path):
    invoke("data", "prepare", "synthetic", "--out", "s")
    content = bytearray((tmp_path / "s/y.bin").read_bytes())
    content[0] = 99
    (tmp_path / "s/y.bin").write_bytes(content)
    done = fedmom("data", "check", "s")
    assert done.returncode == 2
    assert "y.bin has changed since it was packed" in " ".join(done.stderr.split())
    assert "a label 99 is outside 0..9" in " ".join(done.stderr.split())


def test_data_show_draws_pictures():
    for source, count in (
        ("glyphs:writers=3,samples=20", 2),
        ("shakespeare:roles=4", 2),
        ("synthetic", 1),
    ):
        lines = invoke("data", "show", source, "--out", "p").splitlines()
        assert len(lines) == count
        for line in lines:
            assert Path(line.removeprefix("Figure: ")).read_bytes().startswith(b"\x89PNG")


def test_data_stats_is_table_two():
    text = invoke("data", "stats", "shakespeare:roles=5,samples=1000")
    assert "5,000" in text
    assert "1000.00" in text
    assert "517,106" in text
    assert "395 windows between train and test are left out" in text


def test_femnist_is_prepared_from_archives_at_hand(tmp_path):
    import test_nist

    (tmp_path / "zips").mkdir()
    archives = test_nist.build(tmp_path / "zips")
    text = invoke("data", "prepare", "femnist", "--archives", str(archives.by_class.parent))
    assert "Use it as --data femnist" in text
    assert "is sound" in invoke("data", "check", "femnist")
    assert "femnist" in invoke("data", "list")
