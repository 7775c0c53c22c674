"""The examples run, and the models they train learn."""

import re
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
NEEDS = {"own_data.py": "pandas", "own_runtime.py": "torch"}


LONG = ("own_model.py",)  # nets of four libraries


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] * (p.name in LONG), id=p.name) for p in EXAMPLES],
)
def test_it_runs(path, capsys):
    needed = NEEDS.get(path.name)
    if needed and find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    accuracies = [float(number) for number in re.findall(r"accuracy[ =]([\d.]+)", printed)]
    assert len(accuracies) >= 2
    assert max(accuracies) > 0.8


def test_by_hand_uses_no_package_and_is_short():
    text = (EXAMPLES[0].parent / "by_hand.py").read_text()
    assert "import fedmom" not in text
    assert "from fedmom" not in text
    assert len(text.splitlines()) <= 90
