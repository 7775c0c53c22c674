"""Folders of the version before the rebuild: this one goes on with them, shows and draws them.

``folders/README.md`` says what each of them is.
"""

import csv
import shutil

import pytest

from fedmom.experiments import results
from fedmom.reports import drawing, run_page
from fedmom.reports.html import render
from fedmom.reproduction import plan
from fedmom.theory import lr_advice
from tests.cli.command import invoke, words
from tests.golden import make
from tests.golden.cases import PAPER_SCALE
from tests.golden.test_golden import DRAWN, TOLERANCE, assert_same, different, same_bits

FOLDERS = make.HERE / "folders"
STOPPED = ("run", "averaged", "compare", "sweep")
# Of the sweep, both runs with lr 1e38 diverged; nothing in their folders said so then.
WILD = ("lr1e38_seed0", "lr1e38_seed1")


@pytest.fixture
def copied(tmp_path):
    """A function that copies a folder and returns the copy."""

    def copy(name):
        shutil.copytree(FOLDERS / name, tmp_path / name)
        return tmp_path / name

    return copy


def runs_in(folder):
    return {str(p.parent.relative_to(folder)): p.parent for p in folder.rglob("config.toml")}


def files_in(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_folder_goes_on_to_the_numbers_of_the_finished_one(name, copied):
    folder = copied(name)
    invoke("resume", folder)
    golden = runs_in(FOLDERS / f"{name}_finished")
    assert runs_in(folder).keys() == golden.keys()
    for place, path in runs_in(folder).items():
        assert_same(*make.read(path), *make.read(golden[place]))
        found = results.read(path)
        assert found.status == ("diverged" if place in WILD else "finished")


@pytest.mark.parametrize("name", [f"{name}_finished" for name in STOPPED])
def test_a_finished_folder_is_left_as_it_is(name, copied):
    folder = copied(name)
    before = files_in(folder)
    invoke("resume", folder)
    after = files_in(folder)
    for path, content in before.items():
        if path.name != "sweep.csv":  # may be rounded otherwise, and has a test of its own
            assert after[path] == content, path
    new = {path.name for path in after.keys() - before.keys()} - {".lock"}
    assert new <= {"compare.png", "compare.html", "sweep.html", "stopped.json"}


@pytest.mark.parametrize("name", ["sweep", "sweep_finished"])
def test_the_table_of_a_sweep_is_the_same(name, copied):
    folder = copied(name)
    invoke("resume", folder)
    golden, found = (
        list(csv.DictReader((place / "sweep.csv").read_text().splitlines()))
        for place in (FOLDERS / "sweep_finished", folder)
    )
    for row, expected in zip(found, golden, strict=True):
        del expected["spread"]  # it has an interval in its place
        if same_bits():
            assert {key: row[key] for key in expected} == expected
        for key in ("runs", "seeds", "stopped"):
            assert row[key] == expected[key]
        assert float(row["train loss"]) == pytest.approx(
            float(expected["train loss"]), rel=TOLERANCE
        )


def test_a_diverged_run_of_then_is_tried_again_and_says_so_now(copied):
    folder = copied("sweep")
    assert results.read(folder / WILD[0]).status == "unfinished"
    text = words(invoke("resume", folder))
    for name in WILD:
        assert f"{name} stopped: Round 1: client" in text
        assert results.read(folder / name).diverged


@pytest.mark.parametrize(
    "name", [*STOPPED, *(f"{name}_finished" for name in STOPPED), "paper/runs"]
)
def test_every_folder_is_reported_and_watched(name, copied, tmp_path):
    folder = copied(name)
    before = files_in(folder)
    found = results.find([folder])
    assert {run.path.name for run in found} == {path.name for path in runs_in(folder).values()}
    page = run_page.write(run_page.overview(found), tmp_path / "page.html")
    view = run_page.live_view(folder)
    live = render(view.title, view.sections, view.about, live=True).decode()
    text = page.read_text(encoding="utf-8")
    for run in found:
        assert str(run.path) in text
        assert str(run.path) in live
    ended = name.endswith("_finished") and not name.startswith("sweep")
    assert (view.state == "finished") == (ended or name == "paper/runs")
    early = sum(run.diverged for run in found)
    assert early == (6 if name == "paper/runs" else 0)
    assert (f"{early} diverged" in view.text) == bool(early)
    assert files_in(folder) == before  # whoever looks changes nothing


def test_the_command_reports_all_of_them_on_one_page(copied, tmp_path):
    folders = [copied(name) for name in (*STOPPED, "sweep_finished")]
    text = invoke("report", *folders, "--out", tmp_path / "all.html")
    assert f"Page: {tmp_path / 'all.html'}" in text
    for figure in ("evaluations", "rounds"):
        for kind in ("png", "svg", "pdf"):
            assert (tmp_path / f"all-{figure}.{kind}").stat().st_size > 1000
    page = (tmp_path / "all.html").read_text(encoding="utf-8")
    assert all(str(path) in page for folder in folders for path in runs_in(folder).values())


def test_what_experiments_found_is_read_from_them(copied):
    folder = copied("sweep_finished")
    best = lr_advice.found_best(folder, "synthetic:clients=6", "logreg", "fedmom")
    runs = [results.read(folder / f"lr0.01_seed{seed}") for seed in (0, 1)]
    assert (best.lr, best.config.rounds, best.seeds, len(best.accuracies)) == (0.01, 4, 2, 1)
    assert best.accuracy == pytest.approx(sum(r.last("test", "accuracy") for r in runs) / 2)
    wider = lr_advice.found_best(FOLDERS, "synthetic:clients=6", "logreg", "fedavg")
    assert (wider.lr, wider.config.rounds) == (0.01, 4)


def test_advice_shows_what_they_found(copied, tmp_path):
    folder = copied("sweep_finished")
    text = words(
        invoke(
            *("theory", "advise", "--data=synthetic:clients=6", "--lr=0.001", "--short-run=4"),
            *("--clients=3", "--samples=8", "--models=2", "--out", tmp_path / "figures"),
            *("--experiments", folder),
        )
    )
    assert "experiments none 0.01 fedmom: test accuracy" in text
    assert "best of 1 γ, 2 seeds" in text


def paper_scale():
    values = dict(PAPER_SCALE)
    for task in ("femnist", "shakespeare"):
        values[task] = plan.PaperTask(**values[task])
    values["variants"] = tuple(getattr(plan, name) for name in values["variants"])
    return plan.Scale(**values)


def test_the_paper_is_drawn_from_its_runs_without_training(copied, monkeypatch):
    if drawn := different(DRAWN["glyphs"]):
        pytest.skip(f"glyphs is other data here: {', '.join(drawn)}")
    monkeypatch.setitem(plan.SCALES, "quick", paper_scale())
    save = drawing.save  # all kinds of files are drawn above; here one of them is enough
    monkeypatch.setattr(
        drawing, "save", lambda figure, to, **more: save(figure, to, ("png",), **more)
    )
    folder = copied("paper")
    before = files_in(folder / "runs") | files_in(folder / "probes")
    text = invoke("paper", "--no-train", "--out", folder)
    assert "Not finished" not in text
    assert files_in(folder / "runs") | files_in(folder / "probes") == before
    tables = {file.stem for file in (folder / "tables").iterdir()}
    assert {"results", "beyond", "differences", "same_lr", "author", "verdicts"} <= tables
    judged = (folder / "tables" / "verdicts.md").read_text(encoding="utf-8")
    assert "not enough seeds" in judged  # there are two
    assert (folder / "figures" / "fig5.png").is_file()
