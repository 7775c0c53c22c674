"""The examples run, and do what they say."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_it_runs(path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    numbers = [
        float(line.rpartition("accuracy ")[2].split()[0]) for line in done.stdout.splitlines()
    ]
    assert len(numbers) >= 3
    assert max(numbers) > 0.8  # each of them learns


def test_by_hand_uses_no_package_and_is_short():
    text = (EXAMPLES[0].parent / "by_hand.py").read_text()
    assert "import fedmom" not in text
    assert "from fedmom" not in text
    assert len(text.splitlines()) <= 90
