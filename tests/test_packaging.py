"""The package as it is given to others."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_all_has_every_extra_for_users():
    extras = PROJECT["optional-dependencies"]
    (line,) = extras["all"]
    named = re.fullmatch(r"fedmom\[(.*)\]", line)[1].split(",")
    assert named == sorted(extras.keys() - {"all", "dev", "docs", "recipes", "test"})


def test_the_citation_has_the_version():
    assert f"version: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()


def test_ci_tries_the_wheel():
    assert ".ci/wheel" in (ROOT / ".ci" / "run").read_text().split()


@pytest.mark.slow
def test_the_wheel_works_where_there_is_nothing_else():
    script = [ROOT / ".ci" / "wheel", sys.executable]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith(PROJECT["version"])
