"""run, compare, sweep and resume as a user meets them: what they print, write and refuse."""

import csv
import html
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scipy import stats

import fedmom
from fedmom import data as datasets
from fedmom.experiments import build, compare, results
from fedmom.experiments.folder import RunFolder
from fedmom.reports import ranking
from tests.cli.command import invoke, main, refused, words
from tests.experiments.small import StopAt, checkpoint_bytes, logs, process, wait_for_rounds

SMALL = ["--data=synthetic:clients=6", "--rounds=6", "--eval-every=3", "--lr=0.001"]
TOO_LARGE = ["--data=synthetic:clients=6", "--rounds=6", "--eval-every=3", "--lr=1e30"]


def page(path):
    """The words of a page, as a reader sees them."""
    text = Path(path).read_text(encoding="utf-8")
    body = text[text.index("<body") :]
    body = re.sub(r"(?s)<script.*?</script>|<style.*?</style>", " ", body)
    return words(html.unescape(re.sub(r"<[^>]+>", " ", body)))


def table(text):
    """The rows of the table that a command prints, as lists of words, by the run's name."""
    lines = [line.split() for line in text.splitlines()]
    start = next(i for i, line in enumerate(lines) if line[:3] == ["run", "loss", "accuracy"])
    return {line[0]: line for line in lines[start + 1 :] if line}


@pytest.fixture
def stopped(monkeypatch, capsys):
    """A function that runs a command, presses Ctrl-C in a round and returns standard error."""
    from fedmom.api import progress

    def run(round_, *args):
        watch = progress.watch

        def watched(console, label):
            shown = watch(console, label)
            shown.round = StopAt(round_=round_).round
            return shown

        with monkeypatch.context() as patch:
            patch.setattr(progress, "watch", watched)
            code, _, err = main(patch, capsys, *args)
        assert code == 130
        return words(err)

    return run


# ---- run


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
    assert "Training diverged: take a smaller --lr" in words(err)
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
    assert "Go on with: fedmom resume r" in err
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


# ---- compare


def test_compare_uses_the_same_cohorts_and_draws_a_figure_and_a_page(tmp_path):
    text = invoke("compare", *SMALL, "--local-steps=4", "--momentum=0.5", "--out=c")
    assert "Figure: c/compare.png" in text
    assert "Page: c/compare.html" in text
    assert Path("c/compare.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"Test accuracy 0\.\d+: fed\w+ took \d rounds \(", words(text))
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
    assert "One seed shows no difference between algorithms: give --seeds 10" in words(text)
    assert "The runs have lr 0.001: give each algorithm its own best lr" in words(text)
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
    monkeypatch.setattr(compare, "prepare", prepare)
    monkeypatch.setattr(RunFolder, "rows", counted("rows", RunFolder.rows))
    invoke("compare", *SMALL, "--out=c")
    assert seen == {"load": 1, "prepare": 3, "rows": 0}


def test_a_comparison_goes_on_where_it_was_stopped(tmp_path, stopped):
    options = [*SMALL, "--algorithms=fedavg,fedmom"]
    invoke("compare", *options, "--out=whole")
    err = stopped(5, "compare", *options, "--out=part")
    assert "Go on with: fedmom resume part/fedavg" in err
    assert "For the whole comparison: fedmom resume part" in err
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
        (["--seeds=0"], "--seeds 0 must be a whole number of 1 or more"),
        (["--seeds=2", "--seed=4294967295"], "seed = 4294967296: "),
        (["--seeds=2", "--seed=-1"], "seed = '-1': "),
    ],
)
def test_seeds_that_there_are_not_are_refused(options, says):
    assert says in refused("compare", *SMALL, *options, "--out=c")
    assert not Path("c").exists()


def test_a_comparison_survives_one_that_diverges(tmp_path):
    text = invoke("compare", *TOO_LARGE, "--algorithms=fedsgd,fedmom", "--out=c")
    assert "fedmom stopped: Round 1: client" in words(text)
    assert "fedmom (diverged)" in words(text)
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
    from fedmom.api import progress

    invoke("compare", *SEEDS, "--out=whole")
    advanced = progress.ManyRuns.advanced

    def presses_ctrl_c(self, path, rounds):
        advanced(self, path, rounds)
        if path.name == "fedmom_seed4" and rounds:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(progress.ManyRuns, "advanced", presses_ctrl_c)
        code, out, err = main(patch, capsys, "compare", *SEEDS, "--out=part")
    assert code == 130
    assert words(err).endswith("Stopped; nothing is lost. Go on with: fedmom resume part")
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
    assert code == 0
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


# ---- sweep


def test_a_sweep_is_ranked_on_the_terminal_and_in_a_file(tmp_path):
    options = ["--data=synthetic:clients=6", "--rounds=6", "--eval-every=3"]
    text = invoke(
        *("sweep", *options, "--grid=algorithm=fedavg fedmom", "--grid=lr=0.001 0.01", "--out=s")
    )
    assert "Table: s/sweep.csv" in text
    header, *rows = csv.reader((tmp_path / "s/sweep.csv").read_text().splitlines())
    assert header == list(ranking.csv_columns("accuracy"))
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
    assert "One seed shows no difference" in words(text)


def test_a_file_may_hold_the_grid_and_seeds_are_taken_together(tmp_path):
    Path("g.toml").write_text(
        'data = "synthetic:clients=6"\nrounds = 4\n'
        '[grid]\nlr = [0.001, "inverse:start=0.01"]\nseed = [0, 1, 2]\n'
    )
    text = invoke("sweep", "--config", "g.toml", "--out", "s")
    assert re.search(r"less +best\nruns .* the best +finding", text)
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
    assert "Diverged: fedmom, lr 1e+38: 0 of 6 rounds (Round 1: client" in page("s/report.html")


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
