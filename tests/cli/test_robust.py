"""fedmom robust: the runs of a table of attacks and rules, and the table."""

import csv

import pytest

from fedmom.experiments.robustness import most_hostile, runs
from tests.cli.command import invoke, refused

SMALL = [
    *("robust", "--data", "synthetic:clients=10", "--rounds", "2", "--clients-per-round", "8"),
    *("--algorithms", "fedavg", "--attacks", "sign_flip:scale=5", "--shares", "0.2"),
    *("--rules", "mean trimmed_mean:share={share}", "--seeds", "2", "--lr", "0.001"),
]


def test_it_makes_the_table_and_runs_only_what_is_missing(tmp_path):
    out = tmp_path / "table"
    done = invoke(*SMALL, "--out", out)
    assert "fedavg, 20% hostile" in done
    rows = list(csv.DictReader((out / "robust.csv").read_text().splitlines()))
    assert [(row["rule"], row["attack"], row["seeds"]) for row in rows] == [
        (rule, attack, "2")
        for rule in ("mean", "trimmed_mean:share={share}")
        for attack in ("none", "sign_flip:scale=5")
    ]
    page = (out / "robust.md").read_text()
    assert page.count("| mean |") == 1
    logs = {path: path.stat().st_mtime_ns for path in out.glob("*/rounds.jsonl")}
    assert len(logs) == 8
    invoke(*SMALL, "--out", out)
    assert {path: path.stat().st_mtime_ns for path in logs} == logs
    assert (out / "robust.md").read_text() == page
    said = refused(*SMALL, "--seeds", "1", "--out", out)
    assert "holds the runs of another table" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shares", "0.7"], "--shares 0.7 is not in (0, 0.5)"),
        (["--shares", "few"], "--shares 'few' must be numbers"),
        (["--attacks", "sign_flop"], "no attack 'sign_flop'"),
    ],
)
def test_what_makes_no_sense_is_refused(words, said, tmp_path):
    assert said in refused(*SMALL, *words, "--out", tmp_path / "table")
    assert not (tmp_path / "table").exists()


def test_rules_are_told_how_many_hostile_replies_to_bear():
    assert [most_hostile(share, 20) for share in (0.1, 0.2, 0.4)] == [5, 8, 8]
    shared = {"data": "synthetic", "clients-per-round": 20, "weighting": "uniform"}
    found = runs(shared, ["fedavg"], ["alie"], ["krum:attackers={f}", "mean"], [0.1, 0.2], 1)
    assert {c.aggregate for c in found.values()} == {"krum:attackers=5", "krum:attackers=8", "mean"}
    assert {c.attack for c in found.values()} == {None, "alie:share=0.1", "alie:share=0.2"}
    assert len(found) == 4 + 3  # a mean without an attack is one run for both shares
