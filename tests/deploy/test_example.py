"""The example app: its own server and clients, with messages as on a wire."""

import importlib
import re
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedmom.flower import launch
from tests.deploy.field import PATIENCE, Field
from tests.runtimes.device_grid import LoopGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_pytorch"


pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def test_the_pytorch_app_learns_and_goes_on(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    server = importlib.import_module("pytorchapp.server_app").app
    client = importlib.import_module("pytorchapp.client_app").app

    def context(**node):
        config = {"rounds": 8, "clients-per-round": 2, "nodes": 3, "lr": 0.05, "local-steps": 10}
        own = {**config, "folder": str(tmp_path / "run")}
        return Context(
            run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=own, series_id=1
        )

    nodes = {k + 1: partial(client, context=context(client=k)) for k in range(3)}
    server(LoopGrid(nodes), context())
    accuracies = [float(a) for a in re.findall(r"accuracy ([\d.]+)", capsys.readouterr().out)]
    assert len(accuracies) == 8
    assert accuracies[-1] > 0.8
    server(LoopGrid(nodes), context())  # the folder has all rounds already
    assert "accuracy" not in capsys.readouterr().out
    for name in [n for n in sys.modules if n.startswith("pytorchapp")]:
        del sys.modules[name]


@pytest.mark.slow
def test_the_pytorch_app_runs_on_real_nodes(tmp_path):
    """As its README says, with a second run that goes on where the first one ended."""

    def run(rounds):
        command = ["flwr", "run", str(EXAMPLE), "--stream", "--run-config", f"rounds={rounds}"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=4 * PATIENCE,
            env=launch.environment(field.path / "server" / "flwr"),
        )
        return re.findall(r"round (\d+): accuracy", done.stdout), done.stdout + done.stderr

    with Field(tmp_path) as field:
        field.server()
        for number in (1, 2, 3):
            field.device(number)
        told, printed = run(2)
        assert told == ["1", "2"], printed + field.all_printed()
        told, printed = run(4)
        assert told == ["3", "4"], printed
        assert "Resuming after round 2" in printed
