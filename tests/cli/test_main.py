"""The front: help that is quick and true, mistakes as sentences, signals."""

import json
import subprocess
import sys

import click
import pytest

from fedmom.cli import main as front
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.settings import RunConfig, kebab
from tests.cli.command import invoke, main, words
from tests.conftest import ROOT
from tests.experiments.small import process, wait_for_rounds


def test_help_teaches_with_examples():
    text = invoke("--help")
    assert "fedmom compare" in text
    for name in front.COMMANDS:
        assert f"  {name} " in text


def test_the_help_of_a_command_has_an_option_for_every_setting():
    text = invoke("run", "--help")
    assert "fedmom run --data synthetic" in text
    for name in (*map(kebab, RunConfig.model_fields), "out", "config"):
        assert f"--{name} " in text


@pytest.mark.parametrize("name", front.COMMANDS)
def test_the_line_of_a_command_is_its_own_short_help(name):
    command = front.cli.get_command(click.Context(front.cli), name)
    assert f"{name} {command.get_short_help_str(limit=1000)}" in words(invoke("--help"))
    assert command.name == name


# What a start must not wait for.
SLOW = ("jax", "matplotlib", "optax", "plotly", "scipy", "pandas")
PROBE = """
import sys
from fedmom.cli.start import main
sys.argv[0] = "fedmom"
try:
    main()
except SystemExit as error:
    assert not error.code, error
print([name for name in sys.argv.pop().split() if name in sys.modules], file=sys.stderr)
"""


def loaded(*args, among=SLOW):
    """Which of these modules a command has loaded when it is done."""
    code = PROBE.replace("sys.argv.pop()", repr(" ".join(among)))
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return json.loads(done.stderr.splitlines()[-1].replace("'", '"'))


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["list"], ["data", "list"]], ids=" ".join
)
def test_help_and_lists_wait_for_nothing_slow(args):
    assert loaded(*args) == []


HELP_OF_ALL = f"""
import click, sys
from fedmom.cli.main import cli

def show(command, *names):
    click.Context(command, info_name=" ".join(names)).get_help()
    slow = [name for name in {SLOW} if name in sys.modules]
    print(*names, *slow, sep=",")
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            show(command.get_command(context, name), *names, name)

show(cli, "fedmom")
"""


def test_no_help_waits_for_anything_slow():
    """That of `theory estimate` and its neighbours did."""
    command = [sys.executable, "-c", HELP_OF_ALL]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "fedmom,theory,estimate" in lines
    assert [line for line in lines if set(line.split(",")) & set(SLOW)] == []


def test_a_report_needs_no_jax(tmp_path):
    folder = ROOT / "tests" / "golden" / "folders" / "compare_finished"
    assert loaded("report", str(folder), "--out", "r.html", among=("jax", "optax")) == []
    assert (tmp_path / "r.html").is_file()


MISTAKES = [
    (["run", "--data=synthetik"], "There is no dataset 'synthetik'. Did you mean 'synthetic'"),
    (["run", "--data=nowhere/x.npz"], "There is no nowhere/x.npz"),
    (["run", "--data=femnist"], "fedmom data prepare femnist"),
    (["run", "--data=synthetic", "--model=char_lstm"], "char_lstm reads text data"),
    (["run", "--data=synthetic", "--momentum=1"], "momentum = '1': input should be less than 1"),
    (
        ["run", "--data=synthetic", "--momentum=0.5", "--algorithm=fedavg"],
        "fedavg has no momentum; leave momentum 0.5 out",
    ),
    (["run", "--local-steps=1", "--local-epochs=1"], "local-steps 1 and local-epochs 1.0"),
    (["run", "--rounds=x"], "rounds = 'x': input should be a valid integer"),
    (["run", "--config=none.toml"], "none.toml cannot be read"),
    (["run", "--speed=9"], "No such option"),
    (["run", "--runtime=cluster"], "there is no runtime 'cluster'"),
    (["run", "--data=synthetic", "--runtime=local:threads=2"], "local has no option 'threads'"),
    (["run", "--data=synthetic", "--pace=buffered"], "buffered needs in_flight"),
    (["run", "--data=synthetic", "--sampler=weighted"], "Add --weighting uniform"),
    (["run", "--data=synthetic", "--aggregate=middle"], "There is no rule 'middle'"),
    (["run", "--data=synthetic", "--aggregate=clip:norm=-1+mean"], "norm -1.0 must be a number"),
    (["compare", "--algorithms=fedavg,fedavg"], "none twice"),
    (["compare", "--algorithm=fedavg"], "Did you mean '--algorithms'"),
    (["compare", "--algorithms=fedsdg"], "Did you mean 'fedsgd'"),
    (["sweep", "--data=synthetic"], "There is nothing to vary. Give --grid"),
    (["sweep", "--grid=lr"], "--grid 'lr' is not a setting with values"),
    (["resume", "nothing"], "nothing holds no run"),
    (["report", "nothing"], "There is no folder nothing"),
    (["watch", "nothing"], "There is no folder nothing"),
    (["rum"], "No such command 'rum'"),
    (["paper", "fig9"], "There is no part of the paper 'fig9'"),
    (["data", "stats", "none"], "There is no dataset 'none'"),
    (["data", "prepare", "synthetic"], "--out is missing"),
    (["data", "prepare", "synthetic", "--sf=2", "--out=x"], "--sf 2.0 must be above 0"),
    (["data", "prepare", "shakespeare:roles=3", "--partition=iid", "--out=x"], "is text"),
]


@pytest.mark.parametrize(("args", "says"), MISTAKES, ids=lambda value: str(value)[:60])
def test_mistakes_are_one_sentence_without_a_traceback(monkeypatch, capsys, tmp_path, args, says):
    code, out, err = main(monkeypatch, capsys, *args)
    assert code == 2
    assert says in words(err)
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []  # and nothing is left behind


def test_a_mistake_ends_the_process_with_code_2():
    done = subprocess.run(
        [sys.executable, "-m", "fedmom", "run", "--rounds=x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: rounds = 'x'")


def test_sigterm_is_a_polite_stop(tmp_path):
    folder = tmp_path / "run"
    child = process(
        *("run", "--data=synthetic:clients=6", "--rounds=100000", "--eval-every=100000"),
        *("--out", str(folder)),
    )
    wait_for_rounds(folder, 20, child)
    child.terminate()
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert f"fedmom resume {folder}" in err.replace("\n", "")
    saved = json.loads((folder / "checkpoint" / "checkpoint.json").read_text())["round"]
    logged = RunFolder.open(folder).rows("rounds.jsonl")[-1]["round"]
    assert saved >= 19  # the signal may come between a round's line and the round's end
    assert 0 <= logged - saved <= 1  # nothing finished is lost


def test_help_says_what_options_take():
    shown = words(invoke("run", "--help"))
    for option in (
        *("--clients-per-round INTEGER", "--lr NUMBER|TEXT", "--bad-replies stop|skip"),
        *("--weighting population|cohort|uniform", "--batches random|shuffled", "--data TEXT"),
    ):
        assert f"{option} " in shown
