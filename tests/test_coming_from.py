"""The other libraries' programs on docs/coming_from.md, each run in an environment of its own."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "coming_from.md").read_text()
# The page's heading, and the environment that benchmarks/environments.py makes.
PROGRAMS = {"Flower 1.41": "flower", "FedJAX 0.0.17": "fedjax", "pfl-research 0.6.0": "pfl"}


def program(heading):
    """The program below a heading."""
    part = PAGE.partition(f"\n## {heading}\n")[2]
    return re.search(r"```py\n(.*?)```", part, re.DOTALL).group(1)


def test_every_program_of_the_page_is_run_here():
    headings = [part.partition("\n")[0] for part in PAGE.split("\n## ")[1:] if "```py\n" in part]
    assert headings == list(PROGRAMS)


@pytest.mark.slow
@pytest.mark.parametrize("heading", PROGRAMS)
def test_the_program_learns(heading, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from environments import home, make_environment

    fault = make_environment(PROGRAMS[heading])
    if fault:
        pytest.skip(f"{heading} cannot be installed: {fault}")
    data = re.search(r"```python\n(.*?)# From here on", PAGE, re.DOTALL).group(1)
    (tmp_path / "samples.py").write_text(data)
    (tmp_path / "program.py").write_text(program(heading))
    python = home() / PROGRAMS[heading] / "bin" / "python"
    done = subprocess.run(
        [python, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    # Three classes: a program that does not train is right a third of the time or so.
    accuracy = float(re.findall(r"0\.\d+|1\.0", done.stdout)[-1])
    assert accuracy > 0.8, done.stdout
