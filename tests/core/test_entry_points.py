"""Rows of a user's own package, installed with entry points."""

import json
import math
import os
import subprocess
import sys

import pytest
from safetensors.numpy import load_file

import fedmom
from fedmom.core import registry
from fedmom.core.registry import Registry

METHOD = '''
"""A user's own method, model, sampler and stage."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

import fedmom


def my_method(learning_rate=1.0, momentum=0.5, *, strength: float = 2.0, quiet=True):
    """Heavy ball, a little stronger."""
    return optax.sgd(lambda t: strength * learning_rate, momentum=momentum)


def memory(learning_rate=1.0):
    """Clients that count their rounds, and send less each time."""

    def run(params, rounds, problem, key):
        w, loss = problem.train(params, key)
        update = jax.tree.map(lambda a, b: (a - b) / (1 + rounds), params, w)
        return update, rounds + 1, {"loss": loss}

    client = fedmom.Client(run, init=lambda params: jnp.zeros(()))
    return fedmom.Algorithm(optax.sgd(learning_rate), client=client)


def line(features, *, scale: float = 0.1):
    """Linear, with first weights of one size."""
    size, classes = features.shape[0], features.classes
    return fedmom.Model(
        init=lambda key: scale * jax.random.normal(key, (size, classes)),
        apply=lambda w, x, key: x @ w,
    )


def first(seed, round_, size, samples):
    """The first clients, always."""
    import numpy as np

    return np.arange(size)


def halves(*, factor: float = 0.5):
    """Send a part."""
    def encode(update, state, sent, key):
        return jax.tree.map(lambda x: factor * x, update), state, {}

    return fedmom.Stage("halves", encode)
'''
POINTS = """
[fedmom.algorithms]
my_method = my_package.method:my_method
memory = my_package.method:memory

[fedmom.models]
line = my_package.method:line

[fedmom.samplers]
first = my_package.method:first

[fedmom.stages]
halves = my_package.method:halves
"""


def install(folder, points, name="my_package"):
    """Put a package with entry points where Python finds it, as pip would."""
    package = folder / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "method.py").write_text(METHOD)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    return folder


# The command line, several times in one process: most of its time is Python's imports.
SEVERAL = """
import contextlib, io, json, sys
from fedmom.cli import start

start.leave = sys.exit  # not the whole process
answers = []
for args in json.loads(sys.argv[1]):
    sys.argv = ["fedmom", *args]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            start.main()
        except SystemExit as error:
            code = error.code
    answers.append((code, " ".join(out.getvalue().split()), " ".join(err.getvalue().split())))
print(json.dumps(answers))
"""


def commands(folder, *calls):
    """Run commands in a process that has the package: exit code, output and errors of each."""
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps([[*map(str, call)] for call in calls])],
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert not any("Traceback" in err for _, _, err in answers)
    return answers


def shown(folder, *calls):
    """Run commands that succeed; return what each prints."""
    answers = commands(folder, *calls)
    assert all(code == 0 for code, _, _ in answers), answers
    return [out for _, out, _ in answers]


def refused(folder, *calls):
    """Run commands that must fail; return what each says."""
    answers = commands(folder, *calls)
    assert all(code == 2 for code, _, _ in answers), answers
    return [err for _, _, err in answers]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package."""
    return install(tmp_path_factory.mktemp("site"), POINTS)


RUN = ("run", "--data", "synthetic:clients=5", "--lr", "0.01", "--eval-every", "2")
USED = {  # by name: the settings of a run that uses rows of the package
    "method": (
        *("--algorithm", "my_method:strength=1.5", "--momentum", "0.3"),
        *("--model", "line:scale=0.2", "--sampler", "first", "--aggregate", "halves+mean"),
    ),
    "memory": ("--algorithm", "memory"),
}


@pytest.fixture(scope="module")
def runs(site, tmp_path_factory):
    """A folder of runs: each of four rounds, and of two that are made four and resumed."""
    folder = tmp_path_factory.mktemp("runs")
    lengths = {"whole": 4, "part": 2}
    calls = [
        (*RUN, *settings, "--rounds", rounds, "--out", folder / name / length)
        for name, settings in USED.items()
        for length, rounds in lengths.items()
    ]
    shown(site, *calls)
    for name in USED:
        config = folder / name / "part" / "config.toml"
        config.write_text(config.read_text().replace("rounds = 2", "rounds = 4"))
    shown(site, *(("resume", "--accept-changes", folder / name / "part") for name in USED))
    return folder


def log(folder):
    rows = map(json.loads, (folder / "rounds.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if k not in ("seconds", "crc32")} for row in rows]


UNUSABLE = [
    ("my_method:strength=much", "my_method: strength='much' is not of type float."),
    ("my_method:quiet=perhaps", "my_method: quiet='perhaps' is not of type bool."),
    ("my_method:weight=1", "my_method has no option 'weight'. Its options: strength, quiet."),
    ("my_metod", "there is no algorithm 'my_metod'. Did you mean 'my_method'?"),
]
NOWHERE = [  # entry points, and why they cannot be loaded
    ("nowhere.method:f", "No module named 'nowhere'"),
    ("my_package.nowhere:f", "No module named 'my_package.nowhere'"),
    ("my_package.method:nothing", "has no attribute 'nothing'"),
    ("my_package.torn:f", "invalid syntax"),
    ("my_package.sad:f", "No module named 'a_library_that_is_not_here'"),
]


class TestAPackageOfAUsersOwn:
    """Rows from entry points, in processes that find the package as they start."""

    def test_its_rows_are_listed_with_their_options(self, site):
        (text,) = shown(site, ["list"])
        for line in (
            "algorithm my_method:strength=2.0, quiet=True Heavy ball, a little stronger.",
            "algorithm memory Clients that count their rounds, and send less each time.",
            "model line:scale=0.1 Linear, with first weights of one size.",
            "sampler first The first clients, always.",
            "stage halves:factor=0.5 Send a part.",
            "algorithm fedmom Nesterov momentum on the server",
        ):
            assert line in text

    @pytest.mark.parametrize("name", USED)
    def test_it_runs_and_goes_on_as_if_it_had_never_stopped(self, runs, name):
        whole, part = runs / name / "whole", runs / name / "part"
        assert log(whole) == log(part)
        last = "checkpoint/round-00000004.safetensors"
        assert (whole / last).read_bytes() == (part / last).read_bytes()

    def test_all_of_its_rows_are_used(self, runs):
        whole = runs / "method" / "whole"
        assert 'algorithm = "my_method:strength=1.5"' in (whole / "config.toml").read_text()
        assert [row["cohort"] for row in log(whole)] == [[0, 1]] * 4

    def test_its_clients_states_are_in_the_checkpoint(self, runs):
        whole = runs / "memory" / "whole"
        kept = load_file(whole / "checkpoint" / "round-00000004.safetensors")
        rounds = dict(
            zip(*(kept[f"clients/states/{n}"].tolist() for n in ("clients", "0")), strict=True)
        )
        cohorts = [k for row in log(whole) for k in row["cohort"]]
        assert rounds == {k: cohorts.count(k) for k in cohorts}

    def test_its_options_are_checked_like_all_others(self, site, tmp_path):
        calls = [(*RUN, "--algorithm", spec, "--out", tmp_path / "r") for spec, _ in UNUSABLE]
        for says, (_, expected) in zip(refused(site, *calls), UNUSABLE, strict=True):
            assert expected in says

    def test_a_name_that_there_is_already_is_a_sentence(self, tmp_path):
        clash = "[fedmom.algorithms]\nfedavg = my_package.method:my_method\n"
        (says,) = refused(install(tmp_path / "site", clash), ["list"])
        assert (
            "my_package.method:my_method is registered as the algorithm 'fedavg', which already"
            " exists. Rename the entry point." in says
        )

    def test_two_packages_with_one_name_are_a_sentence(self, tmp_path):
        one = "[fedmom.algorithms]\nmine = my_package.method:my_method\n"
        install(tmp_path / "site", one)
        install(tmp_path / "site", one.replace("my_package", "other"), name="other")
        (says,) = refused(tmp_path / "site", ["list"])
        assert "is registered as the algorithm 'mine', which already exists" in says

    def test_an_entry_point_that_leads_nowhere_is_a_sentence(self, tmp_path):
        """Where it is used; and the list shows it, and all else."""
        points = "".join(f"mine{i} = {value}\n" for i, (value, _) in enumerate(NOWHERE))
        folder = install(tmp_path / "site", f"[fedmom.algorithms]\n{points}")
        (folder / "my_package" / "torn.py").write_text("def f(:\n")
        (folder / "my_package" / "sad.py").write_text("import a_library_that_is_not_here\nf = 1\n")
        uses = [
            (*RUN, "--algorithm", f"mine{i}", "--out", tmp_path / "r") for i in range(len(NOWHERE))
        ]
        *used, (code, listed, _) = commands(folder, *uses, ["list"])
        assert code == 0
        assert "fedmom Nesterov momentum on the server" in listed
        for i, (_, why) in enumerate(NOWHERE):
            code, _, says = used[i]
            assert code == 2
            assert f"The algorithm mine{i} cannot be loaded:" in says
            assert why in says
            after = listed.partition(f"mine{i} cannot be loaded:")[2]
            assert why in after.partition(f"mine{i + 1} ")[0]


def test_a_clash_is_told_every_time(monkeypatch):
    """Not only when the table is first looked at, and half full from then on."""

    class Points:
        def select(self, group):
            from importlib.metadata import EntryPoint

            assert group == "fedmom.things"
            return [EntryPoint("mine", "a:b", group), EntryPoint("f", "a:b", group)]

    monkeypatch.setattr(registry, "_entry_points", Points)
    things = Registry("thing", {"f": "math:floor"})
    for _ in range(2):
        with pytest.raises(fedmom.FedMomError, match="a:b is registered as the thing 'f'"):
            list(things)
    assert things["f"] is math.floor  # what is there is found all the same
