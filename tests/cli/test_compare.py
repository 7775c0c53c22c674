"""compare as a user meets it: one seed or several, stopped, and with runs that diverge."""

import json
import re
from pathlib import Path

import pytest
from scipy import stats

from fedmom import data as datasets
from fedmom.experiments import build, collection, results
from fedmom.experiments.folder import RunFolder
from tests.cli.command import SMALL, TOO_LARGE, invoke, main, page, refused, table, words
from tests.experiments.small import checkpoint_bytes, logs


def test_compare_uses_the_same_cohorts_and_draws_a_figure_and_a_page(tmp_path):
    text = invoke("compare", *SMALL, "--local-steps=4", "--momentum=0.5", "--out=c")
    assert "Figure: c/compare.png" in text
    assert "Page: c/compare.html" in text
    assert Path("c/compare.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"Test accuracy 0\.\d+: fed\w+( and fed\w+)? took \d rounds \(", words(text))
    folders = [RunFolder.open(tmp_path / "c" / a) for a in ("fedsgd", "fedavg", "fedmom")]
    cohorts = [[r["cohort"] for r in f.rows("rounds.jsonl")] for f in folders]
    assert cohorts[0] == cohorts[1] == cohorts[2]
    first = [f.rows("evals.jsonl")[0] for f in folders]
    assert first[0] == first[1] == first[2]
    configs = [f.settings() for f in folders]
    assert [c.local_steps for c in configs] == [None, 4, 4]
    assert [c.momentum for c in configs] == [None, None, 0.5]
    rows = table(text)
    shown = page("c/compare.html")
    for folder in folders:
        train, test = folder.rows("evals.jsonl")[-2:]
        ends = [f"{train['loss']:.3f}", f"{test['accuracy']:.3f}"]
        assert rows[folder.path.name][1:3] == ends
        assert " ".join([folder.path.name, *ends]) in shown
    for part in ("logreg on synthetic", "3 runs, one seed each", "Settings that differ"):
        assert part in shown
    for place in (words(text), shown):
        assert "One seed is not evidence: use --seeds 10" in place
    assert "The runs have lr 0.001: tune lr for each algorithm" in words(text)
    assert "paired by seed" not in text + shown


def test_a_comparison_loads_and_builds_once_and_reads_no_log(monkeypatch):
    """All that the command needs, page and figure included."""
    seen = {"load": 0, "prepare": 0, "rows": 0}

    def counted(name, function):
        def called(*args, **kwargs):
            seen[name] += 1
            return function(*args, **kwargs)

        return called

    monkeypatch.setattr(datasets, "load", counted("load", datasets.load))
    prepare = counted("prepare", build.prepare)
    monkeypatch.setattr(build, "prepare", prepare)
    monkeypatch.setattr(collection, "prepare", prepare)
    monkeypatch.setattr(RunFolder, "rows", counted("rows", RunFolder.rows))
    invoke("compare", *SMALL, "--out=c")
    assert seen == {"load": 1, "prepare": 3, "rows": 0}


def test_a_comparison_goes_on_where_it_was_stopped(tmp_path, stopped):
    options = [*SMALL, "--algorithms=fedavg,fedmom"]
    invoke("compare", *options, "--out=whole")
    err = stopped(5, "compare", *options, "--out=part")
    assert err.endswith("Stopped; nothing is lost. Resume with: fedmom resume part")
    assert not (tmp_path / "part/compare.png").exists()
    text = invoke("resume", "part")
    assert "Figure: part/compare.png" in text
    for algorithm in ("fedavg", "fedmom"):
        folders = [tmp_path / f / algorithm for f in ("whole", "part")]
        assert checkpoint_bytes(folders[0]) == checkpoint_bytes(folders[1])
        assert logs(folders[0]) == logs(folders[1])
    assert page("part/compare.html").count("unfinished") == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--seeds=0"], "--seeds 0 must be from 1 to 10,000"),
        (["--seeds=2", "--seed=4294967295"], "seed = 4294967296: "),
        (["--seeds=2", "--seed=-1"], "seed = '-1': "),
    ],
)
def test_seeds_that_there_are_not_are_refused(options, says):
    assert says in refused("compare", *SMALL, *options, "--out=c")
    assert not Path("c").exists()


def test_a_comparison_of_which_all_diverge_is_shown_and_is_an_error(tmp_path, monkeypatch, capsys):
    options = [*TOO_LARGE, "--algorithms=fedsgd,fedmom", "--out=c"]
    code, text, err = main(monkeypatch, capsys, "compare", *options)
    assert code == 2
    assert "fedmom stopped: Round 1: client" in words(err)
    assert "No run reached its last round, for the reasons above." in words(err)
    assert text.count("(diverged)") == 2
    assert "took 0 rounds" not in text
    assert "Figure: c/compare.png" in text
    shown = page("c/compare.html")
    assert "fedmom: 0 of 6 rounds (Round 1: client" in shown
    assert shown.count("Diverged: ") == 1
    found = {r.path.name: r for r in results.find([tmp_path / "c"])}
    assert found["fedmom"].diverged
    assert f"{found['fedmom'].done} of 6, diverged" in shown


def test_algorithms_with_options_are_compared(tmp_path):
    names = "fedavg,fedadam:tau=0.1,beta2=0.5,fedadam"
    invoke("compare", *SMALL, f"--algorithms={names}", "--out=c")
    assert json.loads(Path("c/compare.json").read_bytes()) == [
        "fedavg",
        "fedadam-tau-0.1-beta2-0.5",
        "fedadam",
    ]
    config = RunFolder.open(tmp_path / "c" / "fedadam-tau-0.1-beta2-0.5").settings()
    assert config.algorithm == "fedadam:tau=0.1,beta2=0.5"
    assert re.search(r"fedadam:tau=0\.1,beta2=0\.5 \d\.\d{3} 0\.\d{3} ", page("c/compare.html"))


SEEDS = [*SMALL, "--algorithms=fedavg,fedmom", "--seed=4", "--seeds=3"]


def test_a_comparison_over_seeds(tmp_path):
    text = invoke("compare", *SEEDS, "--out=c")
    names = [f"{a}_seed{s}" for a in ("fedavg", "fedmom") for s in (4, 5, 6)]
    assert json.loads(Path("c/compare.json").read_bytes()) == names
    runs = {name: results.read(tmp_path / "c" / name) for name in names}
    assert [run.config.seed for run in runs.values()] == [4, 5, 6, 4, 5, 6]
    cohorts = {name: [r["cohort"] for r in run.rounds] for name, run in runs.items()}
    assert cohorts["fedavg_seed5"] == cohorts["fedmom_seed5"] != cohorts["fedmom_seed6"]
    assert runs["fedavg_seed5"].evals[0] == runs["fedmom_seed5"].evals[0]  # the same first model
    shown = page("c/compare.html")
    ends = {name: run.last("test", "accuracy") for name, run in runs.items()}
    apart = stats.ttest_rel(list(ends.values())[3:], list(ends.values())[:3])
    low, high = apart.confidence_interval(0.95)
    row = f"fedmom − fedavg 3 {(low + high) / 2:+.3f} {low:+.3f} to {high:+.3f} {apart.pvalue:.3f} "
    for place in (words(text), shown):
        assert row in place
        assert "Test accuracy: differences paired by seed" in place
        assert "Training loss: differences paired by seed" in place
        assert "Test accuracy over 3 seeds: " in place
    assert "bands are 95 % intervals of the mean" in shown
    assert "6 runs with 2 different settings" in shown
    assert "One seed" not in text
    assert Path("c/compare.png").read_bytes().startswith(b"\x89PNG")


def test_a_comparison_over_seeds_goes_on_where_it_was_stopped(monkeypatch, capsys, tmp_path):
    from fedmom.api.live_progress import RunProgress

    invoke("compare", *SEEDS, "--out=whole")
    show = RunProgress.__call__

    def presses_ctrl_c(self, event):
        show(self, event)
        if event.path.name == "fedmom_seed4" and event.record:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunProgress, "__call__", presses_ctrl_c)
        code, out, err = main(patch, capsys, "compare", *SEEDS, "--out=part")
    assert code == 130
    assert words(err).endswith("Stopped; nothing is lost. Resume with: fedmom resume part")
    assert "Last evaluation" not in out
    text = invoke("resume", "part")
    assert "6/6 " in text
    assert "Test accuracy over 3 seeds: " in words(text)
    for name in json.loads(Path("part/compare.json").read_bytes()):
        one, other = (tmp_path / f / name for f in ("whole", "part"))
        assert checkpoint_bytes(one) == checkpoint_bytes(other)
        assert logs(one) == logs(other)


def test_a_comparison_over_seeds_survives_runs_that_diverge(monkeypatch, capsys):
    options = [*TOO_LARGE, "--algorithms=fedsgd,fedmom", "--seeds=3", "--out=c"]
    code, out, err = main(monkeypatch, capsys, "compare", *options)
    assert code == 2
    assert "No run reached its last round, for the reasons above." in words(err)
    for seed in range(3):
        assert f"fedmom_seed{seed} stopped: Round 1: client" in words(err)
    assert "fedmom (3 of 3 diverged)" in words(out)
    assert " 3 – – 1.000 not settled" in words(out)  # both did, so neither is ahead
    assert "Page: c/compare.html" in out
    assert "fedmom, seed 2: 0 of 6 rounds (Round 1: client" in page("c/compare.html")


def test_notes_are_told_once_for_all_seeds(monkeypatch, capsys):
    options = [*SMALL, "--server-lr=0.5", "--algorithms=fedavg", "--seeds=2", "--out=c"]
    _, _, err = main(monkeypatch, capsys, "compare", *options)
    assert words(err).count("note: server-lr 0.5 is outside") == 1
