"""Settings: the file, the options, and what is refused before anything is loaded."""

import subprocess
import sys

import pytest

import fedmom
from fedmom.algorithms import schedules
from fedmom.experiments import settings
from fedmom.experiments.settings import RunConfig


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"round": 5}, "no setting 'round'. Did you mean 'rounds'"),
        ({"rounds": 0}, "rounds = 0: input should be greater than or equal to 1"),
        ({"rounds": "many"}, "rounds = 'many': input should be a valid integer"),
        ({"rounds": True}, "rounds = true is not a value"),
        ({"algorithm": "fedmomm"}, "no algorithm 'fedmomm'. Did you mean 'fedmom'.*fedsgd"),
        ({"weighting": "equal"}, "weighting = 'equal': .*'population', 'cohort' or 'uniform'"),
        ({"momentum": 1.0}, "momentum = 1.0: input should be less than 1"),
        ({"local-steps": 5, "local-epochs": 1}, "local-steps 5 and local-epochs 1.0 are both"),
        ({"local-steps": 2.5}, "local-steps = 2.5: must be a whole number"),
        ({"lr": -1}, "lr = -1: must be a number greater than 0"),
        ({"lr": "nan"}, "lr = 'nan': must be a number greater than 0"),
        ({"lr": "inf"}, "lr = 'inf': must be a number greater than 0"),
        ({"lr": "exponent:start=1"}, "no schedule 'exponent'. Did you mean 'exponential'"),
        ({"lr": "exponential:start=1"}, "exponential needs rate"),
        ({"lr": "exponential:start=1,rate=-1"}, "rate=-1 must be greater than 0"),
        (
            {"batch-size": "some"},
            "batch-size = 'some': must be a whole number from 1 to 2147483647, or all",
        ),
        ({"eval-samples": 0}, "eval-samples = 0: must be a whole number"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**32}, "less than 4294967296"),
        ({"solver": "lbfgs"}, "no solver 'lbfgs'.*sgd, momentum, rmsprop, adam, adamw"),
        ({"prox": float("nan")}, "prox = nan"),
        ({"runtime": "lokal"}, "no runtime 'lokal'. Did you mean 'local'"),
        ({"pace": "sync"}, "no pace 'sync'.*synchronous, over_selected, buffered"),
        ({"sampler": "wheighted"}, "no sampler 'wheighted'. Did you mean 'weighted'"),
        ({"bad-replies": "ignore"}, "bad-replies = 'ignore': .*'stop' or 'skip'"),
        ({"diagnostics-every": 3}, "diagnostics-every 3 is given, but no diagnostics"),
        ({"average": 1}, "average = 1: input should be less than 1"),
    ],
)
def test_mistakes_are_sentences(values, says):
    with pytest.raises(fedmom.FedMomError, match=says) as caught:
        settings.parse(values)
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text


@pytest.mark.parametrize("content", [b"rounds = ", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_refused(tmp_path, content):
    (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(fedmom.FedMomError, match="not valid TOML"):
        settings.read(tmp_path / "c.toml")
    with pytest.raises(fedmom.FedMomError, match="cannot be read"):
        settings.read(tmp_path / "none.toml")


def test_settings_of_the_command_line_are_those_of_a_file():
    """Options arrive as text."""
    texts = {"rounds": "7", "lr": "0.5", "server-lr": "2", "batch-size": "all", "momentum": "0.5"}
    values = {"rounds": 7, "lr": 0.5, "server-lr": 2.0, "batch-size": "all", "momentum": 0.5}
    assert settings.parse(texts) == settings.parse(values)


def test_every_setting_has_a_description():
    assert all(field.description for field in RunConfig.model_fields.values())


def test_parsing_needs_no_jax():
    code = (
        "import sys; from fedmom.experiments import settings;"
        "settings.parse({'algorithm': 'fedadam:tau=0.1', 'solver': 'adam', 'lr': 0.1,"
        " 'sampler': 'weighted', 'pace': 'buffered:in_flight=4', 'runtime': 'local:workers=1'});"
        "print('jax' in sys.modules, 'optax' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False False\n"


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("linear:start=4,end=2,rounds=4", [4, 3.5, 3, 2.5, 2, 2]),
        ("cosine:start=2,rounds=4", [2, 1 + 0.5**0.5, 1, 1 - 0.5**0.5, 0, 0]),
        ("exponential:start=1,rate=0.5", [1, 0.5, 0.25, 0.125]),
        ("exponential:start=1,rate=0.5,rounds=2", [1, 0.5**0.5, 0.5]),
        ("inverse:start=6", [6, 3, 2, 1.5]),
        ("inverse_sqrt:start=6,rounds=3", [6, 6 / (4 / 3) ** 0.5, 6 / (5 / 3) ** 0.5, 6 / 2**0.5]),
        ("step:start=1,rate=0.1,rounds=2", [1, 1, 0.1, 0.1, 0.01]),
    ],
)
def test_schedules_are_their_formulas(spec, values):
    schedule = schedules.parse(spec)
    got = [schedules.at(schedule, t) for t in range(len(values))]
    assert got == pytest.approx(values, abs=1e-6)
