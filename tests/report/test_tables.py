"""The numbers of a report: who was faster, means over seeds, the ranking of a sweep."""

import csv
import io
import statistics

from rich.console import Console

from fedmom.experiments import results
from fedmom.experiments.results import Group
from fedmom.report import tables
from tests.report.runs import SIZE, accuracy, make_run, result

# ---- who was faster


def test_rounds_to_a_target_take_all_seeds_into_account():
    slow, fast = result([0, 0.5, 0.9]), result([0, 0.9, 0.9])
    assert Group("both", [slow, fast]).rounds_to(0.9) == 15
    assert Group("both", [slow, result([0, 0, 0])]).rounds_to(0.9) is None


def test_the_target_is_what_the_runner_up_reaches_with_every_seed():
    groups = [
        Group("second", [result([0, 0.2, 0.8]), result([0, 0.5, 0.6])]),
        Group("first", [result([0, 0.7, 0.9])]),
        Group("third", [result([0, 0.1, 0.2])]),
    ]
    goal = results.target(groups)
    assert goal == 0.6
    assert tables.verdict(groups, goal) == (
        "Test accuracy 0.600: first took 10 rounds (second 20)."
    )


def test_a_verdict_names_few_of_many():
    groups = [Group(f"run {i}", [result([0, 0.9])]) for i in range(8)]
    assert tables.verdict(groups, 0.9) == (
        "Test accuracy 0.900: run 0 took 10 rounds"
        " (run 1 10, run 2 10, run 3 10, run 4 10, run 5 10, 2 more)."
    )
    assert tables.verdict(groups[:1], 0.9).endswith("(no other did).")


def test_nobody_there_yet_is_no_verdict():
    groups = [Group("a", [result()]), Group("b", [result()])]
    assert tables.verdict(groups, results.target(groups)) == ""


# ---- comparisons


def test_the_terminal_and_the_page_have_the_same_numbers(tmp_path):
    runs = {a: results.read(make_run(tmp_path / a, algorithm=a).path) for a in ("fedavg", "fedmom")}
    groups = results.as_groups(runs)
    goal = results.target(groups)
    table, grid = tables.table(groups, goal), tables.grid(groups, goal)
    columns = ([str(cell) for cell in column.cells] for column in table.columns)
    assert list(zip(*columns, strict=True)) == [tuple(row) for row in grid.rows]
    row = dict(zip(grid.columns, grid.rows[0], strict=True))
    assert row["test accuracy"] == f"{accuracy(20):.3f}"
    assert row["train loss"] == f"{1 - accuracy(20):.3f}"
    assert row["p10"] == f"{accuracy(20) / 10:.3f}"
    assert row["MB sent"] == f"{20 * 2 * SIZE / 1e6:.1f}"
    assert row["time (s)"] == f"{20 * 0.25:.1f}"


def test_a_table_of_seeds_has_means_and_ranges(tmp_path):
    for seed in (0, 1, 2):
        make_run(tmp_path / str(seed), seed=seed)
    grid = tables.grid(results.group_by_seed(results.find([tmp_path])), 0.6)
    row = dict(zip(grid.columns, grid.rows[0], strict=True))
    values = [accuracy(20, seed) for seed in (0, 1, 2)]
    assert row["test accuracy"] == (
        f"{statistics.fmean(values):.3f}\n{min(values):.3f} to {max(values):.3f}"
    )
    # Seed 0 is there in round 15, seeds 1 and 2 in round 20.
    assert row["rounds to 0.600"] == "18\n15 to 20"
    assert "Means over seeds" in grid.note


def test_a_narrow_terminal_folds_names_and_keeps_numbers():
    rows = [("lr0.003_local-steps10_momentum0.9_[fedmom]", "0.582", "0.127")]
    console = Console(width=30, file=io.StringIO())
    console.print(tables.rich_table(["runs", "test accuracy", "spread"], rows))
    text = console.file.getvalue()
    assert "0.582" in text
    assert "0.127" in text
    assert "…" not in text
    assert "".join(line.split()[0] for line in text.splitlines()[2:]) == rows[0][0]


# ---- sweeps


def sweep():
    """Groups in no order: the best has two seeds, one has no test accuracy, one diverged."""
    return [
        Group("none", [result()]),
        Group("poor", [result([0, 0.3]), result([0.1], stop="diverged", why="Round 1: ...")]),
        Group("good", [result([0.2, 0.9, 0.8]), result([0.1, 0.5, 0.6])]),
    ]


def test_a_sweep_is_ranked_and_seeds_are_taken_together():
    columns, rows = tables.sweep_table(sweep())
    assert [row[0] for row in rows] == ["good", "poor", "none"]
    assert dict(zip(columns, rows[0], strict=True)) == {
        "runs": "good",
        "seeds": "2",
        "train loss": "0.300",  # 0.2 and 0.4
        "test accuracy": "0.700",
        "spread": "0.100",
        "best": "0.750",  # 0.9 on the way, and 0.6
        "stopped": "",
    }
    assert rows[1][-1] == "1"
    assert rows[2] == ["none", "1", "–", "–", "–", "–", ""]


def test_a_sweep_as_csv_has_all_digits(tmp_path):
    path = tables.write_sweep(tmp_path / "sweep.csv", sweep())
    good, poor, none = csv.DictReader(path.read_text().splitlines())
    assert float(good["test accuracy"]) == statistics.fmean([0.8, 0.6])
    assert float(good["spread"]) == statistics.pstdev([0.8, 0.6])
    assert (poor["seeds"], poor["stopped"]) == ("2", "1")
    assert none == {**dict.fromkeys(none, ""), "runs": "none", "seeds": "1", "stopped": "0"}
