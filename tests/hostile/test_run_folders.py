"""Folders of runs, damaged at random: report and resume work, or there is one sentence."""

import shutil

import numpy as np
import pytest

import fedmom
from fedmom.cli import main as front
from fedmom.experiments import results
from fedmom.reports import run_page
from fedmom.reports.html import render
from tests.golden.test_folders import FOLDERS
from tests.hostile.mutation import contents, mutated, sentence, spoiled

KINDS = ("run", "run_finished", "compare", "sweep_finished")


def report(folder):
    """Draw the page, written and live."""
    run_page.overview(results.find([folder]))
    view = run_page.live_view(folder)
    render(view.title, view.sections, view.about, live=True)


def resume(folder):
    front.cli(["resume", str(folder)], standalone_mode=False)


def examine(kind, tmp_path, count, seed):
    resumed = 0
    for case in range(count):
        rng = np.random.default_rng([seed, case])
        folder = tmp_path / f"{kind}-{case}"
        spoiled(FOLDERS / kind, folder, rng)
        before = contents(folder)
        sentence(report, folder)
        assert contents(folder) == before, f"case {case}: looking changed it"
        refusal = sentence(resume, folder)
        after = contents(folder)
        lost = [name for name, content in before.items() if content not in after.values()]
        if refusal is None:
            resumed += 1
            # A checkpoint may be replaced. Every line of a log is there still, or beside it.
            kept = {line for content in after.values() for line in content.splitlines()}
            logs = [content for name, content in before.items() if name.endswith(".jsonl")]
            gone = {line for log in logs for line in log.splitlines()} - kept
            assert not gone, (case, gone)
        else:
            assert not lost, (case, refusal, lost)
        shutil.rmtree(folder)
    return resumed


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_folders_are_resumed_or_refused(kind, tmp_path):
    assert examine(kind, tmp_path, 15, seed=0) < 15


def test_every_damaged_log_is_noticed(tmp_path):
    """A log is refused by name, or says what it said."""
    task = {"clients_per_round": 2, "lr": 0.01, "progress": False}
    folder = tmp_path / "run"
    whole = fedmom.run("synthetic:clients=4", out=folder, rounds=6, eval_every=2, **task).result
    for name in ("rounds.jsonl", "evals.jsonl"):
        content = (folder / name).read_bytes()
        for case in range(400):
            changed = mutated(content, np.random.default_rng([7, case]))
            (folder / name).write_bytes(changed)
            refusal = sentence(results.read, folder)
            if refusal is None:
                found = results.read(folder)
                assert (found.evals, found.rounds) == (whole.evals, whole.rounds), (case, changed)
            else:
                assert str(folder / name) in refusal, (case, refusal)
        (folder / name).write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_folders_are_resumed_or_refused(kind, tmp_path):
    examine(kind, tmp_path, 500, seed=1)
