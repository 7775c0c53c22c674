"""Verdicts: the rules by which the paper's claims are judged."""

import math
from dataclasses import replace

from fedmom.report.html import Status
from fedmom.reproduction import tables, verdicts
from fedmom.reproduction.directions import Directions
from fedmom.reproduction.findings import Findings
from fedmom.reproduction.measures import Measures, Values
from tests.reproduction.tiny import TINY, run_of


def measures(accuracy, loss, rounds, *, area=None, seeds=2):
    """A method whose accuracy jumps to its final value at a given evaluation."""
    runs = []
    for s in range(seeds):
        accuracies = [0.0] * rounds + [accuracy + 0.001 * s] * (20 - rounds)
        losses = [loss if area is None else area] * 12 + [loss + 0.001 * s] * 8
        runs.append(run_of(losses, accuracies, seed=s))
    return Measures(tuple(runs), 0.6)


def test_a_large_margin():
    good = measures(0.8, 1.0, 3)
    assert verdicts.large_margin(good, measures(0.7, 2.0, 6)) == Status.HOLDS
    assert verdicts.large_margin(good, measures(0.5, 2.0, 6)) == Status.HOLDS  # never reached
    assert verdicts.large_margin(good, measures(0.7, 2.0, 5)) == Status.PART
    assert verdicts.large_margin(good, measures(0.8, 1.0, 9)) == Status.FAILS
    # Neither reaches the target: better, and no more can be said.
    assert verdicts.large_margin(measures(0.5, 1.0, 3), measures(0.3, 2.0, 3)) == Status.PART


def test_faster():
    theirs = measures(0.8, 1.0, 6, area=2.0)
    assert verdicts.faster(measures(0.8, 1.0, 3, area=1.5), theirs) == Status.HOLDS
    assert verdicts.faster(measures(0.8, 1.5, 3, area=1.5), theirs) == Status.PART
    assert verdicts.faster(measures(0.8, 1.0, 3, area=2.0), theirs) == Status.PART
    assert verdicts.faster(measures(0.8, 1.0, 6, area=2.0), theirs) == Status.FAILS


def findings_over_lr(**curves):
    """Findings that are of step sizes on FEMNIST only."""
    over_lr = {"FEMNIST": curves, "Shakespeare": {}}
    scale = replace(TINY, femnist=replace(TINY.femnist, lrs=(0.1, 1.0)))
    return Findings(scale, {}, {}, over_lr, {}, {}, {}, {})


def test_faster_at_one_step_size_and_not_at_another_holds_in_part():
    quick, slow = [0, 0.8, 0.9, 0.9], [0, 0.2, 0.5, 0.9]
    down, late = [4.0, 1.0, 0.5, 0.5], [4.0, 3.0, 2.0, 0.5]
    findings = findings_over_lr(
        fedavg={0.1: [run_of(late, slow)], 1.0: [run_of(down, quick)]},
        fedmom={0.1: [run_of(down, quick)], 1.0: [run_of(late, slow)]},
    )
    (row,) = [r for r in verdicts.judge(findings) if r.claim == "faster"]
    assert (row.where, row.status) == ("FEMNIST, at every γ", Status.PART)
    assert row.numbers == "holds at γ 0.1; does not hold at γ 1; seeds 1"
    shown = [(line[0], line[1], line[-1]) for line in tables.same_lr(findings).rows]
    assert shown == [("FEMNIST", "0.1", "holds"), ("", "1", "does not hold")]
    # While one of them is missing, there is no verdict.
    unfinished = findings_over_lr(
        fedavg={0.1: [run_of(late, slow)]}, fedmom={0.1: [run_of(down, quick)]}
    )
    assert not [r for r in verdicts.judge(unfinished) if r.claim == "faster"]


def test_wins():
    theirs = measures(0.8, 1.0, 6, area=2.0)
    assert verdicts.wins(measures(0.85, 1.0, 6, area=2.0), theirs) == Status.HOLDS
    assert verdicts.wins(measures(0.8, 1.0, 3, area=1.5), theirs) == Status.PART
    assert verdicts.wins(measures(0.75, 1.0, 3, area=1.5), theirs) == Status.FAILS
    assert verdicts.wins(measures(0.85, 1.5, 3, area=1.5), theirs) == Status.FAILS


def over(*losses):
    return {10.0**-i: Values((loss,)) for i, loss in enumerate(losses)}


def test_robust():
    assert verdicts.robust(over(1.0, 1.1, 1.2), over(1.0, 1.1, 5.0)) == Status.HOLDS
    assert verdicts.robust(over(1.0, 1.1, 5.0), over(1.0, 1.1, 1.2)) == Status.FAILS
    assert verdicts.robust(over(1.0, 1.1), over(1.1, 1.0)) == Status.FAILS  # as robust, not more
    # More within 2 times, fewer within 1.25 times: it depends on what is good.
    assert verdicts.robust(over(1.0, 1.9, 1.9), over(1.0, 1.2, 9.0)) == Status.PART
    assert verdicts.robust(over(1.0, math.inf), over(1.0, 1.9)) == Status.FAILS


def test_pointing():
    ahead, away = [1.0] * 20, [1.0] * 15 + [-1.0] * 5
    assert verdicts.pointing(Directions(ahead, None, ahead, "x"), 5) == Status.HOLDS
    assert verdicts.pointing(Directions(ahead, None, away, "x"), 5) == Status.HOLDS
    assert verdicts.pointing(Directions(ahead, None, [-1.0] * 20, "x"), 5) == Status.PART
    assert verdicts.pointing(Directions(ahead, None, None, None), 5) == Status.PART
    assert verdicts.pointing(Directions(away, None, ahead, "x"), 5) == Status.FAILS


def test_a_claim_that_holds_in_places_holds_in_part():
    assert verdicts.overall([]) == Status.UNKNOWN
    assert verdicts.overall([Status.HOLDS, Status.HOLDS]) == Status.HOLDS
    assert verdicts.overall([Status.HOLDS, Status.FAILS]) == Status.PART
    assert verdicts.overall([Status.FAILS]) == Status.FAILS
