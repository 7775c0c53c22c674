"""Collections of runs: made as a whole or not, run side by side, stopped and resumed, removed."""

import json
import threading
from functools import partial

import pytest

import fedmom
from fedmom import data as datasets
from fedmom.core.files import locked
from fedmom.experiments import collection, results, run_lists, settings
from fedmom.experiments.results import COMPARE_LIST
from tests.experiments.small import SMALL, Observer, checkpoint_bytes, logs, pointer, run

NAMES = ("fedsgd", "fedavg", "fedmom")


def configs(**values):
    return {name: settings.parse({**SMALL, "algorithm": name, **values}) for name in NAMES}


def cells(values=SMALL, **grid):
    return run_lists.of_sweep(values, grid)


def create(folder, configs, **how):
    """The experiments of a new collection, by folder."""
    made = collection.create(folder, configs, COMPARE_LIST, **how)
    return {folder / name: experiment for name, experiment in made.items()}


def reopened(folder):
    return {run.path: run.experiment for run in fedmom.load(folder).values()}


@pytest.fixture
def counted(monkeypatch):
    """What is loaded, and prepared, as it happens."""
    seen = {"load": [], "prepare": []}
    load, prepare = datasets.load, collection.prepare

    def noted(name, function, argument, *rest):
        seen[name].append(getattr(argument, "algorithm", argument))
        return function(argument, *rest)

    monkeypatch.setattr(datasets, "load", partial(noted, "load", load))
    monkeypatch.setattr(collection, "prepare", partial(noted, "prepare", prepare))
    return seen


# ---- the folder


def test_each_of_several_datasets_is_loaded_once(tmp_path, counted):
    given = {
        f"{name}-{clients}": settings.parse(
            {**SMALL, "algorithm": name, "data": f"synthetic:clients={clients}"}
        )
        for name in NAMES
        for clients in (4, 5)
    }
    create(tmp_path / "c", given)
    assert counted["load"] == ["synthetic:clients=4", "synthetic:clients=5"]


def test_a_mistake_in_one_of_them_leaves_no_folder(tmp_path):
    given = {**configs(), "wrong": settings.parse({**SMALL, "model": "lenet5"})}
    with pytest.raises(fedmom.FedMomError, match="lenet5"):
        create(tmp_path / "c", given)
    assert not (tmp_path / "c").exists()


def test_a_folder_that_holds_runs_is_not_used_again(tmp_path):
    create(tmp_path / "c", configs())
    assert json.loads((tmp_path / "c" / COMPARE_LIST).read_bytes()) == list(NAMES)
    with pytest.raises(fedmom.FedMomError, match=r"already holds runs.*fedmom resume"):
        create(tmp_path / "c", configs())


@pytest.mark.parametrize("written", range(7))
def test_what_was_killed_while_it_was_made_is_made_again(tmp_path, monkeypatch, written):
    """At any of the writes; the list is the last of them."""
    write, left = collection.write_atomic, [written]

    def killed(path, content):
        if not left[0]:
            raise SystemExit
        left[0] -= 1
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(collection, "write_atomic", killed)
        patch.setattr("fedmom.experiments.folder.write_atomic", killed)
        with pytest.raises(SystemExit):
            create(tmp_path / "c", configs())
    assert not (tmp_path / "c" / COMPARE_LIST).exists()
    create(tmp_path / "c", configs(rounds=3))
    assert {run.result.config.rounds for run in fedmom.load(tmp_path / "c").values()} == {3}


def test_a_run_that_has_begun_is_not_made_again(tmp_path):
    run(tmp_path / "c" / "fedavg", rounds=1)
    with pytest.raises(fedmom.FedMomError, match="c is not empty: it holds fedavg"):
        create(tmp_path / "c", configs())
    assert results.read(tmp_path / "c" / "fedavg").finished


def test_a_folder_that_an_earlier_version_was_making_is_told(tmp_path):
    (tmp_path / "creation.json").write_text("{}")
    for use in (fedmom.load, fedmom.resume, lambda path: create(path, configs())):
        with pytest.raises(fedmom.FedMomError, match=r"earlier version .*creation\.json"):
            use(tmp_path)


def test_runs_are_overwritten(tmp_path):
    run(tmp_path / "c" / "old", rounds=1)
    (tmp_path / "c" / COMPARE_LIST).write_text('["old"]')
    (tmp_path / "c" / "report-rounds.png").write_text("a figure")
    create(tmp_path / "c", configs(), overwrite=True)
    found = sorted(p.name for p in (tmp_path / "c").iterdir())
    assert found == [".lock", COMPARE_LIST, *sorted(NAMES)]
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    create(tmp_path / "c", configs(rounds=1), overwrite=True)


OF_THE_USERS = (
    *("notes.txt", "run/notes.txt", "run/code/a.py", "run/.notes.tmp"),
    *("run/checkpoint/round-best.safetensors", "run/checkpoint/checkpoint.json.old"),
)


@pytest.mark.parametrize("file", OF_THE_USERS)
def test_what_is_no_run_is_not_overwritten(tmp_path, file):
    run(tmp_path / "c" / "run", rounds=1)
    (tmp_path / "c" / COMPARE_LIST).write_text('["run"]')
    (tmp_path / "c" / file).parent.mkdir(exist_ok=True)
    (tmp_path / "c" / file).write_text("mine")
    for place in (tmp_path / "c", tmp_path / "c" / file.partition("/")[0]):
        if place.is_dir():
            with pytest.raises(fedmom.FedMomError, match=r"is not overwritten: .* not part of"):
                collection.remove(place)
    assert (tmp_path / "c" / file).read_text() == "mine"


def test_only_runs_are_overwritten(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "config.toml").write_text('title = "My site"')
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "export").mkdir()
    run(tmp_path / "run", rounds=1)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for name in ("site", "data", "link"):
        with pytest.raises(fedmom.FedMomError, match="is not overwritten"):
            collection.remove(tmp_path / name)
    with (
        locked(tmp_path / "run"),
        pytest.raises(fedmom.FedMomError, match="Another process"),
    ):
        collection.remove(tmp_path / "run")
    assert results.read(tmp_path / "run").finished
    collection.remove(tmp_path / "nothing")


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
    create(tmp_path / "c", configs())
    (tmp_path / "c" / COMPARE_LIST).write_bytes(damage)
    with pytest.raises(fedmom.FedMomError, match="must hold a list of the names"):
        fedmom.load(tmp_path / "c")


# ---- side by side


class Rounds:
    """Counts the rounds of every run, those before a resumed one among them."""

    def __init__(self):
        self.count, self._lock = {}, threading.Lock()

    def __call__(self, event):
        with self._lock:
            self.count[event.path.name] = event.round


def test_runs_are_those_alone_and_load_their_data_once(tmp_path, counted):
    experiments = create(tmp_path / "s", cells(algorithm=["fedavg", "fedmom"], lr=[0.001, 0.01]))
    assert counted["load"] == [SMALL["data"]]
    rounds, ended = Rounds(), []
    found = collection.side_by_side(
        experiments, [rounds], lambda path, _result: ended.append(path.name)
    )
    alone = run(tmp_path / "alone", algorithm="fedmom", lr=0.01)
    assert checkpoint_bytes(alone.path) == checkpoint_bytes(tmp_path / "s" / "fedmom_lr0.01")
    assert logs(alone.path) == logs(tmp_path / "s" / "fedmom_lr0.01")
    names = [path.name for path in experiments]
    assert rounds.count == dict.fromkeys(names, 12)
    assert sorted(ended) == sorted(names)
    for path, result in found.items():
        assert result == results.read(path)
        assert result.finished
    assert [path.name for path in found] == names  # in the grid's order


def test_one_that_diverges_or_cannot_run_does_not_stop_the_rest(tmp_path):
    experiments = create(tmp_path / "s", cells(lr=[1e38, 0.001, 0.002]))
    checkpoint = tmp_path / "s" / "lr0.002" / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "checkpoint.json").write_text("damaged")
    wild, tame, damaged = collection.side_by_side(experiments).values()
    assert (wild.status, tame.status) == ("diverged", "finished")
    assert isinstance(wild.error, fedmom.DivergedError)
    assert isinstance(damaged, fedmom.FedMomError)
    assert "is damaged" in str(damaged)


def test_an_error_of_the_program_is_raised_once_the_others_have_ended(tmp_path):
    experiments = create(tmp_path / "s", cells(seed=[0, 1]))

    def broken(event):
        if event.path.name == "seed0":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        collection.side_by_side(experiments, [broken])
    assert results.read(tmp_path / "s" / "seed1").finished
    assert not results.read(tmp_path / "s" / "seed0").finished


def test_an_observer_may_end_one_run(tmp_path):
    seen = Observer()
    experiments = create(tmp_path / "s", cells(seed=[0, 1]))
    enough = lambda event: "enough" if (event.path.name, event.round) == ("seed0", 3) else None  # noqa: E731
    first, other = collection.side_by_side(experiments, [enough, seen]).values()
    assert (first.done, first.why, first.error, other.finished) == (3, "enough", None, True)
    assert sorted(seen.rounds) == sorted([1, 2, 3, *range(1, 13)])


def test_runs_that_were_stopped_are_resumed_to_the_same_bits(tmp_path):
    given = cells({**SMALL, "rounds": 300, "eval-every": 100}, lr=[0.001, 0.002, 0.003])
    collection.side_by_side(create(tmp_path / "w", given))

    def press_ctrl_c(event):
        if (event.path.name, event.round) == ("lr0.002", 150):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collection.side_by_side(create(tmp_path / "s", given), [press_ctrl_c])
    assert pointer(tmp_path / "s" / "lr0.002")["round"] == 150
    rounds = Rounds()
    found = collection.side_by_side(reopened(tmp_path / "s"), [rounds])
    assert rounds.count == dict.fromkeys(given, 300)
    for path, result in found.items():
        assert result.finished
        assert checkpoint_bytes(path) == checkpoint_bytes(tmp_path / "w" / path.name)
        assert logs(path) == logs(tmp_path / "w" / path.name)


# ---- the runs of a comparison


def test_the_runs_of_a_comparison():
    values = {**SMALL, "momentum": 0.5, "local-steps": 3, "seed": "7"}
    one = run_lists.of_comparison(values, {"sgd": "fedsgd", "adam": "fedadam:tau=0.1"})
    assert list(one) == ["sgd", "adam"]
    assert (one["sgd"].local_steps, one["sgd"].momentum) == (None, None)
    assert {config.seed for config in one.values()} == {7}
    three = run_lists.of_comparison(values, {"fedavg": "fedavg", "fedmom": "fedmom"}, seeds=3)
    assert [(name, config.seed) for name, config in three.items()] == [
        (f"{algorithm}_seed{seed}", seed)
        for algorithm in ("fedavg", "fedmom")
        for seed in (7, 8, 9)
    ]
    assert three["fedmom_seed9"] == one["sgd"].model_copy(
        update={"algorithm": "fedmom", "momentum": 0.5, "local_steps": 3, "seed": 9}
    )
    with pytest.raises(fedmom.FedMomError, match="--seeds -1 must be from 1 to 10,000"):
        run_lists.of_comparison(values, {"a": "fedavg"}, seeds=-1)
    with pytest.raises(fedmom.FedMomError, match="A run cannot be called 'a/b'"):
        run_lists.of_comparison(values, {"a/b": "fedavg"})


NO_NAMES = ("a/b", "a\\b", "a\0b", "a\nb", "", ".", "..", "a.", "a ", " a", "x" * 300, "é" * 120)


@pytest.mark.parametrize("name", [*NO_NAMES, "compare.json", "Report.html", "checkpoint"])
def test_a_name_that_no_folder_can_have_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(fedmom.FedMomError, match="A run cannot be called ") as caught:
        fedmom.compare({name: "fedavg"}, data=SMALL["data"], out=tmp_path / "c", rounds=1)
    assert len(str(caught.value)) < 500
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [("a", "A"), ("stra\u00dfe", "STRASSE"), ("\u00e9", "e\u0301")])
def test_names_that_are_one_on_some_systems_are_refused(names):
    with pytest.raises(fedmom.FedMomError, match="On some systems"):
        run_lists.of_comparison(SMALL, dict.fromkeys(names, "fedavg"))


@pytest.mark.parametrize("name", ["mean, μ=0.1 (new)", "50 %", "x" * 190, "日本"])
def test_other_names_are_read_back(tmp_path, name):
    task = {"data": SMALL["data"], "rounds": 1, "lr": 0.01, "progress": False}
    fedmom.compare({name: "fedavg"}, out=tmp_path / "c", **task)
    assert list(fedmom.load(tmp_path / "c")) == [name]
