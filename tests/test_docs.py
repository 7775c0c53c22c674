"""Every command and snippet of the documentation runs."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import numpy as np
import pytest

from fedmom import config as settings
from fedmom import sweeps
from fedmom.cli import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    """All code blocks of a language, with the page each is on."""
    found = []
    for page in PAGES:
        for text in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL):
            found.append(pytest.param(text, id=f"{page.name}-{len(found)}"))
    return found


def commands():
    """The pages' blocks of fedmom commands; setting up is what .ci/run does."""
    return [b for b in blocks("sh") if b.values[0].startswith("fedmom")]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the data that the pages speak of, in small."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for part, samples in (("train", 12), ("test", 3)):
        users = {
            f"f000{k}_0{k}": {
                "x": [
                    [round(int(v) / 255, 17) for v in rng.integers(0, 256, 784)]
                    for _ in range(samples)
                ],
                "y": rng.integers(0, 62, samples).tolist(),
            }
            for k in range(6)
        }
        shard = {"users": list(users), "num_samples": [samples] * 6, "user_data": users}
        file = tmp_path / "leaf" / "femnist" / part / f"all_data_0_{part}.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(shard))
    (tmp_path / "mnist").mkdir()
    for name, rows in (("train", 400), ("t10k", 100)):
        for kind, shape in (("images-idx3", (rows, 28, 28)), ("labels-idx1", (rows,))):
            values = rng.integers(0, 256 if len(shape) > 1 else 10, shape, np.uint8)
            head = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
            (tmp_path / "mnist" / f"{name}-{kind}-ubyte").write_bytes(head + values.tobytes())
    return tmp_path


@pytest.mark.parametrize("block", commands())
def test_commands_run(workplace, block):
    for line in block.splitlines():
        words = shlex.split(line)
        assert words[0] == "fedmom"
        done = subprocess.run(
            [sys.executable, "-m", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=workplace,
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"


def long_commands():
    """Commands that take too long to be run here; they are written with the path of fedmom."""
    return [
        line
        for block in blocks("sh")
        for line in block.values[0].splitlines()
        if line.startswith(".venv/bin/fedmom ")
    ]


@pytest.mark.parametrize("line", long_commands())
def test_long_commands_are_understood(line):
    command, words = cli, shlex.split(line)[1:]
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, words)


def test_benchmarks_that_are_named_are_there():
    named = re.findall(r"^python (benchmarks/\S+)", "\n".join(p.read_text() for p in PAGES), re.M)
    assert named
    for script in named:
        assert (ROOT / script).is_file()


@pytest.mark.parametrize("block", blocks("python"))
def test_snippets_run(workplace, block):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        capture_output=True,
        text=True,
        check=False,
        cwd=workplace,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("block", blocks("toml"))
def test_settings_are_settings(block):
    values = tomllib.loads(block)
    grid = values.pop("grid", {})
    settings.parse(values)
    assert sweeps.cells(values, grid)


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_ci_runs_the_readmes_test_command():
    readme = (ROOT / "README.md").read_text()
    assert len(re.findall(r"^python3 -m venv .*pytest.*$", readme, re.MULTILINE)) == 1
    assert "README.md" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.slow
def test_the_main_job_shows_a_clear_difference(workplace):
    done = subprocess.run(
        [sys.executable, "-m", "fedmom", "compare", "--out", "main"],
        capture_output=True,
        text=True,
        check=False,
        cwd=workplace,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr
    assert "Figure: main/compare.png" in done.stdout
    final = {}
    for algorithm in ("fedsgd", "fedavg", "fedmom"):
        rows = (workplace / "main" / algorithm / "evals.jsonl").read_text().splitlines()
        final[algorithm] = json.loads(rows[-1])["accuracy"]
    assert final["fedsgd"] + 0.03 < final["fedavg"]
    assert final["fedavg"] + 0.03 < final["fedmom"]
