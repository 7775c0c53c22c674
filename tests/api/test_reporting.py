"""A method whose parts keep state on the server and report numbers, from a run to its page."""

import jax
import numpy as np
import pytest

import fedmom
from tests.runtimes.test_contract import reporting

COMMON = {
    "data": "synthetic:clients=6",
    "clients_per_round": 2,
    "rounds": 6,
    "lr": 0.01,
    "local_steps": 2,
    "progress": False,
}
NAMES = {
    *("client/size", "client/size/min", "client/size/max", "halving/sent", "halving/factor"),
    *("halving/replies", "server/steps"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return fedmom.run(algorithm=reporting(), out=folder, tensorboard=True, **COMMON)


def test_its_numbers_are_in_the_log_the_frame_and_tensorboard(whole):
    assert set(whole.result.rounds[0]["metrics"]) == NAMES
    assert whole.rounds["halving/factor"].tolist() == [0.5**t for t in range(6)]
    assert whole.rounds["server/steps"].tolist() == [1, 2, 3, 4, 5, 6]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole.path / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert all(any(tag.endswith(name) for tag in tags) for name in NAMES)


def test_its_numbers_are_drawn_on_the_page(whole, tmp_path):
    page = fedmom.report(whole, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "halving/factor" in page
    assert "client/size" in page


def test_states_of_its_parts_survive_a_stop(whole, tmp_path):
    """Stopped after every second round, it ends with the bits of the run that was not."""
    seen = []

    def stop(event):
        if event.record is not None:
            seen.append(event.record.metrics["halving/factor"])
            return "enough" if event.round % 2 == 0 else None
        return None

    fedmom.run(algorithm=reporting(), out=tmp_path / "run", callbacks=[stop], **COMMON)
    for _ in range(2):
        run = fedmom.resume(
            tmp_path / "run", algorithm=reporting(), callbacks=[stop], progress=False
        )
    assert run.status == "finished"
    assert seen == [0.5**t for t in range(6)]
    for one, two in zip(jax.tree.leaves(run.params), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_array_equal(one, two)
    assert [r["metrics"] for r in run.result.rounds] == [r["metrics"] for r in whole.result.rounds]


def test_the_names_that_runs_were_given_are_everywhere(tmp_path):
    methods = {
        f"momentum {beta}": fedmom.Algorithm(fedmom.servers.fedmom(0.5, beta))
        for beta in (0.5, 0.9)
    }
    how = {**COMMON, "rounds": 1, "eval_every": 1, "out": tmp_path / "runs"}
    runs = fedmom.compare(methods, seeds=3, **how)
    assert {*runs.findings["run"], *runs.findings["other"]} == {*methods}
    texts = [
        runs.report().read_text(),
        runs._repr_html_(),
        repr(runs),
        repr(runs["momentum 0.5_seed1"]),
        fedmom.report(list(runs.values()), tmp_path / "page.html").read_text(),
        fedmom.report(runs["momentum 0.5_seed1"], tmp_path / "one.html").read_text(),
    ]
    for text in texts:
        assert "momentum 0.5" in text
    assert "momentum 0.9 against" in texts[0] or "momentum 0.9 is ahead" in texts[0]
    # The page's settings have the object itself.
    before_settings = texts[0].partition("Settings that differ")[0]
    assert "algorithm@" not in before_settings.partition("<svg")[0]
    legend = [text.get_text() for found in runs.plot().legends for text in found.get_texts()]
    assert {*methods} <= {*legend}
    assert not any("@" in label for label in legend)


def test_a_run_with_its_algorithms_own_name_is_called_by_the_algorithm(tmp_path):
    runs = fedmom.compare(["fedavg", "fedadam:tau=0.01"], **COMMON, out=tmp_path / "runs")
    labels = [run.result.label for run in runs.values()]
    assert labels == ["fedavg", "fedadam:tau=0.01"]


def test_a_given_name_that_ends_like_that_of_a_seed_is_kept(tmp_path):
    names = {"x_seed0": "fedavg", "x": "fedmom"}
    runs = fedmom.compare(names, out=tmp_path / "runs", **COMMON | {"rounds": 1})
    assert [run.result.label for run in runs.values()] == ["x_seed0", "x"]
    seeds = fedmom.compare(names, seeds=2, out=tmp_path / "seeds", **COMMON | {"rounds": 1})
    assert [run.result.label for run in seeds.values()] == ["x_seed0", "x_seed0", "x", "x"]


def test_an_algorithm_that_is_given_twice_is_refused(tmp_path):
    with pytest.raises(fedmom.FedMomError, match="fedavg and fedavg are two runs of the name fed"):
        fedmom.compare(["fedavg", "fedmom", "fedavg"], out=tmp_path / "runs", **COMMON)
    assert not (tmp_path / "runs").exists()
