"""Options, specs and TOML of all kinds: a run is prepared, or there is one sentence."""

import numpy as np
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedmom.algorithms import ALGORITHMS, SOLVERS
from fedmom.data import DATASETS
from fedmom.experiments import build
from fedmom.experiments import settings as schema
from fedmom.experiments.settings import RunConfig, kebab
from fedmom.models import MODELS
from fedmom.runtimes import RUNTIMES
from fedmom.training import PACES, SAMPLERS
from fedmom.world import WORLDS
from tests.conftest import population
from tests.hostile.mutation import mutated, sentence

DATA = population([5, 9, 3, 14, 7, 6], test_sizes=[2, 0, 1, 4, 3, 2])
FEW, MANY = 200, 8000
NUMBERS = [
    *(0, 1, 2, -1, 3, 0.5, 1e-300, 1e300, 1e308, 10**30, 2**31, 2**32, 2**63, 2**64),
    *(float("nan"), float("inf"), -0.0, True, None),
]
TEXTS = [
    *("", " ", "auto", "all", "none", "nan", "inf", "1e999", "0x10", "１", "-", ":", "=", ",", "+"),
    *(
        "a" * 300,
        "~nouser/x",
        "/proc/x",
        "..",
        "\0",
        "\n",
        "é",
        "𝛾",
        "[/x]",
        "$\\frac$",
        "%s",
        "{}",
    ),
    *("cosine:start=1,rounds=5", "exponential:start=1,rate=1e10", "exponential:start=0,rate=1"),
    *("linear:start=1,end=-1,rounds=3", "cosine:start=inf,rounds=5", "cosine:start=1,rounds=0"),
]
NAMES = [
    *ALGORITHMS, *SOLVERS, *MODELS, *SAMPLERS, *PACES, *RUNTIMES, *WORLDS,
    *(name for name in DATASETS if name != "glyphs"), "clip", "mean", "trimmed_mean",
]  # fmt: skip
KEYS = ["momentum", "tau", "hidden", "layers", "workers", "extra", "norm", "share", "b1", "x", ""]
values = st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.sampled_from(NAMES)
specs = st.builds(
    lambda name, options: f"{name}:" + ",".join(f"{k}={v}" for k, v in options),
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.sampled_from(KEYS), values), max_size=3),
)
anything = values | specs | st.lists(values, max_size=2) | st.text(max_size=8)
tables = st.dictionaries(
    st.sampled_from([kebab(name) for name in RunConfig.model_fields if name != "data"])
    | st.text(max_size=5),
    anything,
    max_size=4,
)


def prepare(given):
    """Prepare a run with these settings on a small population; nothing is trained."""
    experiment = build.prepare(schema.parse({"data": "synthetic:clients=4", **given}), DATA)
    complete = experiment.config.model_dump(by_alias=True, exclude_none=True)
    assert schema.parse(complete) == experiment.config


@settings(max_examples=FEW, suppress_health_check=list(HealthCheck))
@given(tables)
def test_any_settings_are_prepared_or_refused(given):
    sentence(prepare, given)


@pytest.mark.slow
@settings(max_examples=MANY, suppress_health_check=list(HealthCheck))
@given(tables)
def test_many_settings_are_prepared_or_refused(given):
    sentence(prepare, given)


def read_and_prepare(path):
    given = schema.read(path)
    given.pop("data", None)
    prepare(given)


def examine_toml(tmp_path, count, seed):
    plain = schema.parse({"algorithm": "fedmom", "lr": 0.1}).model_dump(
        by_alias=True, exclude_none=True
    )
    original = tomli_w.dumps(plain).encode()
    path = tmp_path / "settings.toml"
    refused = 0
    for case in range(count):
        path.write_bytes(mutated(original, np.random.default_rng([seed, case])))
        refused += sentence(read_and_prepare, path) is not None
    return refused


def test_any_file_of_settings_is_prepared_or_refused(tmp_path):
    assert examine_toml(tmp_path, 100, seed=0) > 50


@pytest.mark.slow
def test_many_files_of_settings_are_prepared_or_refused(tmp_path):
    examine_toml(tmp_path, 4000, seed=1)
