"""Does a run's γ keep the condition of the corrected theorem?"""

import dataclasses

import pytest
from click.testing import CliRunner
from rich.progress import Progress

import fedmom
from fedmom import theory
from fedmom.cli.main import cli
from fedmom.experiments import build, settings
from fedmom.theory import lr_advice
from fedmom.theory.estimate import estimate_task
from fedmom.theory.measurement_budget import EstimateBudget


def prepared(**values):
    return build.prepare(settings.parse({"data": "synthetic:clients=6", **values}))


def said(experiment):
    return lr_advice.checked_lr(experiment, Progress(disable=True))


def test_the_limit_is_that_of_the_estimated_constants():
    experiment = prepared(lr=0.001, rounds=4)
    found = estimate_task(experiment, EstimateBudget(), 4, Progress(disable=True))
    setting = lr_advice.setting_of(experiment)
    largest = theory.CORRECTED_FEDMOM.max_lr(found.constants(), setting)
    note = said(experiment)
    numbers = f"L = {found.smoothness.value:.3g} and B² = {found.similarity.value:.3g}"
    for part in (f"lr 0.001 is above {largest:.2g}", numbers, "η = 3", "H = 10", "docs/theory.md"):
        assert part in note
    assert "\n" not in note
    assert found.similarity.value > 1
    below = said(prepared(lr=1e-6, rounds=4))
    assert below.startswith("lr 1e-06 may be covered: it is at most ")
    assert below.endswith("so this is not a guarantee.")


def test_the_largest_lr_of_a_schedule_is_looked_at():
    rising = prepared(algorithm="fedavg", lr="linear:start=1e-6,end=0.01,rounds=3", rounds=4)
    assert "lr 0.01 is above" in said(rising)
    assert "β" not in said(rising)
    falling = prepared(lr="cosine:start=0.001,rounds=4", rounds=4)
    assert "lr 0.001 is above" in said(falling)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"solver": "adam"}, "it needs solver sgd, not adam"),
        ({"solver": "sgd:momentum=0.9"}, "it needs solver sgd, not sgd:momentum=0.9"),
        ({"weighting": "cohort"}, "it needs weighting population, not cohort"),
        ({"algorithm": "fedadam"}, "it is about fedsgd, fedavg and fedmom, not fedadam"),
        ({"prox": 1}, "it needs prox 0, not 1"),
        ({"aggregate": "clip:norm=1+mean"}, "it needs aggregate mean, not clip:norm=1+mean"),
        ({"pace": "buffered:in_flight=4"}, "it needs pace synchronous, not buffered:in_flight=4"),
        ({"sampler": "poisson"}, "it needs sampler uniform, not poisson"),
        ({"bad-replies": "skip"}, "it needs bad-replies stop, not skip"),
        ({"attack": "ipm:share=0.2"}, "it is about honest clients, not attack ipm:share=0.2"),
        ({"average": 0.9}, "it needs no average, not 0.9"),
        ({"world": "dropout"}, "it needs no world, not dropout"),
        ({"server-lr": "cosine:start=3,rounds=9,end=1"}, "it needs a constant server-lr"),
        ({"batches": "shuffled"}, "not shuffled epochs"),
        ({"local-epochs": 1}, "not shuffled epochs"),
        ({"local-epochs": 1, "batches": "random"}, "the same local steps for all clients, not"),
        ({"local-steps": "linear:start=9,end=2,rounds=5"}, "local steps in every round"),
        ({"lr": "linear:start=1e-6,end=1e-5,rounds=5"}, "an lr that never rises, not linear"),
    ],
    ids=str,
)
def test_what_the_theorem_excludes_is_told_with_the_reason(values, reason):
    """Also of a run whose γ is as small as one likes."""
    note = said(prepared(**{"lr": 1e-9, "rounds": 9} | values))
    assert note.startswith("The corrected theorem does not apply to this run: ")
    assert reason in note


def test_a_model_with_state_is_not_covered():
    experiment = prepared(lr=1e-9)
    model = experiment.model._replace(state="average", train=lambda v, x, _key: (x, v, None))
    workload = dataclasses.replace(experiment.workload, model=model)
    assert "batch norm" in said(dataclasses.replace(experiment, workload=workload))


def test_setting_of_a_run_is_what_it_does():
    experiment = prepared(**{"local-epochs": 2, "batch-size": 7, "momentum": 0.3})
    setting = lr_advice.setting_of(experiment)
    mean = round(experiment.data.train.size.mean())
    sizes = experiment.data.train.size
    assert setting.local_steps == 2 * -(-mean // 7)
    assert (setting.clients, setting.per_round, setting.server_lr) == (6, 2, 3.0)
    assert setting.momentum == 0.3
    assert setting.largest_weight == pytest.approx(sizes.max() / sizes.sum())


def test_the_command_says_it_and_the_page_shows_it(tmp_path):
    run = fedmom.run("synthetic:clients=6", rounds=2, lr=0.001, out=tmp_path / "run")
    page = run.report(tmp_path / "page.html")
    assert "corrected theorem" not in page.read_text()
    done = CliRunner().invoke(cli, ["theory", "check", str(run.path)])
    assert "lr 0.001 is above " in " ".join(done.output.split())
    assert "fedmom: lr 0.001 is above" in run.report(page).read_text()


def test_a_run_of_objects_is_refused_by_the_command(tmp_path):
    method = fedmom.Algorithm(fedmom.servers.fedmom())
    run = fedmom.run("synthetic:clients=6", algorithm=method, rounds=1, out=tmp_path / "run")
    config = (run.path / "config.toml").read_text()
    # As another process sees it, which does not know the object.
    other = config.replace(run.settings["algorithm"], "algorithm@12345678")
    (run.path / "config.toml").write_text(other)
    done = CliRunner().invoke(cli, ["theory", "check", str(run.path)])
    assert "with objects for its algorithm (algorithm@12345678)" in str(done.exception)


def test_a_page_does_not_show_what_earlier_versions_certified(tmp_path):
    run = fedmom.run("synthetic:clients=6", rounds=1, lr=0.001, out=tmp_path / "run")
    (run.path / "theory.json").write_text('{"sentence": "lr 1e-05 is at most 2.6e-05"}')
    assert "2.6e-05" not in run.report(tmp_path / "page.html").read_text()
