"""The contract that every runtime keeps, kept by six real nodes."""

import os
from xml.etree import ElementTree

import pytest

from fedmom.flower.control import Control
from fedmom.flower.running import ENDED
from tests.conftest import ROOT
from tests.deploy.field import Field

pytestmark = pytest.mark.slow
CLIENTS = 6  # of the suite's data
SERVER = """
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    import pytest

    from tests.runtimes import device_nodes

    device_nodes.GRID = grid
    out, root, suite = (context.run_config[name] for name in ("out", "root", "suite"))
    options = ["-q", "-p", "no:cacheprovider", "-k", "flower", "--rootdir", root]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # Flower has imported much
    pytest.main([*options, f"--junitxml={out}", suite])
"""
CLIENT = """
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def respond(message, context):
    from tests.runtimes.device_nodes import respond

    return respond(message, context)
"""


def test_the_contract_suite_passes_on_real_nodes(tmp_path, monkeypatch):
    found = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), found])))
    with Field(tmp_path, CLIENTS) as field:
        for name, text in (("server_app", SERVER), ("client_app", CLIENT)):
            (field.path / "app" / "fedmom_app" / f"{name}.py").write_text(text)
        field.server()
        for number in range(1, CLIENTS + 1):
            field.device(number, data="synthetic:clients=6")
        with Control(field.deployment) as control:
            field.wait(lambda: sum(n.online for n in control.nodes()) == CLIENTS, "the nodes")
            out = tmp_path / "suite.xml"
            suite = ROOT / "tests" / "runtimes" / "test_contract.py"
            run = control.start({"out": str(out), "root": str(ROOT), "suite": str(suite)})
            field.wait(lambda: control.run(run).status in ENDED, "the suite", 900)
            assert control.run(run).status == "completed", control.run(run).details
        log = (field.path / "server" / "superlink.log").read_text(errors="replace")
        cases = list(ElementTree.parse(out).iter("testcase"))
    assert not [case.get("name") for case in cases if case.find("failure") is not None], log
    assert not [case.get("name") for case in cases if case.find("error") is not None], log
    passed = [case.get("name") for case in cases if case.find("skipped") is None]
    assert all("[flower" in name for name in passed)
    assert len(passed) >= 13
