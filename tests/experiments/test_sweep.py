"""Sweeps: the runs of a grid, and their seeds taken together."""

import pytest

import fedmom
from fedmom.experiments import run_lists
from fedmom.experiments.results import Result, group_by_name
from fedmom.experiments.settings import RunConfig
from tests.experiments.small import SMALL

GRID = {
    "algorithm": ["fedavg", "fedmom"],
    "lr": [0.001, 0.01],
    "momentum": [0.5, 0.9],
    "seed": [0, 1],
}


def test_the_grid_is_the_product_without_what_is_equal():
    found = run_lists.of_sweep(SMALL, GRID)
    # FedAvg has no momentum: 2 lr x 2 seeds; FedMom: 2 lr x 2 β x 2 seeds.
    assert len(found) == 4 + 8
    assert found["fedavg_lr0.01_seed1"].momentum is None
    assert found["fedmom_lr0.001_momentum0.5_seed0"].momentum == 0.5
    assert all(config.rounds == SMALL["rounds"] for config in found.values())
    assert len(set(found.values())) == len(found)


def test_fedsgd_in_a_grid_of_local_steps_is_one_run():
    found = run_lists.of_sweep(SMALL, {"algorithm": ["fedsgd", "fedavg"], "local-steps": [1, 5]})
    assert list(found) == ["fedsgd", "fedavg_local-steps1", "fedavg_local-steps5"]


def test_names_are_folders_whatever_the_values():
    found = run_lists.of_sweep(
        SMALL, {"lr": ["cosine:start=0.1,rounds=9"], "aggregate": ["clip:norm=1+mean", "mean"]}
    )
    assert list(found) == [
        "lrcosine-start=0.1-rounds=9_aggregateclip-norm=1-mean",
        "lrcosine-start=0.1-rounds=9_aggregatemean",
    ]


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({"speed": [1]}, "no setting 'speed'"),
        ({"lr": []}, "must be a list"),
        ({"lr": 0.1}, "must be a list"),
        ({"lr": [-1]}, "lr = -1"),
        ({"algorithm": ["fedsdg"]}, "Did you mean 'fedsgd'"),
    ],
)
def test_mistakes_are_sentences(grid, says):
    with pytest.raises(fedmom.FedMomError, match=says):
        run_lists.of_sweep(SMALL, grid)


def test_seeds_are_taken_together_by_name(tmp_path):
    def of(name, seed):
        return name, Result(tmp_path / name, RunConfig(seed=seed), [])

    found = group_by_name(
        dict([of("fedavg_seed0", 0), of("fedmom_seed0", 0), of("fedavg_seed1", 1), of("x", 3)])
    )
    assert [(group.label, len(group.runs)) for group in found] == [
        ("fedavg", 2),
        ("fedmom", 1),
        ("x", 1),
    ]
    assert group_by_name(dict([of("seed0", 0), of("seed1", 1)]))[0].label == "run"
