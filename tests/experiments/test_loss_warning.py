"""A run whose training loss rises is told, once, with a step size to try."""

import pytest

import fedmom
from fedmom.experiments.defaults import STEP_SIZES, default_lr
from fedmom.experiments.observers import advice
from fedmom.experiments.settings import RunConfig

TASK = {"data": "synthetic:clients=10", "eval_every": 2, "progress": False}


def test_a_rising_loss_is_told_once_while_the_run_goes_on(tmp_path):
    with pytest.warns(UserWarning, match="training loss") as told:
        run = fedmom.run(**TASK, rounds=12, lr=0.5, out=tmp_path / "run")
    first, *later = (loss for _, loss in run.result.curve("train", "loss"))
    assert min(later[:3]) > first  # it was so
    meanwhile, *at_the_end = (str(warning.message) for warning in told)
    assert meanwhile.startswith("after round 6 the training loss is ")
    assert meanwhile.endswith("Try lr 0.05.")
    assert bool(at_the_end) == (later[-1] > first)
    assert {warning.filename for warning in told} == {__file__}  # the line that called


def test_a_comparison_tells_which_runs_ended_worse(tmp_path):
    with pytest.warns(UserWarning, match=r"ended above .* fedmom from \S+ to \S+\. Try lr 0\.05"):
        runs = fedmom.compare(["fedmom"], **TASK, rounds=4, lr=0.5, out=tmp_path / "runs")
    first, *_, last = (loss for _, loss in runs["fedmom"].result.curve("train", "loss"))
    assert last > first
    said = f"fedmom: the training loss ended above that of the first model, from {first:.4g} to "
    assert f"{said}{last:.4g}." in runs.report().read_text()


def test_the_default_step_size_is_told_nothing(tmp_path):
    run = fedmom.run(**TASK, rounds=12, out=tmp_path / "run")
    losses = [loss for _, loss in run.result.curve("train", "loss")]
    assert losses[-1] < losses[0]
    assert run.settings["lr"] == STEP_SIZES["vector"]["fedmom"]


def test_advice_names_what_to_give():
    assert advice(RunConfig(lr=0.1)) == "Try lr 0.01."
    assert "starts lower" in advice(RunConfig(lr="cosine:start=1,rounds=9"))


@pytest.mark.parametrize("kind", STEP_SIZES)
def test_momentum_has_a_smaller_step_than_averaging(kind):
    assert default_lr(kind, "fedmom") < default_lr(kind, "fedavg:x=1")
    assert default_lr(kind, "@fedmom.algorithms.server.fedavg") == default_lr(kind, "fedavg")


def test_a_tenth_of_a_huge_step_is_no_advice():
    assert advice(RunConfig(lr=1e6)) == "Try lr auto, the default for the algorithm and the data."
