"""Devices that crash, hang and lie, local users, kills and keys, with real processes.

What a device does is in the file ``mode`` of its folder, which the app's client reads.
"""

import contextlib
import os
import shutil
import signal
import stat

import httpx
import pytest
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from fedmom.flower.control import Control
from tests.deploy.field import PATIENCE, Field
from tests.deploy.test_deployment import lines, options

pytestmark = pytest.mark.thorough
LONG = 600.0  # seconds, on a machine that does much else
RUNTIME = "flower:devices=3,deadline=60"
APP = """
import json, os, time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp

from fedmom.flower.device import respond as honest

app = ClientApp()


@app.query()
def describe(message, context):
    reply = honest(message, context)
    if mode(context) == "wide":
        schema = json.loads(reply.content["task"]["schema"])
        reply.content["task"]["schema"] = json.dumps({**schema, "shape": [61]})
    return reply


@app.evaluate()
def evaluate(message, context):
    return honest(message, context)


@app.train()
def train(message, context):
    if mode(context) == "dies":
        os.kill(os.getpid(), 9)
    if mode(context) == "hangs":
        time.sleep(3600)
    reply = honest(message, context)
    if mode(context) == "float64":
        record = reply.content["update"]
        arrays = {name: Array(array.numpy().astype(np.float64)) for name, array in record.items()}
        reply.content["update"] = ArrayRecord(arrays)
    return reply


def mode(context):
    file = Path(context.node_config["folder"]) / "mode"
    return file.read_text() if file.exists() else ""
"""


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    with Field(tmp_path_factory.mktemp("field")) as field:
        (field.path / "app" / "fedmom_app" / "client_app.py").write_text(APP)
        field.server()
        for number in (1, 2, 3):
            field.device(number)
        yield field


@contextlib.contextmanager
def behaving(field, mode, number=3):
    """Let a device do what it should not."""
    file = field.path / "devices" / f"device-{number}" / "mode"
    file.write_text(mode)
    try:
        yield
    finally:
        file.unlink()


def finished(field, name, *, code=0, runtime="", **how):
    """Run a round of all three, or more; return its folder."""
    how = {"rounds": 1, "clients-per-round": 3, "eval-every": 100, "weighting": "cohort", **how}
    field.run(name, *options(**how, runtime=f"flower:devices=3{runtime}"), name=name)
    assert field.finished(name, LONG) == code, field.all_printed()
    return field.folder / name


def plain(text):
    """What a terminal has broken into lines."""
    return " ".join(text.split())


def test_a_client_process_that_is_killed_is_told_at_once(field):
    """The deadline is longer than the test waits."""
    with behaving(field, "dies"):
        out = finished(field, "dies", runtime=",deadline=3600")
    (row,) = lines(out, "rounds.jsonl")
    ((client, reason),) = row["rejected"]
    assert client == 2
    assert reason == "its process was killed by SIGKILL, perhaps for lack of memory"
    said = "It failed: its process was killed by SIGKILL"
    field.wait(lambda: said in field.printed("device-3"), "the owner's line")


def test_a_device_that_hangs_takes_part_in_the_next_run(field):
    with behaving(field, "hangs"):
        out = finished(field, "hangs", runtime=",deadline=15")
        assert [2, "it did not answer in time"] in lines(out, "rounds.jsonl")[0]["rejected"]
    said = "It failed: its time was over"
    field.wait(lambda: said in field.printed("device-3"), "the end of its process")
    out = finished(field, "well")
    assert lines(out, "rounds.jsonl")[0]["replies"] == 3


def test_a_device_that_always_sends_a_wrong_type_ends_a_run_that_needs_it(field):
    with behaving(field, "float64"):
        finished(field, "float64", code=2, runtime=",least=3")
    printed = plain(field.printed("float64"))
    assert "Round 1 has 2 of at least 3 replies" in printed
    assert "device-3: it has an array float64" in printed


def test_a_device_with_other_data_does_not_stop_a_run(field):
    with behaving(field, "wide"):
        out = finished(field, "wide", **{"clients-per-round": 2})
    assert lines(out, "rounds.jsonl")[0]["replies"] == 2
    printed = plain(field.printed("wide"))
    assert "device-3 does not take part: " in printed
    assert "(61,)" in printed


def test_the_folders_of_a_run_are_private(field):
    out = field.folder / "well"
    for place in (out, *out.rglob("*"), *(field.path / "server").rglob("*.log")):
        assert not stat.S_IMODE(place.stat().st_mode) & 0o077, place


def stranger(kind, address, field, *, tls):
    """What any user of the machine can open."""
    certificate = field.deployment.ca.read_bytes() if tls else None
    return kind.from_server_address(
        address, not tls, certificate, [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    )


def test_other_users_of_the_machine_get_nothing(field):
    """Neither the server's Control API nor work, of the server or of a device."""
    nodes = [pid for pid in field.pids() if "--node-config" in field.command_of(pid)]
    assert len(nodes) == 3
    words = [field.command_of(pid).split() for pid in nodes]
    doors = [(f"127.0.0.1:{w[w.index('--port') + 1]}", False) for w in words]
    request = AcquireTaskRequest(supported_task_types=["flwr-clientapp", "flwr-serverapp"])
    for address, tls in [*doors, (field.deployment.listen, True)]:
        with stranger(RuntimeHttpClient, address, field, tls=tls) as client:
            with pytest.raises(httpx.HTTPStatusError) as refused:
                client.AcquireTask(request)
            assert refused.value.response.status_code == httpx.codes.UNAUTHORIZED
    with stranger(ControlHttpClient, field.deployment.listen, field, tls=True) as client:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            client.ListNodes(ListNodesRequest())
        assert refused.value.response.status_code == httpx.codes.UNAUTHORIZED
    assert stat.S_IMODE(field.deployment.token.stat().st_mode) == 0o600


def test_a_second_server_is_refused_at_once(field):
    second = field.start("second", "deploy", "server", field.path)
    assert second.wait(PATIENCE) == 2
    assert "Another process is at work in" in plain(field.printed("second"))
    assert "ready" not in field.printed("second")


def test_a_run_outlives_kills_of_its_command_and_its_server_app(field):
    """No round that was finished is asked for again, and the run is followed to its end."""
    how = options(**{"rounds": 8, "clients-per-round": 3, "eval-every": 100}, runtime=RUNTIME)
    out = field.folder / "killed"
    field.run("killed", *how, name="killed")
    field.wait(lambda: len(lines(out, "rounds.jsonl")) >= 3, "three rounds", LONG)
    field._processes["killed"].kill()
    (app,) = [pid for pid in field.pids() if "flwr-serverapp" in field.command_of(pid)]
    assert "--token-file /dev/fd/" in field.command_of(app)  # and no token
    os.kill(app, signal.SIGKILL)
    saved = lines(out, "rounds.jsonl")
    field.wait(lambda: "It is restarted" in field.printed("server"), "the restart")
    field.run("killed", *how, name="again")
    assert field.finished("again", LONG) == 0, field.all_printed()
    rows = lines(out, "rounds.jsonl")
    assert [row["round"] for row in rows] == list(range(1, 9))
    assert rows[: len(saved) - 1] == saved[:-1]  # the last was perhaps not finished
    trained = [e["round"] for e in lines(out, "devices.jsonl") if e["event"] == "answered"]
    assert all(trained.count(row["round"]) == 3 for row in saved[:-1])
    assert "followed from here on" in plain(field.printed("again"))


def test_a_run_that_its_command_stops_is_not_started_again(field):
    out = field.folder / "stopped"
    how = options(**{"rounds": 500, "clients-per-round": 3, "eval-every": 1000}, runtime=RUNTIME)
    field.run("stopped", *how, name="stopped")
    field.wait(lambda: lines(out, "rounds.jsonl"), "a round", LONG)
    assert field.end("stopped") == 130
    assert "nothing is lost" in plain(field.printed("stopped"))
    with Control(field.deployment) as control:
        runs = control._client.ListRuns(ListRunsRequest()).run_dict.values()
        assert {run.status.status for run in runs} == {"finished"}
    assert not list((field.deployment.server / "running").glob("*"))


def test_keys_are_followed_one_by_one(field):
    """A file that is not a key changes nothing for others, and a key that returns is let in."""
    keys = field.deployment.server / "keys"
    mine = (keys / "device-3.pub").read_bytes()
    (keys / "junk.pub").write_text("no key")
    says = "junk.pub is not the public key of a device"
    field.wait(lambda: says in plain(field.printed("server")), "the broken key")
    (keys / "device-3.pub").unlink()
    field.wait(lambda: "device-3 may no longer take part" in field.printed("server"), "deletion")
    with Control(field.deployment) as control:
        assert {node.name for node in control.nodes()} == {"device-1", "device-2"}
        (keys / "device-3.pub").write_bytes(mine)
        field.wait(lambda: "device-3 may take part" in field.printed("server"), "the key's return")
        field.end("device-3")
        field.device(3)
        field.wait(lambda: [n.online for n in control.nodes()] == [True] * 3, "device-3")
    assert plain(field.printed("server")).count(says) == 1


def test_a_device_says_when_the_server_is_gone_and_when_it_is_back(field):
    """With a broken key in the folder, with which the server starts all the same."""
    assert (field.deployment.server / "keys" / "junk.pub").exists()
    (link,) = [p for p in field.pids() if "fedmom.flower.superlink --host" in field.command_of(p)]
    os.kill(link, signal.SIGSTOP)  # as a cable that is pulled: no answer, and no refusal
    field.wait(lambda: "not answer (no answer in 5 s)" in field.printed("device-1"), "a pause")
    os.kill(link, signal.SIGCONT)
    field.wait(lambda: "The server answers again." in field.printed("device-1"), "its end")
    field.end("server")
    field.wait(lambda: "not answer (ConnectError" in field.printed("device-1"), "the loss")
    field.output("server").unlink()
    field.server()
    printed = plain(field.printed("server"))
    assert "junk.pub is not the public key" in printed
    assert "It lets in: device-1, device-2, device-3." in printed
    back = "The server answers again."
    field.wait(lambda: field.printed("device-1").count(back) == 2, "the return")


def test_a_device_without_tls_is_told_that_the_server_wants_it(field):
    folder = field.folder / "plain"
    shutil.copytree(
        field.path / "devices" / "device-1", folder, ignore=lambda *_: ["flwr", "cache"]
    )
    facts = folder / "device.toml"
    facts.write_text(facts.read_text().replace("insecure = false", "insecure = true"))
    field.start("plain", "deploy", "device", folder, "--data", "synthetic:clients=1")
    says = "This device uses no TLS, and the server may want it."
    field.wait(lambda: says in plain(field.printed("plain")), "the hint")
