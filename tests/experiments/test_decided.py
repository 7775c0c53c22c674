"""What algorithms and rules decide: recorded as it is, and not to be given otherwise."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tomli_w

import fedmom
from fedmom.algorithms import RULES
from fedmom.core.errors import FedMomError
from fedmom.experiments import settings
from fedmom.experiments.decided import weighting_of
from fedmom.experiments.object_names import missing

COMMON = {"data": "synthetic:clients=6", "rounds": 2, "progress": False}  # K/M = 3


def middle(rows, _weights, state):
    return jax.tree.map(lambda leaf: jnp.median(leaf, 0), rows), state, {}


def by_samples(samples):
    return samples.astype(float)


def at_most_50(samples):
    return np.minimum(samples, 50.0)


MEDIAN = fedmom.Rule(lambda samples: np.ones(len(samples)), each=middle, name="mine")
HALF = fedmom.Rule(np.sqrt, scale=lambda total, _population: 0.5 / total)


@pytest.mark.parametrize(
    ("rule", "weighting", "server_lr"),
    [
        (MEDIAN, "uniform", 1.0),
        (fedmom.median(), "uniform", 1.0),
        (fedmom.mean("cohort"), "cohort", 1.0),
        (fedmom.mean("uniform"), "uniform", 1.0),
        (fedmom.mean("population"), "population", 3.0),
        (fedmom.Rule(np.sqrt), "own", 1.0),
        (fedmom.Rule(at_most_50), "own", 1.0),
        (fedmom.Rule(by_samples, lambda _total, population: 1 / population), "population", 3.0),
    ],
)
def test_the_server_learning_rate_fits_the_rule(tmp_path, rule, weighting, server_lr):
    run = fedmom.run(algorithm="fedavg", aggregate=rule, out=tmp_path / "run", **COMMON)
    assert (run.settings["weighting"], run.settings["server-lr"]) == (weighting, server_lr)
    assert weighting_of(rule) == weighting


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (fedmom.Rule(lambda _samples: None), "weigh of the rule rule returns None for two clients"),
        (fedmom.Rule(by_samples, lambda _total, _n: None), "scale of the rule rule returns None"),
    ],
)
def test_a_rule_without_numbers_is_refused(tmp_path, rule, says):
    with pytest.raises(FedMomError, match=says):
        fedmom.run(algorithm="fedavg", aggregate=rule, out=tmp_path / "run", **COMMON)
    assert not (tmp_path / "run").exists()


def test_a_registered_rule_gets_the_rate_that_the_same_object_gets(tmp_path, monkeypatch):
    monkeypatch.setitem(RULES._rows, "mine", lambda _weighting: MEDIAN)
    named = fedmom.run(algorithm="fedavg", aggregate="mine", out=tmp_path / "a", **COMMON)
    given = fedmom.run(algorithm="fedavg", aggregate=MEDIAN, out=tmp_path / "b", **COMMON)
    assert named.settings["server-lr"] == given.settings["server-lr"] == 1.0
    assert named.result.evals == given.result.evals


def test_a_rule_whose_weights_add_up_to_something_else_asks_for_a_rate(tmp_path):
    how = {**COMMON, "algorithm": "fedavg", "aggregate": HALF, "out": tmp_path / "run"}
    with pytest.raises(FedMomError, match="so no server-lr follows from them"):
        fedmom.run(**how)
    assert fedmom.run(server_lr=2.0, **how).settings["server-lr"] == 2.0


FALLING = optax.linear_schedule(0.002, 0.001, 9)
ALGORITHM = fedmom.Algorithm(
    fedmom.servers.fedmom(0.1, 0.8),
    fedmom.LocalWork(lr=FALLING, epochs=2, batch_size=5, solver=optax.adam),
    rule=fedmom.trimmed_mean("uniform", share=0.25),
    stages=(fedmom.clip(norm=7.5),),
)
RECORD = {
    "server-lr": "fedmom(learning_rate=0.1, momentum=0.8)@algorithm",
    "aggregate": "clip(norm=7.5)@algorithm+trimmed_mean(options=(0.25,))@algorithm",
    "weighting": "uniform",
    "local-epochs": 2,
    "batch-size": 5,
    "solver": "adam@algorithm",
}


def test_the_record_has_the_settings_of_an_algorithm_object(tmp_path):
    run = fedmom.run(
        algorithm=ALGORITHM,
        out=tmp_path / "run",
        callbacks=[lambda event: event.round == 1],
        **COMMON,
    )
    found = settings.read(run.path / "config.toml")
    assert {name: found[name] for name in RECORD} == RECORD
    assert found["lr"].startswith("polynomial_schedule(")
    assert "init_value=0.002" in found["lr"]
    assert "local-steps" not in found
    page = run.report().read_text()
    assert all(str(value) in page for value in RECORD.values())
    shown = "server-lr fedmom(learning_rate=0.1, momentum=0.8), weighting uniform, aggregate clip("
    assert f" ({shown}norm=7.5)+trimmed_mean(" in repr(run)
    assert "solver adam, lr polynomial_schedule(" in repr(run)
    assert f"<p>{run.result.label} (stopped): {shown}norm=7.5)+trimmed_mean(" in run._repr_html_()
    # It resumes with an equal object, and settings that say the same are not in its way.
    again = fedmom.load(run.path, algorithm=ALGORITHM).resume(progress=False)
    assert (again.status, again.settings) == ("finished", run.settings)
    # In another process, the algorithm is all that is asked for.
    name = "algorithm@12345678"
    assert missing({**run.experiment.config.model_dump(), "algorithm": name}, ()) == {
        "algorithm": name
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"algorithm": ALGORITHM, "weighting": "population"}, "has uniform weights; leave weight"),
        ({"algorithm": ALGORITHM, "weighting": "cohort"}, "has uniform weights; leave weighting"),
        ({"algorithm": ALGORITHM, "aggregate": "mean"}, "has its own rule; leave the rule of agg"),
        ({"algorithm": ALGORITHM, "aggregate": "median"}, "has its own rule; leave the rule of"),
        ({"algorithm": ALGORITHM, "server_lr": 2.0}, "has its own learning rate; leave server-lr"),
        ({"algorithm": ALGORITHM, "solver": "momentum"}, "brings its own local work: leave solv"),
        ({"algorithm": ALGORITHM, "lr": 0.3}, "brings its own local work: leave lr 0.3 out"),
        ({"aggregate": MEDIAN, "weighting": "cohort"}, "has uniform weights; leave weighting coh"),
        ({"weighting": "own"}, "has population weights; leave weighting own out"),
    ],
)
def test_what_an_object_decides_is_not_to_be_given_otherwise(tmp_path, given, says):
    with pytest.raises(FedMomError, match=says):
        fedmom.run(**given, out=tmp_path / "run", **COMMON)
    assert not (tmp_path / "run").exists()


def test_a_comparison_leaves_out_what_an_object_has_of_its_own(tmp_path):
    runs = fedmom.compare(
        {"object": ALGORITHM, "named": "fedavg"},
        lr=0.003,
        server_lr=1.5,
        local_steps=4,
        out=tmp_path / "runs",
        **COMMON,
    )
    ours, named = runs["object"].settings, runs["named"].settings
    assert {name: ours[name] for name in RECORD} == RECORD
    assert "init_value=0.002" in ours["lr"]
    assert (named["lr"], named["server-lr"], named["local-steps"]) == (0.003, 1.5, 4)


def test_a_rule_with_weights_of_its_own_takes_no_weighting(tmp_path):
    with pytest.raises(FedMomError, match="has its own weights; leave weighting cohort out"):
        fedmom.run(aggregate=HALF, weighting="cohort", out=tmp_path / "run", **COMMON)


def test_a_stage_in_settings_is_added_to_the_rule_of_an_algorithm(tmp_path):
    run = fedmom.run(algorithm=ALGORITHM, aggregate="clip:norm=1", out=tmp_path / "run", **COMMON)
    assert run.settings["aggregate"] == f"{RECORD['aggregate']}+clip:norm=1"
    method = run.experiment.workload.method
    assert [stage.name for stage in method.stages] == ["clip", "clip"]
    assert method.rule is ALGORITHM.rule
    again = fedmom.load(run.path, algorithm=ALGORITHM).resume(progress=False)
    assert again.settings == run.settings


def test_a_folder_of_an_earlier_version_resumes_although_its_record_says_the_defaults(tmp_path):
    run = fedmom.run(
        algorithm=ALGORITHM,
        out=tmp_path / "run",
        callbacks=[lambda event: event.round == 1],
        **COMMON,
    )
    config = settings.read(run.path / "config.toml")
    started = json.loads((run.path / "started.json").read_text())
    del started["code"]
    earlier = {"server_lr": "auto", "aggregate": "mean", "weighting": "population", "lr": "auto"}
    started["settings"] |= {**earlier, "solver": "sgd"}
    config |= {name.replace("_", "-"): value for name, value in earlier.items()}
    (run.path / "config.toml").write_text(tomli_w.dumps({**config, "solver": "sgd"}))
    (run.path / "started.json").write_text(json.dumps(started))
    again = fedmom.load(run.path, algorithm=ALGORITHM).resume(progress=False)
    whole = fedmom.run(algorithm=ALGORITHM, out=tmp_path / "whole", **COMMON)
    assert again.result.evals == whole.result.evals
