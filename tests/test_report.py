"""What a report says: which runs, under which names, with which numbers."""

import io
import json
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedmom import collection, overview, report
from fedmom.charts import Figure, Grid
from fedmom.cli import cli
from fedmom.config import RunConfig
from fedmom.errors import FedMomError
from fedmom.report import Curves, Group
from fedmom.runs import RunFolder

SIZE = 1000  # bytes that a round sends each way


def accuracy(round_, seed=0):
    """A curve that rises to 1, later for larger seeds."""
    return round_ / (round_ + 10 + seed)


def round_row(round_, **more):
    return {
        "round": round_,
        "cohort": [0, 1],
        "replies": 2,
        "train_loss": 1 / round_,
        "update_norm": 0.5,
        "seconds": 0.25,
        "bytes_up": SIZE,
        "bytes_down": SIZE,
        **more,
    }


def eval_rows(round_, seed=0):
    value = accuracy(round_, seed)
    percentiles = {f"accuracy_p{p}": value * p / 100 for p in (10, 50, 90)}
    return [
        {"round": round_, "split": s, "loss": 1 - value, "accuracy": value, **percentiles}
        for s in ("train", "test")
    ]


def make_run(path, done=20, **settings):
    """Write the folder of a run that has come as far as ``done``; return it."""
    values = {"data": "synthetic", "rounds": 20, "model": "logreg", "lr": 0.1, **settings}
    config = RunConfig.model_validate(values)
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config.toml())
    (path / "versions.json").write_text(json.dumps({"fedmom": "0.1.0"}))
    run = RunFolder(path)
    run.append("rounds.jsonl", [round_row(r) for r in range(1, done + 1)])
    evaluated = [eval_rows(r, config.seed) for r in range(0, done + 1, 5)]
    run.append("evals.jsonl", [row for rows in evaluated for row in rows])
    return run


def labels(*paths):
    return [kind.label for kind in collection.sort_out(collection.find(paths))]


def invoke(*args):
    result = CliRunner().invoke(cli, list(map(str, args)), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


# ---- which runs, and what they are called


def test_seeds_are_taken_together_and_names_are_short(tmp_path):
    for algorithm in ("fedavg", "fedmom"):
        for seed in (0, 1, 2):
            make_run(tmp_path / f"{algorithm}-{seed}", algorithm=algorithm, seed=seed)
    kinds = collection.sort_out(collection.find([tmp_path]))
    assert [kind.label for kind in kinds] == ["fedavg", "fedmom"]
    assert [[r.config.seed for r in kind.runs] for kind in kinds] == [[0, 1, 2]] * 2


def test_names_tell_runs_apart_by_what_differs(tmp_path):
    a, b, c = (tmp_path / name for name in "abc")
    make_run(a, lr=0.1)
    make_run(b, lr=0.2, server_lr=3)  # lr is enough to tell them apart
    make_run(c, algorithm="fedavg")
    assert labels(a, b, c) == ["fedmom, lr 0.1", "fedmom, lr 0.2", "fedavg"]


def test_a_repeated_run_is_shown_apart_and_a_repeated_folder_once(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    assert labels(tmp_path / "a", tmp_path / "b") == ["fedmom", "fedmom (2)"]
    assert labels(tmp_path / "a", tmp_path / "b" / ".." / "a", tmp_path / "a") == ["fedmom"]


def test_comparisons_and_sweeps_are_read_in_their_own_order(tmp_path):
    for name in ("compare", "sweep"):
        for algorithm in ("fedavg", "fedmom", "fedsgd"):
            make_run(tmp_path / name / algorithm, algorithm=algorithm)
        order = ["fedsgd", "fedmom", "fedavg"]
        (tmp_path / name / f"{name}.json").write_text(json.dumps(order))
        assert labels(tmp_path / name) == order


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda _: None, "There is no folder"),
        (lambda path: path.mkdir(), "holds no run"),
        (lambda path: make_run(path).path.joinpath("config.toml").write_text("lr = -1"), "lr = -1"),
        (lambda path: (path.mkdir(), (path / "sweep.json").write_text("{")), "is damaged"),
    ],
)
def test_folders_without_runs_are_told_in_a_sentence(tmp_path, prepare, says):
    folder = tmp_path / "f"
    prepare(folder)
    with pytest.raises(FedMomError, match=says) as error:
        collection.find([folder])
    assert str(folder) in str(error.value)


def test_common_settings_and_different_ones():
    common, different = collection.split([{"a": "1", "b": "2"}, {"a": "1", "c": "3"}])
    assert common == {"a": "1"}
    assert different == ["b", "c"]


# ---- numbers


def curves(values, seed_rounds=(0, 10, 20), **more):
    rows = [
        {"round": r, "split": "test", "accuracy": v}
        for r, v in zip(seed_rounds, values, strict=True)
    ]
    return Curves("x", rows, [], **more)


def test_rounds_to_a_target_take_all_seeds_into_account():
    slow, fast = curves([0, 0.5, 0.9]), curves([0, 0.9, 0.9])
    assert Group("both", [slow, fast]).rounds_to(0.9) == 15
    assert Group("both", [slow, curves([0, 0, 0])]).rounds_to(0.9) is None


def test_the_target_is_what_the_runner_up_reaches_with_every_seed():
    groups = [
        Group("first", [curves([0, 0.7, 0.9])]),
        Group("second", [curves([0, 0.2, 0.8]), curves([0, 0.5, 0.6])]),
        Group("third", [curves([0, 0.1, 0.2])]),
    ]
    goal = report.target(groups)
    assert goal == 0.6
    assert report.verdict(groups, goal) == (
        "Test accuracy 0.600: first took 10 rounds (second 20)."
    )


def test_nobody_there_yet_is_no_verdict():
    groups = [Group("a", [Curves("a", [], [])]), Group("b", [Curves("b", [], [])])]
    assert report.verdict(groups, report.target(groups)) == ""


@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
        min_size=2,
        max_size=4,
    ),
    st.integers(1, 7),
)
def test_a_mean_lies_in_its_band_and_no_value_is_lost(seeds, width):
    runs = [
        Curves("x", [], [{"round": i + 1, "v": v} for i, v in enumerate(values)])
        for values in seeds
    ]
    line = Group("x", runs).line(lambda run: run.logged("v"), width)
    longest = max(len(values) for values in seeds)
    assert len(line.x) == -(-longest // width)
    for low, y, high in zip(line.low, line.y, line.high, strict=True):
        assert low <= y + 1e-6
        assert y <= high + 1e-6
    first = [statistics.fmean(values[:width]) for values in seeds]
    assert line.y[0] == pytest.approx(statistics.fmean(first), abs=1e-6)
    assert line.x[0] == pytest.approx((1 + width) / 2)


def test_the_terminal_and_the_page_have_the_same_numbers(tmp_path):
    runs = [report.read(make_run(tmp_path / a, algorithm=a).path, a) for a in ("fedavg", "fedmom")]
    table = report.table(runs)
    groups = report.alone(runs)
    grid = report.grid(groups, report.target(groups))
    shown = list(zip(*([*column.cells] for column in table.columns), strict=True))
    assert shown == [tuple(row) for row in grid.rows]
    row = dict(zip(grid.columns, grid.rows[0], strict=True))
    assert row["test accuracy"] == f"{accuracy(20):.3f}"
    assert row["train loss"] == f"{1 - accuracy(20):.3f}"
    assert row["p10"] == f"{accuracy(20) / 10:.3f}"
    assert row["MB sent"] == f"{20 * 2 * SIZE / 1e6:.1f}"
    assert row["time (s)"] == f"{20 * 0.25:.1f}"


def test_a_table_of_seeds_has_means_and_ranges(tmp_path):
    for seed in (0, 1, 2):
        make_run(tmp_path / str(seed), seed=seed)
    view = overview.overview([tmp_path], goal=0.4)
    grid = next(p for p in view.sections[0].parts if isinstance(p, Grid))
    row = dict(zip(grid.columns, grid.rows[0], strict=True))
    values = [accuracy(20, seed) for seed in (0, 1, 2)]
    assert row["test accuracy"] == (
        f"{statistics.fmean(values):.3f}\n{min(values):.3f} to {max(values):.3f}"
    )
    assert row["rounds to 0.400"] == "10"  # round 10 is the first at 0.4 or above for each seed


# ---- the report as a whole


def parts(view, kind):
    return [p for section in view.sections for p in section.parts if isinstance(p, kind)]


def test_unfinished_runs_are_shown_as_such(tmp_path):
    make_run(tmp_path / "a", done=7)
    make_run(tmp_path / "b", algorithm="fedavg")
    view = overview.overview([tmp_path])
    words = view.sections[0].parts[0].text
    assert "Unfinished: fedmom: 7 of 20 rounds." in words
    runs = next(grid for grid in parts(view, Grid) if grid.name == "runs")
    assert [row[2] for row in runs.rows] == ["7 of 20, unfinished", "20"]


def test_a_run_without_any_evaluation_has_a_report(tmp_path):
    run = make_run(tmp_path / "r", done=0)
    (run.path / "evals.jsonl").unlink()
    invoke("report", run.path)
    assert (run.path / "report.html").is_file()


def test_diagnostics_have_a_chart_each(tmp_path):
    run = make_run(tmp_path / "r", done=0)
    notes = [{"drift": 0.1 * r, "cosine": -0.5} if r % 2 else None for r in range(1, 5)]
    rows = [round_row(r + 1, diagnostics=note) for r, note in enumerate(notes)]
    run.append("rounds.jsonl", rows)
    (figure,) = [f for f in overview.overview([run.path]).figures() if f.name == "diagnostics"]
    assert [chart.title for chart in figure.charts] == ["drift", "cosine"]
    assert figure.charts[0].marks[0].x == [1, 3]
    assert figure.charts[0].marks[0].y == pytest.approx([0.1, 0.3])


def test_long_runs_are_thinned_and_say_so(tmp_path):
    rounds = 3 * overview.POINTS
    run = make_run(tmp_path / "r", rounds=rounds, done=rounds)
    view = overview.overview([run.path])
    (figure,) = [f for f in view.figures() if f.name == "rounds"]
    assert "a mean over 3 rounds" in figure.note
    loss = figure.charts[0].marks[0]
    assert len(loss.x) == overview.POINTS
    assert loss.y[0] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_a_report_of_a_mix_writes_page_and_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "one", lr=0.5)
    make_run(tmp_path / "two" / "fedavg", algorithm="fedavg")
    (tmp_path / "two" / "compare.json").write_text('["fedavg"]')
    text = invoke("report", "one", "two", "--target", "0.3", "--out", "out/all.html")
    assert "Page: out/all.html" in text
    names = {p.name for p in Path("out").iterdir()}
    figures = ("evaluations", "rounds")
    files = {f"all-{f}.{kind}" for f in figures for kind in ("png", "svg", "pdf")}
    assert names == {"all.html", *files}
    assert "rounds to 0.300" in Path("out/all.html").read_text()


def test_a_comparison_ends_with_its_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ("--data=synthetic", "--rounds=2", "--lr=0.01", "--algorithms=fedmom")
    text = invoke("compare", *small, "--out=c")
    assert "Figure: c/compare.png" in text
    assert "Page: c/compare.html" in text
    assert Path("c/compare.png").read_bytes().startswith(b"\x89PNG")
    assert "logreg on synthetic" in Path("c/compare.html").read_text()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["report", "nowhere"], "There is no folder nowhere"),
        (["report", "nowhere", "--target", "7"], "--target 7 is no accuracy"),
        (["report", ".", "--out", "."], "--out . is a folder"),
        (["watch", "nowhere"], "There is no folder nowhere"),
    ],
)
def test_mistakes_are_sentences(tmp_path, monkeypatch, args, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedMomError, match=says):
        invoke(*args)


def test_how_runs_are_getting_on(tmp_path, monkeypatch):
    run = make_run(tmp_path / "r", done=5)
    found = collection.find([run.path])
    assert overview.state(found, run.path) == ("running", "Running: 5 of 20 rounds.")
    later = found[0].changed + overview.SECONDS_TO_WORRY + 11
    monkeypatch.setattr("time.time", lambda: later)
    word, sentence = overview.state(found, run.path)
    assert word == "waiting"
    assert "nothing new for 41 s" in sentence
    assert f"fedmom resume {run.path}" in sentence
    run.append("rounds.jsonl", [round_row(r) for r in range(6, 21)])
    found = collection.find([run.path])
    assert overview.state(found, run.path) == ("finished", "Finished: 1 run, 20 rounds.")


def test_figures_of_a_page_have_names_of_their_own(tmp_path):
    run = make_run(tmp_path / "r")
    names = [f.name for f in parts(overview.overview([run.path]), Figure)]
    assert len(set(names)) == len(names)


def test_a_narrow_terminal_folds_names_and_keeps_numbers():
    rows = [("lr0.003_local-steps10_momentum0.9_fedmom", "0.582", "0.127")]
    console = Console(width=30, file=io.StringIO())
    console.print(report.shown(["runs", "test accuracy", "spread"], rows))
    text = console.file.getvalue()
    assert "0.582" in text
    assert "0.127" in text
    assert "…" not in text
    assert "".join(line.split()[0] for line in text.splitlines()[2:]) == rows[0][0]
