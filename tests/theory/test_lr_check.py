"""Does a run's γ keep the condition of the corrected theorem?"""

import numpy as np
import pytest
from click.testing import CliRunner

import fedmom
from fedmom import theory
from fedmom.cli.main import cli
from fedmom.experiments import build, settings
from fedmom.theory import lr_advice
from fedmom.theory.constants import Constants


def prepared(**values):
    return build.prepare(settings.parse({"data": "synthetic:clients=6", **values}))


def test_a_step_that_no_theorem_covers_is_told_in_one_line():
    experiment = prepared(lr=0.5)
    note = lr_advice.sentence(experiment)
    setting = lr_advice.setting_of(experiment)
    smoothness = lr_advice.quick_smoothness(experiment)
    constants = Constants(smoothness=smoothness, variance=0, gap=0)
    largest = theory.CORRECTED_FEDMOM.max_lr(constants, setting)
    for part in (f"lr 0.5 is above {largest:.2g}", "η = 3", "H = 10", "docs/theory.md"):
        assert part in note
    assert "\n" not in note
    assert "is at most" in lr_advice.sentence(prepared(lr=largest * 0.99))
    later = prepared(lr=f"linear:start={largest / 2},end=1,rounds=9")
    assert "lr 1 is above" in lr_advice.sentence(later)


@pytest.mark.parametrize(
    "values", [{"solver": "adam"}, {"weighting": "cohort"}, {"algorithm": "fedadam"}, {"prox": 1}]
)
def test_what_the_theorem_does_not_cover_is_told(values):
    assert "does not cover this run" in lr_advice.sentence(prepared(lr=100.0, **values))


def test_the_quick_smoothness_is_below_the_true_one():
    """The Hessian of a sample of logistic regression is at most |(x, 1)|²/2."""
    experiment = prepared(seed=4)
    smallest = int(np.argmin(experiment.data.train.size))
    start, size = (int(v[smallest]) for v in experiment.data.train)
    x = experiment.data.arrays["x"][start : start + size]
    found = lr_advice.quick_smoothness(experiment)
    assert 0 < found <= (np.sum(x**2, axis=1) + 1).max() / 2


def test_setting_of_a_run_is_what_it_does():
    experiment = prepared(**{"local-epochs": 2, "batch-size": 7, "momentum": 0.3})
    setting = lr_advice.setting_of(experiment)
    mean = round(experiment.data.train.size.mean())
    sizes = experiment.data.train.size
    assert setting.local_steps == 2 * -(-mean // 7)
    assert (setting.clients, setting.per_round, setting.server_lr) == (6, 2, 3.0)
    assert setting.momentum == 0.3
    assert setting.largest_weight == pytest.approx(sizes.max() / sizes.sum())


@pytest.mark.parametrize(
    "values",
    [
        {"aggregate": "clip:norm=1+mean"},
        {"pace": "buffered:in_flight=4"},
        {"sampler": "poisson"},
        {"solver": "sgd:momentum=0.9"},
    ],
    ids=str,
)
def test_nor_does_it_cover_what_changes_the_method(values):
    assert "does not cover this run" in lr_advice.sentence(prepared(lr=100.0, **values))


def test_the_check_does_not_depend_on_workers_and_repeats():
    one = lr_advice.quick_smoothness(prepared(seed=4, runtime="local:workers=1"))
    assert one == lr_advice.quick_smoothness(prepared(seed=4, runtime="local:workers=2"))
    assert one != lr_advice.quick_smoothness(prepared(seed=5))


def test_a_model_of_two_client_sizes_is_checked_by_full_gradients_of_the_small():
    """FedSGD's gradient is not worth the wait where even the smallest client is large."""
    assert "is above" in lr_advice.sentence(prepared(lr=100.0, algorithm="fedsgd"))
    large = {"data": "glyphs:writers=2,samples=400", "model": "logreg", "clients-per-round": 1}
    assert "does not cover" in lr_advice.sentence(prepared(lr=100.0, algorithm="fedsgd", **large))


def test_the_command_says_it_and_the_page_shows_it(tmp_path):
    with pytest.warns(UserWarning, match="the training loss ended above"):
        run = fedmom.run("synthetic:clients=6", rounds=1, lr=0.5, out=tmp_path / "run")
    page = run.report(tmp_path / "page.html")
    assert "corrected theorem" not in page.read_text()
    done = CliRunner().invoke(cli, ["theory", "check", str(run.path)])
    assert done.output.startswith("lr 0.5 is above ")
    assert "fedmom: lr 0.5 is above" in run.report(page).read_text()
