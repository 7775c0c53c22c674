"""The whole reproduction: what is run once, and what is kept."""

import io
import json
import re
from functools import partial
from html import unescape

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from fedmom.cli.main import cli
from fedmom.core.errors import FedMomError
from fedmom.experiments.build import prepare
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.results import Result
from fedmom.reports import drawing
from fedmom.reproduction import directions, plan, runner
from fedmom.reproduction.page import make
from tests.reproduction.tiny import TINY

ALL = list(plan.PARTS)
QUIET = Console(quiet=True)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Small populations for the tiny plan, which stands in the place of the quick one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(plan.SCALES, "quick", TINY)
    rng = np.random.default_rng(0)
    for name, clients in (("images", 12), ("texts", 10)):
        user = np.repeat(np.arange(clients), 20)
        x = rng.normal(size=(len(user), 5)).astype(np.float32)
        np.savez(
            f"{name}.npz",
            x=x,
            y=(x @ rng.normal(size=(5, 3))).argmax(1),
            user=user,
            users=np.array([f"u{k}" for k in range(clients)]),
            is_test=np.arange(len(user)) % 20 >= 15,
        )
    return tmp_path


@pytest.fixture
def nothing_trained(monkeypatch):
    """Fail the test if anything is trained or replayed."""

    def refuse(*_, **__):
        raise AssertionError("nothing may be trained here")

    def forbid():
        monkeypatch.setattr(runner, "side_by_side", refuse)
        monkeypatch.setattr(directions, "replay", refuse)

    return forbid


def contents(folder, *patterns):
    paths = sorted(p for pattern in patterns for p in folder.glob(pattern))
    assert paths
    return {p.relative_to(folder): p.read_bytes() for p in paths}


def test_everything_is_run_once(tiny, monkeypatch, nothing_trained):
    folder = tiny / "all"
    monkeypatch.setattr(drawing, "save", partial(drawing.save, formats=("svg",)))
    printed = Console(file=io.StringIO(), width=200)
    made = make(folder, TINY, ALL, printed)
    assert made.page == folder / "paper.html"
    assert made.progress == ""
    text = unescape(made.page.read_text())
    assert all(title in text for title in ("Verdicts", "Figure 6", "Beyond the paper"))
    assert all(verdict.claim in text for verdict in made.verdicts)
    drawn = {p.stem for p in (folder / "figures").iterdir()}
    assert {"fig2", "fig3", "fig4", "fig5", "fig5b", "fig6", "beyond", "author"} <= drawn
    # Runs that diverged are remembered, and told of.
    cache = runner.Cache(folder / "runs", TINY)
    wanted = plan.wanted(TINY, ALL, cache.choose)
    ended = cache.results(wanted)
    assert len(ended) == len(wanted) == len(list((folder / "runs").iterdir()))
    diverged = [run for run in ended if run.diverged]
    assert {run.config.lr for run in diverged} >= {1e38}
    for run in diverged:
        assert json.loads((run.path / "stopped.json").read_bytes())["kind"] == "diverged"
    lines = printed.file.getvalue().splitlines()
    assert sum("not finite" in line for line in lines) == len(diverged)
    assert sum(line.endswith(": done") for line in lines) == len(wanted) - len(diverged)

    kept = ("tables/*.md", "runs/*/rounds.jsonl", "runs/*/config.toml", "probes/*.json")
    before = contents(folder, *kept)
    nothing_trained()
    monkeypatch.setattr(drawing, "save", lambda *_, **__: [])  # slow, and seen above
    make(folder, TINY, ALL, QUIET)
    assert contents(folder, *kept) == before


def test_runs_are_found_by_their_settings_and_drawn_before_all_have_ended(tiny):
    config = TINY.run(TINY.femnist, "fedavg", 0.01, 0)
    experiment = prepare(config)
    execute(RunFolder.create(tiny / "out/runs/from-elsewhere", experiment.config), experiment)
    cache = runner.Cache(tiny / "out/runs", TINY)
    assert cache.result(config).path.name == "from-elsewhere"
    called = CliRunner().invoke(
        cli, ["paper", "fig6", "--no-train", "--out", "out"], catch_exceptions=False
    )
    assert called.exit_code == 0
    assert "Page: out/paper.html" in called.output
    assert re.search(r"Not finished: 1 of at least \d+ runs", called.output)
    assert len(list((tiny / "out/runs").iterdir())) == 1
    assert {p.stem for p in (tiny / "out/figures").iterdir()} == {"fig6"}


def test_a_run_counts_once_its_checkpoint_is_the_last(tiny):
    """The log of a killed run may hold the last round while its model is not saved."""
    config = TINY.run(TINY.femnist, "fedavg", 0.01, 0)
    experiment = prepare(config)
    path = execute(RunFolder.create(tiny / "runs/r", experiment.config), experiment).path
    assert runner.Cache(tiny / "runs", TINY).result(config) is not None
    pointer = path / "checkpoint" / "checkpoint.json"
    for damaged in ('{"round": 11, "tensors": "x"}', "{}", "[]", "{"):
        pointer.write_text(damaged)
        assert runner.Cache(tiny / "runs", TINY).result(config) is None


def test_claims_that_were_not_asked_about_are_left_out(tiny, nothing_trained):
    nothing_trained()
    made = make(tiny / "tables", TINY, ["table1", "table2"], QUIET)
    assert made.verdicts == []
    assert "not measured" not in made.page.read_text()
    whole = make(tiny / "all", TINY, ALL, QUIET, train=False)
    assert {str(verdict.status) for verdict in whole.verdicts} == {"not measured"}


@pytest.mark.parametrize("form", ["error", "result"])
def test_what_is_no_divergence_is_raised(tiny, monkeypatch, form):
    why = "The reply of client 3 cannot be used."

    def fail(experiments, _advanced, ended, **_how):
        for path, experiment in experiments.items():
            stopped = Result(path, experiment.config, [], stop="stopped", why=why)
            ended(path, FedMomError(why) if form == "error" else stopped)

    monkeypatch.setattr(runner, "side_by_side", fail)
    with pytest.raises(FedMomError, match="client 3 cannot be used"):
        make(tiny / "out", TINY, ["fig6"], QUIET)
    assert not list((tiny / "out").glob("runs/*/stopped.json"))


def test_mistakes_are_sentences(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedMomError, match=r"no part of the paper 'fig7'.*fig2"):
        CliRunner().invoke(cli, ["paper", "fig7"], catch_exceptions=False)
    with pytest.raises(FedMomError, match=r"There is no nowhere\.npz"):
        CliRunner().invoke(
            cli, ["paper", "fig2", "--femnist", "nowhere.npz"], catch_exceptions=False
        )


def test_a_run_that_fails_does_not_stop_the_others(tiny):
    """Its checkpoint is damaged; what it is about is said once all others have ended."""
    cache = runner.Cache(tiny / "out/runs", TINY)
    failing, *others = plan.wanted(TINY, ["fig3"], cache.choose, 1)
    RunFolder.create(cache.path(failing), prepare(failing).config)
    checkpoint = cache.path(failing) / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "checkpoint.json").write_text("damaged")
    with pytest.raises(FedMomError, match="is damaged"):
        make(tiny / "out", TINY, ["fig3"], QUIET)
    after = runner.Cache(tiny / "out/runs", TINY)
    assert others
    assert all(after.result(config) is not None for config in others)
