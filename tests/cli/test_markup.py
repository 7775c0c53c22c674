"""Names of users, data and folders are text: no markup of the terminal's, no formulas."""

import io
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedmom import data as datasets
from fedmom.api.live_progress import RunProgress
from fedmom.cli.output import ERR, OUT
from fedmom.core.progress import bars
from fedmom.data.store.writer import save_store
from fedmom.experiments.observers import Event
from fedmom.reports import dataset_figure
from tests.cli.command import invoke, main, words
from tests.conftest import population
from tests.experiments.small import prepared

EVIL = ("$\\frac$_{", "[bold]x[/bold]", "[/x]", ":smile:", "_hidden", "{task.speed}", "a" * 5000)


def evil_data(kind="vector"):
    """A population whose name, and whose users' names, look like markup."""
    users = np.array([*EVIL, "$$", "\\$x$", "😀 نص"])
    data = population([4] * len(users), dimension=144, test_sizes=[1] * len(users))
    features = data.features._replace(kind=kind)
    arrays = data.arrays
    if kind == "image":
        features = features._replace(shape=(12, 12))
        arrays = {**arrays, "x": np.clip(arrays["x"].reshape(-1, 12, 12), 0, 1)}
    name = "$\\frac$_{ [/x]"
    return replace(data, name=name, users=users, features=features, arrays=arrays)


def test_a_folder_that_looks_like_markup_is_printed_as_it_is(monkeypatch, capsys, tmp_path):
    out = "z[/x] :smile:"
    run = ("run", "--data=synthetic:clients=3", "--rounds=1", "--lr=0.001", f"--out={out}")
    code, shown, _ = main(monkeypatch, capsys, *run)
    assert code == 0
    assert f"Run folder: {out}" in shown
    assert (tmp_path / "z[" / "x] :smile:" / "config.toml").exists()


def test_data_commands_take_any_name(monkeypatch, tmp_path):
    save_store(evil_data("image"), tmp_path / "s[/x]", {})
    for command in ("stats", "check"):
        assert "[/x]" in invoke("data", command, "s[/x]")
    made = invoke("data", "prepare", "s[/x]", "--out", "t[/x]")
    assert "Use it as --data t[/x]" in made
    monkeypatch.setenv("FEDMOM_CACHE", str(tmp_path / "c[/z]"))
    save_store(evil_data(), tmp_path / "c[/z]" / "p[/q]", {})
    assert "c[/z]" in words(invoke("data", "list"))


@pytest.mark.parametrize("kind", ["vector", "image"])
def test_figures_take_any_name(tmp_path, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = dataset_figure.show(evil_data(kind), tmp_path)
    assert all(path.stat().st_size > 1000 for path in paths)


def test_letters_of_texts_are_no_formulas(tmp_path):
    data = datasets.load("shakespeare:roles=3")
    assert dataset_figure.show(replace(data, users=np.array(EVIL[:3])), tmp_path)


@pytest.mark.parametrize("label", EVIL)
def test_bars_take_any_label(label):
    console = Console(file=io.StringIO(), force_terminal=True, width=6000)
    with bars(console) as shown:
        shown.add_task(label, total=1)
        shown.refresh()
    path, row = Path("r"), {"loss": 1.0, "accuracy": 0.5}
    plain = Console(file=io.StringIO(), width=6000, emoji=False)
    for place in (console, plain):
        with RunProgress(place, {path: prepared()}, {path: label}) as progress:
            progress(Event(1, None, {"[/x]": row}, path, dict))
    assert console.file.getvalue().count(label) >= 2
    assert plain.file.getvalue().startswith(label)


@pytest.mark.parametrize("console", [OUT, ERR])
def test_nothing_that_is_printed_is_markup(console):
    with console.capture() as captured:
        console.print("[bold]a[/x] :smile:")
    assert captured.get() == "[bold]a[/x] :smile:\n"
