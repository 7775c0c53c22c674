"""What the theorems say of a step size, and which one experiments found best."""

import pytest

from fedmom.cli import theory_tables
from fedmom.experiments import build, settings
from fedmom.experiments.seed_statistics import Finding
from fedmom.experiments.settings import RunConfig
from fedmom.theory import lr_advice
from fedmom.theory.constants import Constants, Setting
from fedmom.theory.lr_advice import BestLr
from fedmom.theory.paper_theorems import apply_all
from fedmom.theory.theorems import CORRECTED_FEDAVG, CORRECTED_FEDMOM
from tests.reports.runs import make_run


def test_theorems_give_no_number_where_they_do_not_apply():
    constants = Constants(smoothness=2, variance=0.5, gap=3)
    outside = Setting(clients=20, per_round=4, local_steps=5, server_lr=6, momentum=0.5)
    rows = {r.theorem.name: r for r in apply_all(constants, outside, 100, lr=1e9)}
    assert rows["Theorem 1"].largest_lr is None
    assert rows["Theorem 2"].largest_lr is None
    assert rows["Theorem 2'"].largest_lr > 0
    assert all(r.bound_at is None for r in rows.values())


def found(folder, algorithm="fedmom"):
    return lr_advice.found_best(folder, "synthetic", "logreg", algorithm)


def test_experiments_are_judged_by_their_last_accuracy_over_seeds(tmp_path):
    """The accuracy of these runs falls with the seed, and not with anything else."""
    assert found(tmp_path) is None
    for lr, seeds in ((0.1, (4, 5)), (0.2, (0, 1, 2)), (0.3, (9,))):
        for seed in seeds:
            make_run(tmp_path / f"below/{lr}-{seed}", lr=lr, seed=seed)
    best = found(tmp_path)
    assert (best.lr, best.config.rounds, best.seeds, len(best.accuracies)) == (0.2, 20, 3, 3)
    assert best.accuracy == pytest.approx(sum(20 / (20 + 10 + seed) for seed in (0, 1, 2)) / 3)
    assert found(tmp_path, "fedavg") is None


def test_runs_that_cannot_be_compared_are_left_out(tmp_path):
    make_run(tmp_path / "counts", lr=0.1, seed=9)
    make_run(tmp_path / "unfinished", done=15, lr=0.2)
    make_run(tmp_path / "diverged", done=10, stop="diverged", lr=0.3)
    make_run(tmp_path / "diverged elsewhere", done=10, stop="diverged", lr=0.7, momentum=0.5)
    make_run(tmp_path / "shorter", rounds=10, done=10, lr=0.4)
    make_run(tmp_path / "weighted", weighting="cohort", lr=0.5)
    make_run(tmp_path / "schedule", lr="inverse:start=0.1")
    make_run(tmp_path / "others", data="glyphs", lr=0.6)
    best = found(tmp_path)
    assert (best.lr, len(best.accuracies), best.seeds) == (0.1, 1, 1)
    assert best.diverged == (0.3,)  # known to be too large


def test_a_folder_that_cannot_be_read_is_passed_over(tmp_path):
    make_run(tmp_path / "good", lr=0.1)
    make_run(tmp_path / "bad", lr=0.2)
    (tmp_path / "bad" / "config.toml").write_text("rounds = 'many'")
    assert found(tmp_path).accuracies.keys() == {0.1}


def test_step_sizes_are_compared_with_all_else_equal(tmp_path):
    """The best seed's γ is 0.2; 0.1 was tried with other clients, so it is no neighbour."""
    make_run(tmp_path / "a", lr=0.2, seed=0)
    make_run(tmp_path / "b", lr=0.4, seed=1)
    make_run(tmp_path / "c", lr=0.1, seed=1, clients_per_round=3)
    best = found(tmp_path)
    assert (best.lr, len(best.accuracies), best.neighbours) == (0.2, 2, (None, 0.4))
    assert best.accuracies == {0.2: 20 / 30, 0.4: 20 / 31}


# What to try next.


def best_of(accuracies, diverged=(), findings=None):
    lr = max(accuracies, key=accuracies.get)
    config = RunConfig.model_validate({"data": "synthetic", "model": "logreg", "lr": lr})
    worse = {other: Finding.LOWER for other in accuracies if other != lr}
    return BestLr(config, accuracies, 3, diverged, worse | (findings or {}))


@pytest.mark.parametrize(
    ("accuracies", "diverged", "lrs", "says"),
    [
        ({0.1: 0.9}, (), [0.033, 0.3], "no other γ was tried"),
        ({0.1: 0.8, 0.3: 0.9}, (), [0.9], "the largest γ tried"),
        ({0.1: 0.9, 0.3: 0.8}, (), [0.033], "the smallest γ tried"),
        ({0.1: 0.8, 0.3: 0.9}, (0.9,), [], "between 0.1 and 0.9, which are worse"),
        ({0.1: 0.8, 0.3: 0.9, 0.9: 0.7}, (), [], "between 0.1 and 0.9, which are worse"),
        ({0.01: 0.8, 0.3: 0.9, 0.9: 0.7}, (), [0.055], "between 0.01 and 0.9, far apart"),
        ({0.1: 0.8, 0.3: 0.9, 30.0: 0.7}, (), [3.0], "between 0.1 and 30, far apart"),
    ],
)
def test_the_next_step_sizes_surround_the_best(accuracies, diverged, lrs, says):
    best = best_of(accuracies, diverged)
    assert lr_advice.next_lrs(best) == pytest.approx(lrs)
    assert says in lr_advice.verdict(best)


@pytest.mark.parametrize("open_", [Finding.OPEN, Finding.TOO_FEW])
def test_a_difference_that_is_not_settled_is_not_called_one(open_):
    accuracies = {0.1: 0.496, 0.3: 0.513, 0.9: 0.4}
    said = lr_advice.verdict(best_of(accuracies, findings={0.1: open_}))
    assert said.endswith("not settled against 0.1: run more seeds before you choose")
    said = lr_advice.verdict(best_of(accuracies, findings={0.1: open_, 0.9: open_}))
    assert "not settled against 0.1 and 0.9" in said
    assert "no need" in lr_advice.verdict(best_of(accuracies, findings={0.1: Finding.EQUAL}))


def test_step_sizes_are_compared_by_seed_with_the_best(tmp_path):
    """The accuracy of these runs falls with the seed: γ are equal on the seeds that they share."""
    for lr, seeds in ((0.1, (1, 2, 3)), (0.2, (0, 1, 2, 3)), (0.3, (9,))):
        for seed in seeds:
            make_run(tmp_path / f"{lr}-{seed}", lr=lr, seed=seed)
    for seed in range(4):
        make_run(tmp_path / f"diverged-{seed}", done=10, stop="diverged", lr=0.4, seed=seed)
    best = found(tmp_path)
    assert best.lr == 0.2
    assert best.findings[0.1] is Finding.EQUAL
    assert best.findings[0.3] is Finding.TOO_FEW
    assert [best.is_settled(lr) for lr in (0.1, 0.3, 0.4)] == [True, False, True]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd", "fedmom"])
def test_what_is_proven_of_fedmom_is_proven_with_its_momentum(algorithm):
    values = {"data": "synthetic:clients=6", "algorithm": algorithm, "rounds": 9}
    setting = lr_advice.setting_of(build.prepare(settings.parse(values)))
    assert setting.momentum == 0.9
    constants = Constants(smoothness=50, variance=2, gap=3, dissimilarity=1, similarity=4)
    fedavg, fedmom = (
        theorem.best_lr(constants, setting, 100) for theorem in (CORRECTED_FEDAVG, CORRECTED_FEDMOM)
    )
    assert fedmom < fedavg / 9
    table = theory_tables.proven_table(constants, setting, 100)
    assert [column.header for column in table.columns][1:3] == ["fedavg", "fedmom, β = 0.9"]


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_a_first_grid_goes_down_by_thirds_from_above_the_limit_of_sgd(beta):
    lrs = lr_advice.first_grid(smoothness=8.0, momentum=beta)
    limit = (1 - beta) * 2 / 8
    expected = [limit / 9, limit / 3, limit, 3 * limit]
    assert lrs == pytest.approx(expected, rel=0.05)  # two digits


def test_a_command_says_what_is_not_usual():
    values = {"data": "a file", "model": "logreg", "algorithm": "fedmom", "rounds": 7}
    own = {"clients_per_round": 4, "local_steps": 3, "server_lr": 1.5, "momentum": 0.5}
    usual = {"local_steps": 10, "server_lr": 10.0, "momentum": 0.9}
    for more, said in (
        (own, "--clients-per-round 4 --local-steps 3 --server-lr 1.5 --momentum 0.5 "),
        (usual, ""),
    ):
        config = RunConfig.model_validate({**values, **more})
        command = lr_advice.sweep_command(config, 20, [0.1, 0.3], "runs/x")
        assert command == (
            f"fedmom sweep --data 'a file' --model logreg --algorithm fedmom --rounds 7 {said}"
            "--grid 'lr=0.1 0.3' --grid 'seed=0 1 2' --out runs/x"
        )


def test_differences_from_the_task_are_named():
    values = {"data": "synthetic", "model": "logreg", "algorithm": "fedmom", "momentum": 0.9}
    task = RunConfig.model_validate({**values, "clients_per_round": 4})
    runs = RunConfig.model_validate({**values, "rounds": 3})
    assert lr_advice.differences(runs, task) == ["clients-per-round 2 (here 4)"]
    plain = runs.model_copy(update={"algorithm": "fedavg", "momentum": None})
    assert lr_advice.differences(plain, task) == ["clients-per-round 2 (here 4)"]
