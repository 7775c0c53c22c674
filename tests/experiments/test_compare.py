"""Comparisons: one task for all, loaded once, and nothing read that has just been written."""

import json

import pytest

import fedmom
from fedmom import data as datasets
from fedmom.experiments import compare, results, settings
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from tests.experiments.small import SMALL, StopAt, checkpoint_bytes, logs, run

NAMES = ("fedsgd", "fedavg", "fedmom")


def configs(**values):
    return {name: settings.parse({**SMALL, "algorithm": name, **values}) for name in NAMES}


def plainly(folder, experiment, _name):
    return execute(folder, experiment)


@pytest.fixture
def counted(monkeypatch):
    """What is loaded, prepared and read from logs, as it happens."""
    seen = {"load": [], "prepare": [], "rows": []}
    load, prepare, rows = datasets.load, compare.prepare, RunFolder.rows

    def noted_load(spec):
        seen["load"].append(spec)
        return load(spec)

    def noted_prepare(config, *rest):
        seen["prepare"].append(config.algorithm)
        return prepare(config, *rest)

    def noted_rows(self, name):
        seen["rows"].append((self.path.name, name))
        return rows(self, name)

    monkeypatch.setattr(datasets, "load", noted_load)
    monkeypatch.setattr(compare, "prepare", noted_prepare)
    monkeypatch.setattr(RunFolder, "rows", noted_rows)
    return seen


def test_a_comparison_loads_its_data_once_and_reads_no_log(tmp_path, counted):
    experiments = compare.create(tmp_path / "c", configs(), compare.LIST)
    found = compare.compare(tmp_path / "c", experiments, plainly)
    assert counted == {"load": [SMALL["data"]], "prepare": list(NAMES), "rows": []}
    assert list(found) == list(NAMES)
    for name, result in found.items():
        assert result == results.read(tmp_path / "c" / name)
    one, *others = (experiment.data for experiment in experiments.values())
    assert all(other is one for other in others)


def test_each_of_several_datasets_is_loaded_once(tmp_path, counted):
    given = {
        f"{name}-{clients}": settings.parse(
            {**SMALL, "algorithm": name, "data": f"synthetic:clients={clients}"}
        )
        for name in NAMES
        for clients in (4, 5)
    }
    compare.create(tmp_path / "c", given, compare.LIST)
    assert counted["load"] == ["synthetic:clients=4", "synthetic:clients=5"]


def test_a_comparison_that_was_stopped_goes_on_to_the_same_bits(tmp_path, counted):
    whole = compare.create(tmp_path / "w", configs(), compare.LIST)
    compare.compare(tmp_path / "w", whole, plainly)

    def stopped(folder, experiment, name):
        return execute(folder, experiment, [StopAt(round_=7)] if name == "fedavg" else [])

    experiments = compare.create(tmp_path / "c", configs(), compare.LIST)
    with pytest.raises(KeyboardInterrupt):
        compare.compare(tmp_path / "c", experiments, stopped)
    counted["load"].clear()
    again = compare.reopen(tmp_path / "c", compare.LIST)
    assert {n: e.config for n, e in again.items()} == {n: e.config for n, e in experiments.items()}
    found = compare.compare(tmp_path / "c", again, plainly)
    assert counted["load"] == [SMALL["data"]]
    for name in NAMES:
        assert checkpoint_bytes(tmp_path / "c" / name) == checkpoint_bytes(tmp_path / "w" / name)
        assert logs(tmp_path / "c" / name) == logs(tmp_path / "w" / name)
        assert found[name].finished


def test_a_run_of_a_comparison_is_the_run_alone(tmp_path):
    experiments = compare.create(tmp_path / "c", configs(), compare.LIST)
    compare.compare(tmp_path / "c", experiments, plainly)
    run(tmp_path / "alone", algorithm="fedavg")
    assert checkpoint_bytes(tmp_path / "alone") == checkpoint_bytes(tmp_path / "c" / "fedavg")


def test_one_that_diverges_does_not_stop_the_rest(tmp_path):
    given = {"wild": settings.parse({**SMALL, "lr": 1e38}), "tame": settings.parse(SMALL)}
    experiments = compare.create(tmp_path / "c", given, compare.LIST)
    found = compare.compare(tmp_path / "c", experiments, plainly)
    assert [r.status for r in found.values()] == ["diverged", "finished"]


def test_a_mistake_in_one_of_them_leaves_no_folder(tmp_path):
    given = {**configs(), "wrong": settings.parse({**SMALL, "model": "lenet5"})}
    with pytest.raises(fedmom.FedMomError, match="lenet5"):
        compare.create(tmp_path / "c", given, compare.LIST)
    assert not (tmp_path / "c").exists()


def test_a_folder_that_holds_runs_is_not_used_again(tmp_path):
    compare.create(tmp_path / "c", configs(), compare.LIST)
    assert json.loads((tmp_path / "c" / compare.LIST).read_bytes()) == list(NAMES)
    with pytest.raises(fedmom.FedMomError, match=r"already holds runs.*fedmom resume"):
        compare.create(tmp_path / "c", configs(), compare.LIST)


def test_the_runs_of_a_comparison():
    values = {**SMALL, "momentum": 0.5, "local-steps": 3, "seed": "7"}
    one = compare.configs(values, ["fedsgd", "fedadam:tau=0.1"])
    assert list(one) == ["fedsgd", "fedadam-tau-0.1"]
    assert (one["fedsgd"].local_steps, one["fedsgd"].momentum) == (None, None)
    assert {config.seed for config in one.values()} == {7}
    three = compare.configs(values, ["fedavg", "fedmom"], seeds=3)
    assert [(name, config.seed) for name, config in three.items()] == [
        (f"{algorithm}_seed{seed}", seed)
        for algorithm in ("fedavg", "fedmom")
        for seed in (7, 8, 9)
    ]
    assert three["fedmom_seed9"] == one["fedsgd"].model_copy(
        update={"algorithm": "fedmom", "momentum": 0.5, "local_steps": 3, "seed": 9}
    )
    with pytest.raises(fedmom.FedMomError, match="--seeds -1 must be a whole number of 1 or more"):
        compare.configs(values, ["fedavg"], seeds=-1)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"3",
        b"[3]",
        b"[]",
        b'{"fedavg": 1}',
        b'["a", "a"]',
        b'[".."]',
        b'["a/b"]',
        b"\xff",
    ],
    ids=lambda damage: str(damage)[:20],
)
def test_a_damaged_list_is_a_sentence(tmp_path, damage):
    compare.create(tmp_path / "c", configs(), compare.LIST)
    (tmp_path / "c" / compare.LIST).write_bytes(damage)
    with pytest.raises(fedmom.FedMomError, match="must hold a list of the names"):
        compare.reopen(tmp_path / "c", compare.LIST)
