"""Differences over seeds as tables and sentences."""

import pytest

from fedmom.experiments.results import Group
from fedmom.experiments.seed_statistics import Finding
from fedmom.reports import differences
from tests.reports.runs import result


def group(label, *values):
    return Group(label, [result([0, 0, value], seed=seed) for seed, value in enumerate(values)])


AVG = group("avg", 0.50, 0.52, 0.51, 0.53)
MOM = group("mom", 0.60, 0.61, 0.62, 0.645)
NEAR = group("near", 0.501, 0.519, 0.511, 0.529)
OPEN = group("open", 0.4, 0.7, 0.5, 0.65)


def rows(family):
    grid = differences.grid(family)
    return [dict(zip(grid.columns, row, strict=True)) for row in grid.rows]


def test_a_table_has_difference_interval_p_and_finding():
    accuracy, loss = differences.families([AVG, MOM])
    assert rows(accuracy) == [
        {
            "pair": "mom − avg",
            "seeds": "4",
            "difference": "+0.104",
            "interval (95 %)": "+0.086 to +0.121",
            "p (Holm)": "<0.001",
            "finding": "ahead",
        }
    ]
    assert rows(loss)[0]["difference"] == "-0.104"
    assert rows(loss)[0]["finding"] == "ahead"  # lower is better
    assert differences.grid(accuracy).title == "Test accuracy: differences paired by seed"
    assert "Holm" not in differences.grid(accuracy).note  # one pair needs no correction
    assert "lower is better" in differences.grid(loss).note


def test_several_pairs_say_how_they_are_corrected():
    accuracy, _ = differences.families([AVG, MOM, NEAR])
    assert "corrected by Holm's method for all 3 pairs" in differences.grid(accuracy).note
    assert [row["finding"] for row in rows(accuracy)] == ["ahead", "equal within ±0.01", "behind"]


def test_many_groups_are_held_against_the_best_by_name():
    accuracy, _ = differences.families([AVG, MOM, NEAR, OPEN])
    grid = differences.grid(accuracy)
    assert grid.title.endswith(", vs. mom (best mean)")
    assert [row[0] for row in grid.rows] == ["avg", "near", "open"]
    assert "for all 6 pairs" in grid.note
    assert differences.sentence(accuracy) == (
        "Test accuracy over 4 seeds: mom has the best mean; of the 3 others, it is ahead of 2,"
        " not settled against 1."
    )


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ([AVG, MOM], "mom is ahead of avg by 0.104."),
        ([MOM, AVG], "mom is ahead of avg by 0.104."),
        ([AVG, NEAR], "near and avg are equal within ±0.01."),
        ([AVG, OPEN], "open against avg is not settled."),
    ],
)
def test_a_sentence_says_what_was_found(groups, says):
    accuracy, _ = differences.families(groups)
    assert differences.sentence(accuracy) == f"Test accuracy over 4 seeds: {says}"


def test_losses_in_a_sentence():
    _, loss = differences.families([AVG, MOM])
    assert differences.sentence(loss) == (
        "Training loss over 4 seeds: mom is ahead of avg by 0.104."
    )


def test_too_few_seeds_are_told():
    accuracy, _ = differences.families([group("a", 0.1, 0.2), group("b", 0.3, 0.5)])
    (row,) = rows(accuracy)
    assert (row["difference"], row["interval (95 %)"]) == ("+0.250", "–")
    assert row["finding"] == "not enough seeds"
    assert differences.sentence(accuracy) == (
        "Test accuracy: not enough seeds. 3 are the fewest, and 10 are better."
    )


def test_a_comparison_that_was_lost_by_diverging():
    wild = Group("wild", [result([], seed=seed, stop="diverged") for seed in range(6)])
    tame = group("tame", *[0.5 + i / 100 for i in range(6)])
    accuracy, _ = differences.families([wild, tame])
    (row,) = rows(accuracy)
    assert (row["difference"], row["interval (95 %)"]) == ("diverged", "–")
    assert (row["p (Holm)"], row["finding"]) == ("0.031", "ahead")
    assert differences.sentence(accuracy).endswith("tame is ahead of wild.")


def test_one_seed_has_no_differences_and_says_so():
    assert differences.families([group("a", 0.1), group("b", 0.2)]) == []
    said = differences.sentences([], "a was fast.", {"fedavg": 0.3, "fedmom": 0.3})
    assert said[0] == ("One seed is not evidence: use --seeds 10 for confidence intervals.")
    assert said[1] == "a was fast."
    assert "The runs have lr 0.3" in said[2]
    assert len(differences.sentences([], "", {"fedavg": 0.3})) == 2


def test_findings_in_the_words_of_tables():
    assert differences.finding_text(Finding.HIGHER, 1) == "ahead"
    assert differences.finding_text(Finding.HIGHER, -1) == "behind"
    assert differences.finding_text(Finding.LOWER, 1) == "behind"
    assert differences.finding_text(Finding.LOWER, -1) == "ahead"
    assert differences.finding_text(Finding.TOO_FEW, -1) == "not enough seeds"


def test_p_values_as_text():
    assert [differences.p_text(p) for p in (None, 0.0004, 0.001, 0.0312, 1.0)] == [
        *("–", "<0.001", "0.001", "0.031", "1.000"),
    ]
