"""What the theorems say of a step size, and which one experiments found best."""

import pytest

from fedmom.theory import advice
from fedmom.theory.constants import Constants, Setting
from tests.report.runs import make_run


def test_statements_are_silent_where_they_do_not_hold():
    constants = Constants(smoothness=2, variance=0.5, gap=3)
    outside = Setting(clients=20, per_round=4, local_steps=5, server_lr=6, momentum=0.5)
    rows = {r.name: r for r in advice.statements(constants, outside, 100, lr=1e9)}
    assert rows["Theorem 1 (paper)"].largest_lr is None
    assert rows["Theorem 2 (paper)"].largest_lr is None
    assert rows["Theorem 2' (corrected)"].largest_lr > 0
    assert all(r.bound_at is None for r in rows.values())


def found(folder, algorithm="fedmom"):
    return advice.found_best(folder, "synthetic", "logreg", algorithm)


def test_experiments_are_judged_by_their_last_accuracy_over_seeds(tmp_path):
    """The accuracy of these runs falls with the seed, and not with anything else."""
    assert found(tmp_path) is None
    for lr, seeds in ((0.1, (4, 5)), (0.2, (0, 1, 2)), (0.3, (9,))):
        for seed in seeds:
            make_run(tmp_path / f"below/{lr}-{seed}", lr=lr, seed=seed)
    best = found(tmp_path)
    assert (best.lr, best.rounds, best.seeds, best.tried) == (0.2, 20, 3, 3)
    assert best.accuracy == pytest.approx(sum(20 / (20 + 10 + seed) for seed in (0, 1, 2)) / 3)
    assert found(tmp_path, "fedavg") is None


def test_runs_that_cannot_be_compared_are_left_out(tmp_path):
    make_run(tmp_path / "counts", lr=0.1, seed=9)
    make_run(tmp_path / "unfinished", done=15, lr=0.2)
    make_run(tmp_path / "diverged", done=10, stop="diverged", lr=0.3)
    make_run(tmp_path / "shorter", rounds=10, done=10, lr=0.4)
    make_run(tmp_path / "weighted", weighting="cohort", lr=0.5)
    make_run(tmp_path / "schedule", lr="inverse:start=0.1")
    make_run(tmp_path / "others", data="glyphs", lr=0.6)
    best = found(tmp_path)
    assert (best.lr, best.tried, best.seeds) == (0.1, 1, 1)
