"""The ranking of a sweep: its order, its intervals, its differences to the best row, its file."""

import csv
import io
import statistics
from dataclasses import replace

import pytest
from rich.console import Console
from scipy import stats

from fedmom.experiments.results import Group
from fedmom.experiments.seed_statistics import holm
from fedmom.reports import result_tables
from fedmom.reports.sweep_page import ranking, write_ranking
from tests.reports.runs import result

SEEDS = {  # last accuracies by seed
    "fair": [0.72, 0.70, 0.75, 0.71],
    "good": [0.81, 0.80, 0.83, 0.82],
    "alike": [0.811, 0.799, 0.832, 0.818],
    "poor": [0.30, 0.60, 0.35, 0.55],
}


def seeded(name, values, last=20):
    runs = [result([0, 0.1, value], seed=seed, last=last) for seed, value in enumerate(values)]
    return Group(name, runs)


def sweep():
    """Groups in no order: the best has two seeds, one has no test accuracy, one diverged."""
    return [
        Group("none", [result()]),
        Group("poor", [result([0, 0.3]), result([0.1], seed=1, stop="diverged", why="Round 1")]),
        Group("good", [result([0.2, 0.9, 0.8]), result([0.1, 0.5, 0.6], seed=1)]),
    ]


def rows_of(groups):
    grid = ranking(groups)
    return [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]


def read(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_sweep_is_ranked_and_seeds_are_taken_together():
    good, poor, none = rows_of(sweep())
    assert good == {
        "runs": "good",
        "seeds": "2",
        "train loss": "0.300",  # 0.2 and 0.4
        "test accuracy": "0.700",
        "vs. best": "",
        "finding": "best",
        "best so far": "0.750",  # 0.9 on the way, and 0.6
        "stopped": "",
    }
    assert (none["runs"], none["test accuracy"], none["vs. best"]) == ("none", "–", "–")
    # One of its runs diverged: what the others came to is no rank.
    assert (poor["runs"], poor["stopped"], poor["test accuracy"]) == ("poor", "1", "0.300")
    assert {none["finding"], poor["finding"]} == {"not enough\nseeds"}


def test_settings_with_a_run_that_diverged_come_last_however_good_the_others_were():
    wild = Group("wild", [result([0, 0.9, 0.9]), result([0.1], seed=1, stop="diverged")])
    assert [row["runs"] for row in rows_of([wild, seeded("tame", [0.2, 0.3])])] == ["tame", "wild"]


def test_rows_have_intervals_and_differences_to_the_best_row():
    best, alike, fair, poor = rows_of([seeded(*item) for item in SEEDS.items()])
    assert [best["runs"], alike["runs"], fair["runs"], poor["runs"]] == [
        *("good", "alike", "fair", "poor"),
    ]
    low, high = stats.ttest_1samp(SEEDS["good"], 0).confidence_interval(0.95)
    assert best["test accuracy"] == f"0.815\n±{(high - low) / 2:.3f}"
    apart = stats.ttest_rel(SEEDS["fair"], SEEDS["good"])
    low, high = apart.confidence_interval(0.95)
    assert fair["vs. best"] == f"{(low + high) / 2:+.3f}\n±{(high - low) / 2:.3f}"
    assert (best["vs. best"], best["finding"]) == ("", "best")
    assert alike["finding"].startswith("equal within\n±0.01\np ")
    assert fair["finding"].startswith("behind\np 0.00")
    assert poor["finding"].startswith("not settled\np 0.")


def test_p_values_are_corrected_for_all_pairs_of_rows(tmp_path):
    """The best row was chosen by the same runs."""
    rows = read(write_ranking(tmp_path / "s.csv", [seeded(*item) for item in SEEDS.items()]))
    names = list(SEEDS)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[:i]]
    raw = [stats.ttest_rel(SEEDS[a], SEEDS[b]).pvalue for a, b in pairs]
    corrected = {frozenset(pair): p for pair, p in zip(pairs, holm(raw), strict=True)}
    for row in rows[1:]:
        assert float(row["p (Holm)"]) == pytest.approx(corrected[frozenset((row["runs"], "good"))])
    assert rows[0]["p (Holm)"] == ""


def test_a_sweep_as_csv_has_all_digits(tmp_path):
    good, poor, none = read(write_ranking(tmp_path / "sweep.csv", sweep()))
    assert float(good["test accuracy"]) == statistics.fmean([0.8, 0.6])
    assert (good["test accuracy low"], good["difference"], good["finding"]) == ("", "", "")
    assert (poor["seeds"], poor["stopped"], poor["finding"]) == ("2", "1", "not enough seeds")
    assert none == {
        **dict.fromkeys(none, ""),
        "runs": "none",
        "seeds": "1",
        "stopped": "0",
        "finding": "not enough seeds",
    }
    rows = read(write_ranking(tmp_path / "s.csv", [seeded(*item) for item in SEEDS.items()]))
    low, high = stats.ttest_1samp(SEEDS["good"], 0).confidence_interval(0.95)
    assert float(rows[0]["test accuracy low"]) == pytest.approx(low, rel=1e-12)
    assert float(rows[0]["test accuracy high"]) == pytest.approx(high, rel=1e-12)
    low, high = stats.ttest_rel(SEEDS["fair"], SEEDS["good"]).confidence_interval(0.95)
    assert float(rows[2]["difference low"]) == pytest.approx(low, rel=1e-12)
    assert float(rows[2]["difference high"]) == pytest.approx(high, rel=1e-12)
    assert [row["finding"] for row in rows] == ["", "equal within ±0.01", "behind", "not settled"]


def test_the_note_warns_of_the_chosen_row_and_of_too_few_seeds():
    def note(groups):
        return ranking(groups).note

    one = [seeded("a", [0.5]), seeded("b", [0.6])]
    assert "One seed is not evidence: add --grid 'seed=0 1 2 3 4'." in note(one)
    assert "vs. best" not in ranking(one).columns
    two, four = [seeded(n, [0.5, 0.6]) for n in "ab"], [seeded(*item) for item in SEEDS.items()]
    assert "Not enough seeds for intervals" in note(two)
    assert "for all 6 pairs of rows" in note(four)
    for groups in (one, two, four):
        assert "report it on other seeds, such as fedmom compare --seed 100" in note(groups)
    assert "report it" not in note([seeded("a", [0.5, 0.6])])  # nothing was chosen


def test_rows_on_other_data_are_not_held_against_the_best(tmp_path):
    here, there = seeded("here", [0.5, 0.6, 0.7]), seeded("there", [0.8, 0.7, 0.9])
    moved = [replace(r, config=r.config.model_copy(update={"data": "x"})) for r in there.runs]
    groups = [here, Group("there", moved)]
    assert "vs. best" in ranking([here, there]).columns
    assert "vs. best" not in ranking(groups).columns
    assert "±" in rows_of(groups)[0]["test accuracy"]
    assert all(r["finding"] == "" for r in read(write_ranking(tmp_path / "s.csv", groups)))


def test_names_have_room_in_a_terminal_of_eighty_columns():
    names = [f"fedmom_lr0.0005_{letter}" for letter in "abcd"]
    groups = [seeded(*item) for item in zip(names, SEEDS.values(), strict=True)]
    console = Console(width=80, file=io.StringIO(), soft_wrap=True)
    result_tables.show(console, ranking(groups))
    for name in names:
        assert name in console.file.getvalue()
