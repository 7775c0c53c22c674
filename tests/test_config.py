"""Settings: the file, the options, what is refused and what is filled in."""

import pytest

import fedmom
from fedmom import config as settings
from fedmom import schedules
from fedmom.config import RunConfig


def prepared(**values):
    return settings.prepare(settings.parse({"data": "synthetic", **values}))


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
        ({"momentum": 0.5, "algorithm": "fedavg"}, "fedavg has no momentum"),
        ({"local-steps": 5, "local-epochs": 1}, "local-steps 5 and local-epochs 1.0 are both"),
        ({"local-steps": 2.5}, "local-steps = 2.5: must be a whole number"),
        ({"local-steps": 5, "algorithm": "fedsgd"}, "fedsgd takes one step on all"),
        ({"lr": -1}, "lr = -1: must be a number greater than 0"),
        ({"lr": "nan"}, "lr = 'nan': must be a number greater than 0"),
        ({"lr": "exponent:start=1"}, "no schedule 'exponent'. Did you mean 'exponential'"),
        ({"lr": "exponential:start=1"}, "exponential needs rate"),
        ({"lr": "exponential:start=1,rate=-1"}, "rate=-1 must be greater than 0"),
        (
            {"batch-size": "some"},
            "batch-size = 'some': must be a whole number of 1 or more, or all",
        ),
        ({"eval-samples": 0}, "eval-samples = 0: must be a whole number"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**32}, "less than 4294967296"),
        ({"solver": "lbfgs"}, "no solver 'lbfgs'.*sgd, momentum, rmsprop, adam, adamw"),
        ({"prox": float("nan")}, "prox = nan"),
    ],
)
def test_mistakes_are_sentences(values, says):
    with pytest.raises(fedmom.FedMomError, match=says):
        settings.parse(values)


def test_more_clients_than_there_are_is_refused():
    with pytest.raises(fedmom.FedMomError, match="clients-per-round 31 is more than the 30"):
        prepared(**{"clients-per-round": 31})


@pytest.mark.parametrize(
    ("values", "eta"),
    [
        ({"weighting": "population", "clients-per-round": 4}, 30 / 4),
        ({"weighting": "cohort"}, 1.0),
        ({"weighting": "uniform"}, 1.0),
        ({"algorithm": "fedadam"}, 0.01),
        ({"server-lr": 3}, 3.0),
    ],
)
def test_the_server_step_is_k_over_m_for_population_weights(values, eta):
    assert prepared(**values).config.server_lr == eta


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"server-lr": 15}, False),
        ({"server-lr": 15.01}, True),
        ({"server-lr": 0.9}, True),
        ({"server-lr": 0.9, "weighting": "cohort"}, False),
        ({"server-lr": "linear:start=15,end=0.5,rounds=100"}, True),
        ({"server-lr": "linear:start=15,end=1,rounds=100"}, False),
        ({"algorithm": "fedadam"}, False),
    ],
)
def test_a_server_step_outside_the_papers_range_is_told(values, told):
    notes = prepared(**values).notes
    assert bool(notes) == told
    assert all("[1, K/M] = [1, 15]" in note for note in notes)


def test_everything_left_open_is_filled_in():
    config = prepared().config
    assert (config.model, config.momentum, config.local_steps) == ("logreg", 0.9, 10)
    assert prepared(momentum=0).config.momentum == 0
    assert prepared(algorithm="fedadagrad").config.momentum == 0
    assert prepared(algorithm="fedavg").config.momentum is None
    assert prepared(algorithm="fedsgd").config.batch_size == "all"
    assert prepared(**{"local-epochs": 2}).config.local_steps is None


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"algorithm": "fedsgd", "lr": "cosine:start=1,rounds=50"},
        {
            "local-epochs": 0.5,
            "batches": "random",
            "solver": "adamw",
            "prox": 0.1,
            "tensorboard": True,
        },
        {
            "local-steps": "linear:start=20,end=5,rounds=10",
            "batch-size": "all",
            "eval-samples": "all",
        },
    ],
)
def test_the_written_file_gives_the_same_settings_back(tmp_path, values):
    config = prepared(**values).config
    path = tmp_path / "config.toml"
    path.write_text(config.toml())
    assert settings.parse(settings.read(path)) == config
    assert settings.prepare(config).config == config  # nothing left to fill in


def test_every_setting_has_a_description():
    assert all(field.description for field in RunConfig.model_fields.values())


@pytest.mark.parametrize("content", [b"rounds = ", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_refused(tmp_path, content):
    (tmp_path / "c.toml").write_bytes(content)
    with pytest.raises(fedmom.FedMomError, match="not valid TOML"):
        settings.read(tmp_path / "c.toml")
    with pytest.raises(fedmom.FedMomError, match="cannot be read"):
        settings.read(tmp_path / "none.toml")


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
