"""The page about runs: what it says of them, and the commands that write it."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedmom.cli.main import cli
from fedmom.core.errors import FedMomError
from fedmom.experiments import results
from fedmom.reports import curves, run_page
from fedmom.reports.charts import Figure, Grid
from fedmom.reports.html import Settings
from fedmom.runtimes.devices import journal
from tests.reports.runs import WHY, make_run, round_row


def overview(*folders, goal=None):
    return run_page.overview(results.find(folders), goal)


def parts(view, kind):
    return [p for section in view.sections for p in section.parts if isinstance(p, kind)]


def words(view):
    return view.sections[0].parts[0].text


def invoke(*args):
    outcome = CliRunner().invoke(cli, list(map(str, args)), catch_exceptions=False)
    assert outcome.exit_code == 0
    return outcome.output


# ---- what it says


def test_title_and_settings_in_common(tmp_path):
    for algorithm in ("fedavg", "fedmom"):
        for seed in (0, 1):
            make_run(tmp_path / f"{algorithm}-{seed}", algorithm=algorithm, seed=seed)
    view = overview(tmp_path)
    assert (view.title, view.about) == ("logreg on synthetic", "4 runs with 2 different settings")
    (common, versions) = parts(view, Settings)
    assert common.values["rounds"] == "20"
    assert "algorithm" not in common.values
    assert versions.values == {"fedmom": "0.1.0"}
    alone = overview(tmp_path / "fedavg-0")
    assert (alone.title, alone.about) == ("fedavg: logreg on synthetic", "1 run")


def test_unfinished_runs_are_shown_as_such(tmp_path):
    make_run(tmp_path / "a", done=7)
    make_run(tmp_path / "b", algorithm="fedavg")
    view = overview(tmp_path)
    assert "Unfinished: fedmom: 7 of 20 rounds." in words(view)
    runs = next(grid for grid in parts(view, Grid) if grid.name == "runs")
    assert [row[2] for row in runs.rows] == ["7 of 20, unfinished", "20"]


def test_runs_that_ended_early_are_reported_by_their_status(tmp_path):
    make_run(tmp_path / "a", seed=0)
    make_run(tmp_path / "b", seed=1, done=3, stop="diverged")
    make_run(tmp_path / "c", algorithm="fedavg", done=5, stop="stopped")
    view = overview(tmp_path)
    reason = WHY.partition(".")[0]
    assert f"Diverged: fedmom, seed 1: 3 of 20 rounds (Round 4: {reason})." in words(view)
    assert f"Stopped: fedavg: 5 of 20 rounds (Round 6: {reason})." in words(view)
    assert "Unfinished" not in words(view)
    runs = next(grid for grid in parts(view, Grid) if grid.name == "runs")
    assert [row[2] for row in runs.rows] == ["20", "3 of 20, diverged", "5 of 20, stopped"]


def test_the_goal_may_be_chosen(tmp_path):
    for seed in (0, 1, 2):
        make_run(tmp_path / str(seed), seed=seed)
    (grid,) = [g for g in parts(overview(tmp_path, goal=0.4), Grid) if g.name == "results"]
    row = dict(zip(grid.columns, grid.rows[0], strict=True))
    assert row["rounds to 0.400"] == "10"  # round 10 is the first at 0.4 or above for each seed


def test_figures_of_a_page_have_names_of_their_own(tmp_path):
    rows = [round_row(1, diagnostics={"drift": 0.1}, metrics={"noise/std": 0.3})]
    run = make_run(tmp_path / "r", done=0)
    run.append("rounds.jsonl", rows)
    names = [figure.name for figure in parts(overview(run.path), Figure)]
    assert names == ["evaluations", "rounds", "metrics", "diagnostics"]


def test_a_live_page_shows_metrics_as_soon_as_a_round_has_some(tmp_path):
    run = make_run(tmp_path / "r", done=1)
    titles = [section.title for section in run_page.live_view(run.path).sections]
    assert "Metrics of the method" not in titles
    run.append("rounds.jsonl", [round_row(2, metrics={"client/drift": 0.1, "noise/std": 0.3})])
    (section,) = [
        s for s in run_page.live_view(run.path).sections if s.title == "Metrics of the method"
    ]
    (figure,) = section.parts
    assert [chart.title for chart in figure.charts] == ["client/drift", "noise/std"]


def test_every_figure_is_made_once(tmp_path, monkeypatch):
    made = []

    def figure(name, *args):
        made.append(name)
        return original(name, *args)

    original = curves.figure
    monkeypatch.setattr(curves, "figure", figure)
    found = results.find([make_run(tmp_path / "r").path])
    run_page.write_comparison(tmp_path, found, "A title")
    assert made == ["evaluations", "rounds"]


# ---- how runs are getting on


def test_how_runs_are_getting_on(tmp_path, monkeypatch):
    run = make_run(tmp_path / "r", done=5)
    found = results.find([run.path])
    assert run_page.progress(found, run.path) == ("running", "Running: 5 of 20 rounds.")
    later = found[0].changed + run_page.SECONDS_TO_WORRY + 11
    monkeypatch.setattr("time.time", lambda: later)
    word, sentence = run_page.progress(found, run.path)
    assert word == "waiting"
    assert "nothing new for 41 s" in sentence
    assert f"fedmom resume {run.path}" in sentence
    run.append("rounds.jsonl", [round_row(r) for r in range(6, 21)])
    found = results.find([run.path])
    assert run_page.progress(found, run.path) == ("finished", "Finished: 1 run, 20 rounds.")


def test_a_deployed_run_moves_while_it_waits_for_devices(tmp_path, monkeypatch):
    """And goes on with another command than a simulated one."""
    run = make_run(tmp_path / "run", data="devices", done=5)
    events = run.path / journal.EVENTS
    events.write_text("{}\n")
    found = results.find([run.path])
    later = run_page.SECONDS_TO_WORRY + 11
    for file in ("config.toml", "rounds.jsonl", "evals.jsonl"):
        at = (run.path / file).stat().st_mtime - later
        os.utime(run.path / file, (at, at))
    assert run_page.progress(found, run.path)[0] == "running"
    now = found[0].changed + later
    monkeypatch.setattr(run_page.time, "time", lambda: now)
    word, sentence = run_page.progress(found, run.path)
    assert word == "waiting"
    assert f"fedmom deploy run DEPLOYMENT --out {run.path}" in sentence


def test_runs_that_diverged_have_ended(tmp_path):
    make_run(tmp_path / "a", done=3, stop="diverged")
    make_run(tmp_path / "b", algorithm="fedavg", done=5)
    view = run_page.live_view(tmp_path)
    assert (view.state, view.text) == (
        "running",
        "Running: 8 of 23 rounds, 0 of 2 runs finished, 1 diverged.",
    )
    make_run(tmp_path / "c", algorithm="fedsgd", done=2, stop="stopped")
    folder = results.RunFolder(tmp_path / "b")
    folder.append("rounds.jsonl", [round_row(r) for r in range(6, 21)])
    view = run_page.live_view(tmp_path)
    assert (view.state, view.text) == (
        "finished",
        "Finished: 3 runs, 25 rounds, 1 diverged, 1 stopped.",
    )


# ---- files and commands


def test_a_comparison_is_written_from_memory(tmp_path):
    """No log is read again: the folders may be gone."""
    found = results.find(
        [
            make_run(tmp_path / "r" / "fedavg", algorithm="fedavg", done=3, stop="diverged").path,
            make_run(tmp_path / "r" / "fedmom").path,
        ]
    )
    (tmp_path / "r").rename(tmp_path / "gone")
    image, page = run_page.write_comparison(tmp_path / "out", found, "A title")
    assert image.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "<h1>logreg on synthetic</h1>" in text
    assert "Diverged: fedavg: 3 of 20 rounds (Round 4: client 7" in text
    data = json.loads(text.partition('type="application/json">')[2].partition("</script>")[0])
    legend = data["figures"]["part-1-0"]["legend"]
    assert [label for label, _ in legend] == ["fedavg", "fedmom"]


def test_a_run_without_any_evaluation_has_a_report(tmp_path):
    run = make_run(tmp_path / "r", done=0)
    (run.path / "evals.jsonl").unlink()
    invoke("report", run.path)
    text = (run.path / "report.html").read_text()
    assert "Unfinished: fedmom: 0 of 20 rounds." in text
    assert '<td class="number">–</td>' in text
    assert (run.path / "report-evaluations.png").read_bytes().startswith(b"\x89PNG")


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
        (["report", ".", "--out", "."], "--out . is a folder"),
        (["watch", "nowhere"], "There is no folder nowhere"),
    ],
)
def test_mistakes_are_sentences(tmp_path, monkeypatch, args, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedMomError, match=says):
        invoke(*args)
