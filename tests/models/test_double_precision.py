"""With ``JAX_ENABLE_X64=1``: nets run, and are right to what 64 bits can tell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "part",
    ["layers", "lstm", "rewritten", "servers", pytest.param("nets", marks=pytest.mark.thorough)],
)
def test_in_double_precision(part, tmp_path):
    command = [sys.executable, "-m", "tests.models.double_precision", part]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    where = {"JAX_ENABLE_X64": "1", "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | where, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
