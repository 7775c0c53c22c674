"""Three real devices and a server on this machine, with TLS and keys."""

import json
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedmom.experiments import settings
from fedmom.experiments.build import prepare
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from tests.deploy.field import DATA, Field

WORK = {"lr": 0.01, "local-steps": 3, "eval-every": 3, "clients-per-round": 2, "seed": 5}
DEADLINE = 40


def options(**more):
    """Settings as options of the command line."""
    return [word for key, value in {**WORK, **more}.items() for word in (f"--{key}", value)]


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def final_model(folder):
    (newest,) = (folder / "checkpoint").glob(
        f"*{json.loads((folder / 'checkpoint' / 'checkpoint.json').read_bytes())['round']:08d}.safetensors"
    )
    return load_file(newest)


def simulated(folder, rounds):
    """The same run, with the same data, in this process."""
    config = settings.parse({**WORK, "data": DATA, "rounds": rounds, "eval-samples": "all"})
    experiment = prepare(config)
    execute(RunFolder.create(folder, experiment.config), experiment)
    return folder


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    with Field(tmp_path_factory.mktemp("field")) as field:
        field.server()
        for number in (1, 2, 3):
            field.device(number)
        yield field


def test_a_deployed_run_is_the_simulated_one_and_survives_kills(field, tmp_path):
    """Momentum included: the server app dies in the middle, and a device for some rounds."""
    rounds = 6
    runtime = f"flower:devices=3,deadline={DEADLINE},least=2"  # both of a cohort must answer
    field.run("first", *options(rounds=rounds, runtime=runtime), "--eval-samples", "all")
    out = field.folder / "first"
    field.wait(lambda: (out / "rounds.jsonl").exists() and lines(out, "rounds.jsonl"), "a round")
    apps = [
        pid
        for pid in field.pids(field.path / "server")
        if "flwr-serverapp" in field.command_of(pid)
    ]
    assert apps
    for pid in apps:
        signal.pidfd_send_signal(__import__("os").pidfd_open(pid), signal.SIGKILL)
    assert field.finished() == 0, field.all_printed()
    assert "has died" in field.printed("run")
    expected = simulated(tmp_path / "simulated", rounds)
    ours, theirs = final_model(out), final_model(expected)
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-4, atol=1e-6)
    rows, others = (lines(folder, "rounds.jsonl") for folder in (out, expected))
    assert [row["round"] for row in rows] == list(range(1, rounds + 1))
    assert [(r["cohort"], r["replies"]) for r in rows] == [
        (r["cohort"], r["replies"]) for r in others
    ]
    evals, wanted = (lines(folder, "evals.jsonl") for folder in (out, expected))
    assert [(e["round"], e["split"], e["clients"]) for e in evals] == [
        (e["round"], e["split"], e["clients"]) for e in wanted
    ]
    np.testing.assert_allclose(
        [e["loss"] for e in evals], [e["loss"] for e in wanted], rtol=1e-4, atol=1e-5
    )
