"""Verdicts: the rules by which the paper's claims are judged."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedmom.experiments.seed_statistics import Finding
from fedmom.reports.html import Status
from fedmom.reproduction import paper_tables, verdicts
from fedmom.reproduction.directions import Directions
from fedmom.reproduction.findings import Findings
from fedmom.reproduction.measures import Choice, Contest, duels, measure
from tests.reproduction.tiny import TINY, run_of


def method(accuracy, loss, rounds, *, area=None, seeds=5, noise=0.001):
    """A method whose accuracy jumps to its final value at about a given evaluation."""
    rng = np.random.default_rng([round(100 * accuracy), round(100 * loss), rounds])
    runs = []
    for s in range(seeds):
        off, late = noise * rng.normal(), rounds + int(rng.integers(2))
        accuracies = [0.0] * late + [accuracy + off] * 20
        losses = [(loss if area is None else area) + off] * 12 + [loss + off] * 8
        runs.append(run_of(losses, accuracies[:20], seed=s))
    return runs


def contest(ours, theirs, where="FEMNIST"):
    runs = {"fedmom": ours, "fedavg": theirs}
    choice = Choice(0.1, None, at_edge=False)
    return Contest(where, dict.fromkeys(runs, choice), measure(runs))


def duel(ours, theirs):
    (found,) = duels([contest(ours, theirs)])
    return found


def test_a_large_margin():
    good = method(0.8, 1.0, 3)
    assert verdicts.large_margin(duel(good, method(0.77, 2.0, 9))) == Status.HOLDS
    assert verdicts.large_margin(duel(good, method(0.5, 2.0, 6))) == Status.HOLDS  # never reached
    assert verdicts.large_margin(duel(good, method(0.77, 2.0, 5))) == Status.PART
    assert verdicts.large_margin(duel(good, method(0.8, 1.0, 9))) == Status.FAILS
    assert verdicts.large_margin(duel(method(0.7, 2.0, 3), good)) == Status.FAILS
    assert verdicts.large_margin(duel(good[:2], method(0.5, 2.0, 6))) == Status.FEW
    # Noise as large as the gap: it may be either.
    loud = method(0.78, 1.02, 9, noise=0.05)
    assert verdicts.large_margin(duel(good, loud)) == Status.OPEN


def test_faster():
    theirs = method(0.8, 1.0, 6, area=2.0)
    assert verdicts.faster(duel(method(0.8, 1.0, 3, area=1.5), theirs)) == Status.HOLDS
    assert verdicts.faster(duel(method(0.8, 1.5, 3, area=1.5), theirs)) == Status.PART
    assert verdicts.faster(duel(method(0.8, 1.0, 9, area=2.5), theirs)) == Status.FAILS
    assert verdicts.faster(duel(theirs, theirs)) == Status.OPEN  # there is no difference at all
    assert verdicts.faster(duel(method(0.8, 1.0, 3)[:1], theirs)) == Status.FEW


def test_wins():
    theirs = method(0.8, 1.0, 6)
    assert verdicts.wins(duel(method(0.85, 1.0, 6), theirs)) == Status.HOLDS
    assert verdicts.wins(duel(method(0.85, 1.5, 6), theirs)) == Status.PART
    assert verdicts.wins(duel(method(0.8, 1.0, 5), theirs)) == Status.FAILS  # equal
    assert verdicts.wins(duel(method(0.75, 1.0, 6), theirs)) == Status.FAILS
    assert verdicts.wins(duel(method(0.82, 1.0, 5, noise=0.02), theirs)) == Status.OPEN
    assert verdicts.wins(duel(method(0.85, 1.0, 6, seeds=2), theirs)) == Status.FEW


def test_one_seed_on_one_side_says_nothing():
    """The old rule fell back to five per cent, and forgot the other side's spread."""
    found = duel(method(0.3, 3.0, 3), method(0.2, 3.8, 3)[:1])
    assert verdicts.large_margin(found) == Status.FEW
    assert found.seeds == 1


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_more_seeds_find_more_and_do_not_cry_wolf(seeds):
    """Noise of one standard deviation: a gap of two, or none. The old rule's power fell."""
    rng = np.random.default_rng(seeds)

    def share(gap, repeats=200):
        found = 0
        for _ in range(repeats):
            sides = 0.5 + 0.01 * rng.normal(size=(2, seeds)) + 0.01 * np.array([[gap], [0]])
            runs = [
                [run_of([1.0] * 6, [a] * 6, seed=s) for s, a in enumerate(side)] for side in sides
            ]
            found += duel(*runs).is_("accuracy", Finding.HIGHER)
        return found / repeats

    assert share(0) < 0.07  # 2.5 % on this side
    assert share(2) > {3: 0.2, 5: 0.55, 10: 0.95}[seeds]


def test_a_family_is_corrected():
    """One setting in twenty differs by chance at p < 0.05; Holm's correction knows."""
    rng = np.random.default_rng(3)
    contests = []
    for place in range(40):
        sides = 0.5 + 0.01 * rng.normal(size=(2, 5))
        runs = [[run_of([1.0] * 6, [a] * 6, seed=s) for s, a in enumerate(x)] for x in sides]
        contests.append(contest(*runs, where=str(place)))
    family = duels(contests)
    raw = [d.found["accuracy"].difference.p < 0.05 for d in family]
    assert sum(raw) >= 1
    assert all(d.found["accuracy"].finding != Finding.HIGHER for d in family)
    assert all(d.found["accuracy"].finding != Finding.LOWER for d in family)


def test_a_method_with_fewer_rounds_is_compared_over_them():
    long, short = method(0.8, 1.0, 3), [run.until(9) for run in method(0.7, 2.0, 3)]
    short = [replace(r, config=r.config.model_copy(update={"rounds": 9})) for r in short]
    found = duel(long, short)
    assert found.where == "FEMNIST, first 9 rounds"
    assert found.a.length == 100  # as configured; evaluations end at round 9
    assert max(row["round"] for row in found.a.runs[0].evals) == 9


def test_a_method_that_ends_before_the_others_first_evaluation_is_left_out():
    """It was a crash, after hours of training."""
    short = [run.until(9) for run in method(0.7, 2.0, 3)]
    short = [replace(r, config=r.config.model_copy(update={"rounds": 9})) for r in short]
    late = [
        replace(run, evals=[row for row in run.evals if not 0 < row["round"] < 12])
        for run in method(0.8, 1.0, 3)
    ]
    assert {row["round"] for row in late[0].evals} == {0, *range(12, 20)}
    assert duels([contest(late, short)]) == []


def findings_over_lr(**curves):
    """Findings that are of step sizes on FEMNIST only."""
    over_lr = {"FEMNIST": curves, "Shakespeare": {}}
    scale = replace(TINY, femnist=replace(TINY.femnist, lrs=(0.1, 1.0)))
    return Findings(scale, {}, {}, over_lr, {}, {}, {}, {})


def test_faster_at_one_step_size_and_not_at_another_holds_in_part():
    quick, slow = method(0.8, 1.0, 3, area=1.5), method(0.8, 1.0, 8, area=2.5)
    findings = findings_over_lr(fedavg={0.1: slow, 1.0: quick}, fedmom={0.1: quick, 1.0: slow})
    (row,) = [r for r in verdicts.judge(findings) if r.claim == "faster"]
    assert (row.where, row.status) == ("FEMNIST, at every γ", Status.PART)
    assert row.numbers == "holds at γ 0.1; does not hold at γ 1; seeds 5"
    shown = [(line[0], line[1], line[-1]) for line in paper_tables.same_lr(findings).rows]
    assert shown == [("FEMNIST", "0.1", "holds"), ("", "1", "does not hold")]
    # While one of them is missing, there is no verdict.
    unfinished = findings_over_lr(fedavg={0.1: slow}, fedmom={0.1: quick})
    assert not [r for r in verdicts.judge(unfinished) if r.claim == "faster"]


def test_differences_between_settings_are_one_family():
    same = method(0.8, 1.0, 6)
    settings = {"apart": contest(method(0.85, 0.9, 6), same), "alike": contest(same, same)}
    findings = replace(findings_over_lr(), beyond=settings)
    rows = paper_tables.differences(findings).rows
    assert [row[-1] for row in rows] == ["FedMom", "equal"]
    assert rows[0][3].startswith("+0.050 (+0.04")
    assert rows[1][3] == "+0.000 (+0.000 to +0.000), p 1"


def over(*losses):
    return {10.0**-i: loss for i, loss in enumerate(losses)}


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


def test_closer_than_fedsgd():
    """Figure 4's claim: a longer step has a larger inner product; its direction need not be."""

    def judged(fedavg, fedsgd, ours=None, theirs=None):
        found = Directions(fedavg, fedsgd, None, None, ours, theirs)
        return [row.status for row in verdicts._closer("FEMNIST", found, 5)]

    high, low = [2.0] * 20, [1.0] * 20
    assert judged(high, low, [0.5] * 20, [0.4] * 20) == [Status.HOLDS]
    assert judged(high, low, [0.4] * 20, [0.5] * 20) == [Status.PART]
    assert judged(high, low) == [Status.PART]  # a folder of an earlier version has no cosines
    assert judged(low, high, [0.5] * 20, [0.4] * 20) == [Status.FAILS]
    assert judged(high, None) == []


def test_a_claim_that_holds_in_places_holds_in_part():
    assert verdicts.overall([]) == Status.UNKNOWN
    assert verdicts.overall([Status.HOLDS, Status.HOLDS]) == Status.HOLDS
    assert verdicts.overall([Status.HOLDS, Status.FAILS]) == Status.PART
    assert verdicts.overall([Status.FAILS]) == Status.FAILS
    assert verdicts.overall([Status.FAILS, Status.OPEN]) == Status.OPEN
    assert verdicts.overall([Status.HOLDS, Status.FEW]) == Status.HOLDS
    assert verdicts.overall([Status.FEW]) == Status.FEW
