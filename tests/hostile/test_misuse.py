"""Misuse from Python is a sentence: wrong arguments, and wrong values from users' functions."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedmom
from fedmom import theory
from fedmom.core import identity
from tests.hostile import misuse, returns

NAMES = list(misuse.calls(Path("nowhere")))
# What users are given, and do not make or call; the protocols that say what a part must have; and
# the runtime that needs a cluster (tests/runtimes/test_ray.py).
NOT_CALLED = {
    *("Block", "Event", "Failure", "Metrics", "Record", "Round", "Scores", "Snapshot", "State"),
    *("BadReplyError", "DivergedError", "FedMomError", "LOCAL_TRAINING", "LocalProblem"),
    *("Pace", "Runtime", "Sampler", "RayRuntime", "Variables", "Whole"),
    *("Draws", "Moment", "Task"),
    *("losses", "metrics", "servers", "worlds"),  # modules
    *("COROLLARY_2", "CORRECTED_FEDAVG", "CORRECTED_FEDMOM", "THEOREM_1", "THEOREM_2", "Theorem"),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Iterator[dict]:
    folder = tmp_path_factory.mktemp("misuse")
    misuse.prepare(folder)
    with contextlib.chdir(folder):
        yield misuse.calls(folder)


@pytest.mark.filterwarnings("ignore")  # what NumPy and pandas think of some of the values
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_argument_is_a_sentence_that_names_it(table, name, monkeypatch):
    for names in ("_names", "_holders"):  # what ``named`` is tried on is shared by all tests
        monkeypatch.setattr(identity, names, {})
    call = table[name]()
    with contextlib.redirect_stdout(io.StringIO()):
        call.function(**{k: v for k, v in call.arguments.items() if v is not None})
        found = {
            (parameter, label): outcome
            for parameter in misuse.parameters(call)
            for label, value in misuse.VALUES.items()
            if (outcome := misuse.misuse(table[name](), parameter, value()))
        }
    assert found == {}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(returns.slots(returns.Trial(None, None))))
def test_a_wrong_value_from_a_users_function_is_a_sentence(tmp_path, name):
    slot = returns.slots(returns.Trial(misuse.data(), tmp_path))[name]
    for value in misuse.VALUES.values():
        with contextlib.suppress(fedmom.FedMomError), misuse.limited():
            slot(value())


def test_everything_public_is_tried():
    public = {
        *(name for name in fedmom.__all__ if not name.isupper()),
        *theory.__all__,
    } - NOT_CALLED
    tried = {name.removeprefix("theory.").partition(".")[0] for name in NAMES}
    assert public - tried == set()
    built_in = {f"servers.{n}" for n in fedmom.ALGORITHMS if hasattr(fedmom.servers, n)} | {
        f"metrics.{n}" for n in fedmom.METRICS
    }
    built_in |= {f"worlds.{n}" for n in fedmom.WORLDS}
    assert built_in <= set(NAMES)
