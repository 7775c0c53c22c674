"""The numbers of a report: who was faster, means over seeds, percentiles over clients."""

import io
import statistics
from dataclasses import replace

from rich.console import Console
from scipy import stats

from fedmom.experiments import results
from fedmom.experiments.results import Group
from fedmom.reports import result_tables
from tests.reports.runs import SIZE, accuracy, make_run, result

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
    assert result_tables.verdict(groups, goal) == (
        "Test accuracy 0.600: first took 10 rounds (second 20)."
    )


def test_a_verdict_names_few_of_many():
    groups = [Group(f"run {i}", [result([0, 0.9])]) for i in range(7)]
    assert result_tables.verdict(groups, 0.9) == "Test accuracy 0.900: all took 10 rounds."
    groups.append(Group("run 7", [result([0, 0, 0.9])]))
    assert result_tables.verdict(groups, 0.9) == (
        "Test accuracy 0.900: run 0, run 1, run 2, run 3, run 4 and 2 more took 10 rounds"
        " (run 7 20)."
    )
    slower = [Group(f"run {i}", [result([0] * i + [0.9])]) for i in range(1, 9)]
    assert result_tables.verdict(slower, 0.9) == (
        "Test accuracy 0.900: run 1 took 10 rounds"
        " (run 2 20, run 3 30, run 4 40, run 5 50, run 6 60, 2 more)."
    )
    assert result_tables.verdict(groups[:1], 0.9).endswith("(no other did).")


def test_runs_that_are_as_fast_as_each_other_are_named_together():
    groups = [Group(name, [result([0, 0.9])]) for name in ("first", "second")]
    groups.append(Group("third", [result([0, 0])]))
    assert result_tables.verdict(groups, 0.9) == (
        "Test accuracy 0.900: first and second took 10 rounds (no other did)."
    )


def test_nobody_there_yet_is_no_verdict():
    groups = [Group("a", [result()]), Group("b", [result()])]
    assert result_tables.verdict(groups, results.target(groups)) == ""


# ---- comparisons


def table_row(groups, goal=0.6, place=0):
    grid = result_tables.grid(groups, goal)
    return dict(zip(grid.columns, grid.rows[place], strict=True))


def printed(width, *grids):
    console = Console(width=width, file=io.StringIO(), soft_wrap=True)
    result_tables.show(console, *grids)
    return console.file.getvalue()


def test_the_numbers_of_a_table(tmp_path):
    runs = {a: results.read(make_run(tmp_path / a, algorithm=a).path) for a in ("fedavg", "fedmom")}
    groups = results.as_groups(runs)
    row = table_row(groups, results.target(groups))
    assert row["test accuracy"] == f"{accuracy(20):.3f}"
    assert row["train loss"] == f"{1 - accuracy(20):.3f}"
    assert row["MB sent"] == f"{20 * 2 * SIZE / 1e6:.1f}"
    assert row["time (s)"] == f"{20 * 0.25:.1f}"
    assert result_tables.grid(groups, 0.6).title == "Last evaluation, round 20"


def test_percentiles_have_identical_clients_below_them_and_say_what_they_are_of(tmp_path):
    groups = results.as_groups({"a": results.read(make_run(tmp_path / "a").path)})
    row = table_row(groups)
    for name, share in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9)):
        value = accuracy(20) * share
        assert row[name] == f"{value:.3f}\n({value / 2:.3f})"
    note = result_tables.grid(groups, 0.6).note
    assert "over 7 clients with 1,234 test samples in all; in brackets, expected if" in note


def test_runs_of_earlier_versions_have_percentiles_without_identical_clients(tmp_path):
    run = results.read(make_run(tmp_path / "a").path)
    old = {"accuracy", "loss", "round", "split", "accuracy_p10"}
    rows = [{k: v for k, v in row.items() if k in old} for row in run.evals]
    groups = results.as_groups({"a": replace(run, evals=rows)})
    row = table_row(groups)
    assert (row["p10"], row["p50"]) == (f"{accuracy(20) / 10:.3f}", "–")
    assert result_tables.grid(groups, 0.6).note == "p10 to p90: test accuracy over clients."


def test_runs_that_ended_at_different_rounds_have_a_column_of_rounds():
    groups = [Group("a", [result([0, 0.5])]), Group("b", [result([0]), result([0, 0.1], seed=1)])]
    assert table_row(groups)["round"] == "10"
    assert table_row(groups, place=1)["round"] == "0 to 10"
    assert result_tables.grid(groups, 0.6).title == "Last evaluation"
    assert table_row([Group("a", [result()])])["round"] == "–"


def test_a_table_of_seeds_has_means_and_intervals(tmp_path):
    for seed in (0, 1, 2):
        make_run(tmp_path / str(seed), seed=seed)
    groups = results.group_by_seed(results.find([tmp_path]))
    row, note = table_row(groups), result_tables.grid(groups, 0.6).note
    values = [accuracy(20, seed) for seed in (0, 1, 2)]
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert row["test accuracy"] == f"{statistics.fmean(values):.3f}\n±{(high - low) / 2:.3f}"
    # Seed 0 is there in round 15, seeds 1 and 2 in round 20.
    assert row["rounds to 0.600"] == "18\n±7"
    assert "± half their 95 % intervals" in note


def test_two_seeds_are_not_enough_for_an_interval(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / str(seed), seed=seed)
    groups = results.group_by_seed(results.find([tmp_path]))
    assert "±" not in table_row(groups)["test accuracy"]
    assert (
        "Not enough seeds for intervals: 3 are the fewest." in result_tables.grid(groups, 0.6).note
    )


def test_means_are_over_seeds_that_did_not_diverge_and_rounds_over_those_that_got_there():
    wild = result([0.1], seed=3, stop="diverged")
    group = Group("a", [result([0, 0.5, v], seed=i) for i, v in enumerate((0.7, 0.8, 0.9))])
    both = Group("a", [*group.runs, wild])
    row, without = table_row([both]), table_row([group])
    assert row["test accuracy"] == without["test accuracy"] == "0.800\n±0.248"
    assert row["rounds to 0.600"] == "20\n1 of 4 never"
    assert "Runs that diverged are left out of means." in result_tables.grid([both], 0.6).note
    assert table_row([Group("a", [wild])])["test accuracy"] == "0.100"


def test_the_terminal_shows_titles_numbers_and_notes_in_lines_of_its_width(tmp_path):
    for algorithm in ("fedsgd", "fedavg", "fedmom"):
        for seed in (0, 1, 2):
            make_run(tmp_path / f"{algorithm}{seed}", algorithm=algorithm, seed=seed)
    grid = result_tables.grid(results.group_by_seed(results.find([tmp_path])), 0.6)
    text = printed(80, grid, grid)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count(grid.title) == 2
    assert " ".join(text.split()).count(grid.note) == 2
    for row in grid.rows:
        for cell in row:
            for line in cell.split("\n"):
                assert line in text


def test_a_narrow_terminal_folds_names_and_keeps_numbers():
    rows = [("lr0.003_local-steps10_momentum0.9_[fedmom]", "0.582", "0.127")]
    console = Console(width=30, file=io.StringIO())
    console.print(result_tables.rich_table(["runs", "test accuracy", "spread"], rows))
    text = console.file.getvalue()
    assert "0.582" in text
    assert "0.127" in text
    assert "…" not in text
    assert "".join(line.split()[0] for line in text.splitlines()[2:]) == rows[0][0]
