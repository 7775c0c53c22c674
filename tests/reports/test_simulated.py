"""Simulated worlds in reports: time to accuracy, and who replied, by hand."""

import pytest

from fedmom.experiments.results import Group
from fedmom.reports import result_tables, run_page, simulated
from fedmom.reports.charts import Figure, Grid
from tests.reports.runs import result, round_row


def in_world(accuracies, seconds, seed=0, worlds=None, rejected=()):
    """A run whose rounds take the same simulated time, evaluated every tenth."""
    rounds = [
        round_row(
            t,
            simulated_seconds=seconds,
            **({"world": worlds[(t - 1) % len(worlds)]} if worlds else {}),
            rejected=list(rejected) if t == 1 else [],
        )
        for t in range(1, 10 * len(accuracies) - 9)
    ]
    return result(accuracies, rounds, seed)


def group(*runs, label="fedmom"):
    return Group(label, list(runs))


def test_time_to_accuracy_is_the_time_of_the_round_that_reaches_it():
    run = in_world([0.1, 0.4, 0.7], seconds=90.0)
    assert run.seconds_to(0.4) == 10 * 90
    assert run.seconds_to(0.6) == 20 * 90
    assert run.seconds_to(0.8) is None
    assert run.simulated()[20] == 1800
    assert result([0.1, 0.9]).seconds_to(0.5) is None


def test_tables_have_simulated_in_place_of_real_time():
    slow = group(in_world([0.1, 0.4, 0.7], seconds=900.0), label="slow")
    quick = group(in_world([0.1, 0.4, 0.6], seconds=90.0), label="quick")
    shown = result_tables.grid([slow, quick], 0.65)
    assert shown.columns[-3:] == ["simulated h to 0.650", "MB sent", "simulated h"]
    assert [row[-3] for row in shown.rows] == ["5.0", "never"]
    assert [row[-1] for row in shown.rows] == ["5.0", "0.5"]
    plain = result_tables.grid([group(result([0.1, 0.4]))], 0.3)
    assert plain.columns[-2:] == ["MB sent", "time (s)"]


@pytest.mark.parametrize(
    ("seconds", "unit"), [(0.01, "s"), (5.9, "s"), (6.1, "min"), (361, "h"), (8700, "days")]
)
def test_the_unit_fits_the_longest_run(seconds, unit):
    """At least two of it in twenty rounds."""
    assert result_tables.unit_of([group(in_world([0.1, 0.2, 0.3], seconds))])[0] == unit


def test_the_curve_over_time_holds_the_last_evaluation():
    fast, slow = in_world([0.0, 0.5, 1.0], 60.0), in_world([0.0, 0.5, 1.0], 120.0, seed=1)
    figure = simulated.over_time([group(fast, slow)])
    (line,) = figure.charts[0].marks
    assert figure.charts[0].x == "simulated time (min)"
    assert (line.x[0], line.x[-1]) == (0.0, 20.0)  # as long as the quicker run
    for minutes, value in zip(line.x, line.y, strict=True):
        fast_then = 0.0 if minutes < 10 else 0.5 if minutes < 20 else 1.0
        slow_then = 0.0 if minutes < 20 else 0.5
        assert value == pytest.approx((fast_then + slow_then) / 2)
    assert simulated.over_time([group(result([0.1, 0.4]))]) is None


def test_shares_are_of_all_rounds_by_quarters():
    worlds = [
        {"asked/size/1": 3.0, "asked/size/4": 1.0, "replied/size/1": 3.0},
        {"asked/size/1": 1.0, "asked/size/4": 3.0, "replied/size/4": 1.0},
    ]
    shown = simulated.shares([group(in_world([0.1, 0.4], 60.0, worlds=worlds))])
    cells = {row[1]: row[2:] for row in shown.rows}
    assert cells["size: smallest quarter"] == ["25.0", "50.0", "75.0", "–"]
    assert cells["size: largest quarter"] == ["25.0", "50.0", "25.0", "–"]
    assert cells["size: third"] == ["25.0", "0.0", "0.0", "–"]
    assert not [name for name in cells if name.startswith("speed")]
    assert simulated.shares([group(result([0.1, 0.4]))]) is None


def test_the_page_says_what_a_world_has_lost_and_blames_no_reply():
    worlds = [{"asked/size/1": 1.0, "replied/size/1": 1.0}]
    lost = [[3, "simulated: it dropped out"], [4, "simulated: it dropped out"], [5, "a bad shape"]]
    run = in_world([0.1, 0.4], 60.0, worlds=worlds, rejected=lost)
    view = run_page.overview([run])
    (section,) = [s for s in view.sections if s.title == "Simulated world"]
    assert (
        "of 20 clients that were asked, some did not reply: it dropped out (2)."
        in section.parts[0].text
    )
    assert [part.name for part in section.parts if isinstance(part, Grid)] == ["shares"]
    assert run.rejected() == "1 of 21 replies were rejected: a bad shape (1)."
    figures = [part for s in view.sections for part in s.parts if isinstance(part, Figure)]
    assert "time" in [figure.name for figure in figures]
