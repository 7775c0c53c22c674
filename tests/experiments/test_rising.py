"""A run whose training loss rises is told, once, with a step size to try."""

import pytest

import fedmom
from fedmom.experiments.rising import advice
from fedmom.experiments.settings import RunConfig
from fedmom.experiments.step_sizes import STEP_SIZES, default_lr

TASK = {"data": "synthetic:clients=10", "eval_every": 2, "progress": False}


def test_a_rising_loss_is_told_once_while_the_run_goes_on(tmp_path):
    with pytest.warns(
        UserWarning, match=r"after round 6 the training loss is .* Try --lr 0\.05"
    ) as w:
        run = fedmom.run(**TASK, rounds=12, lr=0.5, out=tmp_path / "run")
    assert len(w) == 1
    first, *later = (loss for _, loss in run.result.curve("train", "loss"))
    assert min(later[:3]) > first  # it was so


def test_the_default_step_size_is_told_nothing(tmp_path):
    run = fedmom.run(**TASK, rounds=12, out=tmp_path / "run")
    losses = [loss for _, loss in run.result.curve("train", "loss")]
    assert losses[-1] < losses[0]
    assert run.settings["lr"] == STEP_SIZES["vector"]["fedmom"]


def test_advice_names_what_to_give():
    assert advice(RunConfig(lr=0.1)) == "Try --lr 0.01."
    assert "starts lower" in advice(RunConfig(lr="cosine:start=1,rounds=9"))


@pytest.mark.parametrize("kind", STEP_SIZES)
def test_momentum_has_a_smaller_step_than_averaging(kind):
    assert default_lr(kind, "fedmom") < default_lr(kind, "fedavg:x=1")
    assert default_lr(kind, "@mine.fedlion") == default_lr(kind, "fedavg")
