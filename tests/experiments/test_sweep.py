"""Sweeps: the grid, runs side by side, and going on after a stop."""

import threading

import pytest

import fedmom
from fedmom.experiments import compare, results, sweep
from fedmom.experiments.results import Result
from fedmom.experiments.settings import RunConfig
from tests.experiments.small import SMALL, Watcher, checkpoint_bytes, logs, pointer, run

GRID = {
    "algorithm": ["fedavg", "fedmom"],
    "lr": [0.001, 0.01],
    "momentum": [0.5, 0.9],
    "seed": [0, 1],
}


def test_the_grid_is_the_product_without_what_is_equal():
    found = sweep.cells(SMALL, GRID)
    # FedAvg has no momentum: 2 lr x 2 seeds; FedMom: 2 lr x 2 β x 2 seeds.
    assert len(found) == 4 + 8
    assert found["fedavg_lr0.01_seed1"].momentum is None
    assert found["fedmom_lr0.001_momentum0.5_seed0"].momentum == 0.5
    assert all(config.rounds == SMALL["rounds"] for config in found.values())
    assert len(set(found.values())) == len(found)


def test_fedsgd_in_a_grid_of_local_steps_is_one_run():
    found = sweep.cells(SMALL, {"algorithm": ["fedsgd", "fedavg"], "local-steps": [1, 5]})
    assert list(found) == ["fedsgd", "fedavg_local-steps1", "fedavg_local-steps5"]


def test_names_are_folders_whatever_the_values():
    found = sweep.cells(
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
        sweep.cells(SMALL, grid)


class Rounds:
    """Counts the rounds of every run."""

    def __init__(self):
        self.count, self._lock = {}, threading.Lock()

    def __call__(self, path, rounds):
        with self._lock:
            self.count[path.name] = self.count.get(path.name, 0) + rounds


def side_by_side(folder, experiments, advanced=None, ended=None):
    by_path = {folder / name: experiment for name, experiment in experiments.items()}
    return sweep.side_by_side(by_path, advanced or Rounds(), ended)


def test_a_run_of_a_sweep_is_the_run_alone(tmp_path):
    grid = {"algorithm": ["fedavg", "fedmom"], "lr": [0.001, 0.01]}
    experiments = compare.create(tmp_path / "s", sweep.cells(SMALL, grid), sweep.LIST)
    rounds, ended = Rounds(), []
    found = side_by_side(
        tmp_path / "s", experiments, rounds, lambda path, _: ended.append(path.name)
    )
    alone = run(tmp_path / "alone", algorithm="fedmom", lr=0.01)
    assert checkpoint_bytes(alone.path) == checkpoint_bytes(tmp_path / "s" / "fedmom_lr0.01")
    assert logs(alone.path) == logs(tmp_path / "s" / "fedmom_lr0.01")
    assert rounds.count == dict.fromkeys(experiments, 12)
    assert sorted(ended) == sorted(experiments)
    for path, result in found.items():
        assert result == results.read(path)
        assert result.finished
    assert [path.name for path in found] == list(experiments)  # in the grid's order


def test_others_may_look_on_at_a_run(tmp_path):
    class Noting(Watcher):
        def __init__(self, path):
            super().__init__()
            self.path, self.open = path, None

        def __enter__(self):
            self.open = True
            return self

        def __exit__(self, *_):
            self.open = False

    made = []

    def watchers(path, experiment):
        made.append(Noting(path))
        return made[-1:] if experiment.config.seed else []

    experiments = compare.create(tmp_path / "s", sweep.cells(SMALL, {"seed": [0, 1]}), sweep.LIST)
    by_path = {tmp_path / "s" / name: experiment for name, experiment in experiments.items()}
    sweep.side_by_side(by_path, Rounds(), watchers=watchers)
    noted = {each.path.name: (each.open, each.rounds) for each in made}
    assert noted == {"seed0": (None, []), "seed1": (False, list(range(1, 13)))}


def test_one_that_diverges_or_cannot_run_does_not_stop_the_rest(tmp_path):
    experiments = compare.create(
        tmp_path / "s", sweep.cells(SMALL, {"lr": [1e38, 0.001, 0.002]}), sweep.LIST
    )
    checkpoint = tmp_path / "s" / "lr0.002" / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "checkpoint.json").write_text("damaged")
    wild, tame, damaged = side_by_side(tmp_path / "s", experiments).values()
    assert (wild.status, tame.status) == ("diverged", "finished")
    assert isinstance(damaged, fedmom.FedMomError)
    assert "is damaged" in str(damaged)


def test_an_error_of_the_program_is_raised_once_the_others_have_ended(tmp_path):
    experiments = compare.create(tmp_path / "s", sweep.cells(SMALL, {"seed": [0, 1]}), sweep.LIST)

    def broken(path, _rounds):
        if path.name == "seed0":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        side_by_side(tmp_path / "s", experiments, broken)
    assert results.read(tmp_path / "s" / "seed1").finished
    assert not results.read(tmp_path / "s" / "seed0").finished


def test_a_sweep_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    values = {**SMALL, "rounds": 300, "eval-every": 100}
    cells = sweep.cells(values, {"lr": [0.001, 0.002, 0.003]})
    side_by_side(tmp_path / "w", compare.create(tmp_path / "w", cells, sweep.LIST))
    experiments = compare.create(tmp_path / "s", cells, sweep.LIST)

    class PressesCtrlC(Rounds):
        def __call__(self, path, rounds):
            super().__call__(path, rounds)
            if path.name == "lr0.002" and self.count[path.name] == 150:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        side_by_side(tmp_path / "s", experiments, PressesCtrlC())
    assert 148 <= pointer(tmp_path / "s" / "lr0.002")["round"] <= 150
    rounds = Rounds()
    found = side_by_side(tmp_path / "s", compare.reopen(tmp_path / "s", sweep.LIST), rounds)
    assert rounds.count == dict.fromkeys(experiments, 300)  # of a resumed run, those before count
    for path, result in found.items():
        assert result.finished
        assert checkpoint_bytes(path) == checkpoint_bytes(tmp_path / "w" / path.name)
        assert logs(path) == logs(tmp_path / "w" / path.name)


def test_seeds_are_taken_together_by_name(tmp_path):
    def of(name, seed):
        return name, Result(tmp_path / name, RunConfig(seed=seed), [])

    found = sweep.groups(
        dict([of("fedavg_seed0", 0), of("fedmom_seed0", 0), of("fedavg_seed1", 1), of("x", 3)])
    )
    assert [(group.label, len(group.runs)) for group in found] == [
        ("fedavg", 2),
        ("fedmom", 1),
        ("x", 1),
    ]
    assert sweep.groups(dict([of("seed0", 0), of("seed1", 1)]))[0].label == "run"
