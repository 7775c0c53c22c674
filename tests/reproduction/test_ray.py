"""The paper's runs on a Ray of two actors."""

import json

import numpy as np
import pytest

from fedmom.reproduction import plan, runner
from fedmom.reproduction.page import make
from tests.reproduction.test_make import QUIET
from tests.reproduction.test_make import tiny as _tiny
from tests.reproduction.tiny import TINY
from tests.runtimes.ray_end import ray_ended

tiny = _tiny


def rounds_of(path):
    return [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_the_papers_runs_on_ray_are_those_of_this_machine(tiny):
    """And what has ended there is not run again here."""
    with ray_ended():
        make(tiny / "there", TINY, ["fig3"], QUIET, runtime="ray")
    make(tiny / "here", TINY, ["fig3"], QUIET)
    there, here = (runner.Cache(tiny / name / "runs", TINY) for name in ("there", "here"))
    wanted = plan.wanted(TINY, ["fig3"], here.choose)
    assert wanted
    for config in wanted:
        ours, theirs = (rounds_of(cache.result(config).path) for cache in (there, here))
        assert [row["cohort"] for row in ours] == [row["cohort"] for row in theirs]
        losses = ([row["train_loss"] for row in rows] for rows in (ours, theirs))
        np.testing.assert_allclose(*losses, rtol=1e-3)
