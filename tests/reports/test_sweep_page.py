"""The page of a sweep: its grid as shades, beside the ranking and the curves."""

import math
from dataclasses import replace

from fedmom.experiments.results import Group
from fedmom.reports import run_page, sweep_page
from tests.reports.runs import result


def cell(algorithm, lr, accuracy, **more):
    run = result([0.1, accuracy])
    momentum = 0.9 if algorithm == "fedmom" else None  # which follows from the algorithm
    chosen = {"algorithm": algorithm, "lr": lr, "momentum": momentum}
    config = run.config.model_copy(update=chosen)
    return Group(f"{algorithm} {lr}", [replace(run, config=config, **more)])


def test_the_longest_setting_is_across_and_numbers_are_in_order():
    groups = [cell(a, lr, lr) for a in ("fedmom", "fedavg") for lr in (0.1, 0.02, 0.003)]
    figure = sweep_page.heat_maps(groups)
    shown = figure.charts[-1].marks[0]
    assert figure.charts[-1].x == "lr"
    assert list(shown.columns) == ["0.003", "0.02", "0.1"]
    assert list(shown.rows) == ["fedmom", "fedavg"]
    assert shown.shades == [[0.003, 0.02, 0.1]] * 2


def test_what_diverged_or_was_not_run_is_empty():
    groups = [cell("fedavg", 0.1, 0.5), cell("fedavg", 0.2, 0.5, stop="diverged")]
    groups += [cell("fedmom", 0.1, 0.7), cell("fedmom", 0.3, 0.6)]
    (kept, empty, _), (other, missing, _) = sweep_page.heat_maps(groups).charts[-1].marks[0].shades
    assert (kept, other) == (0.5, 0.7)
    assert math.isnan(empty)
    assert math.isnan(missing)


def test_a_sweep_of_nothing_but_seeds_has_no_grid():
    assert sweep_page.heat_maps([cell("fedavg", 0.1, 0.5)]) is None


def test_the_page_has_ranking_grid_and_curves(tmp_path):
    groups = [cell("fedavg", 0.1, 0.5), cell("fedmom", 0.1, 0.6)]
    path = run_page.write(sweep_page.overview(groups), tmp_path / "sweep.html")
    text = path.read_text()
    for heading in ("Ranking", "Grid", "Evaluations", "Rounds", "Settings"):
        assert f">{heading}</h2>" in text
    assert len(text) < 2.5e6  # bytes: Plotly is packed
