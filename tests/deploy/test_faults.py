"""What devices and servers do on bad days, with real processes; minutes, so only when asked for."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from flwr.proto.control_pb2 import ListRunsRequest

from fedmom.flower import layout
from fedmom.flower.control import Control
from tests.conftest import ROOT
from tests.deploy.field import DATA, PATIENCE, Field, fedmom
from tests.deploy.test_deployment import assert_same_run, lines, options, simulated

pytestmark = pytest.mark.slow
EXAMPLES = ROOT / "examples"
HOW = {"rounds": 6, "clients-per-round": 2, "eval-every": 3}
LONG = 600.0


@pytest.fixture
def field(tmp_path):
    with Field(tmp_path) as field:
        field.server()
        for number in (1, 2, 3):
            field.device(number)
        yield field


def processes(field, home, part):
    """The processes below a Flower home whose command has a part."""
    return [pid for pid in field.pids(home) if part in field.command_of(pid)]


def kill(pids):
    assert pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def begun(field, out, rounds=1):
    field.wait(lambda: len(lines(out, "rounds.jsonl")) >= rounds, "a round", LONG)


def test_a_server_app_that_is_killed_goes_on_from_its_checkpoint(field, tmp_path):
    """Momentum included: no round is lost or applied twice."""
    field.run("run", *options(**HOW, runtime="flower:devices=3,least=2,deadline=120"))
    begun(field, field.folder / "run", 2)
    kill(processes(field, field.path / "server", "flwr-serverapp"))
    assert field.finished(patience=LONG) == 0, field.all_printed()
    assert "has died" in field.printed("run")
    assert_same_run(field.folder / "run", simulated(tmp_path / "simulated", **HOW))


def test_a_superlink_that_is_killed_is_started_again_and_the_run_goes_on(field, tmp_path):
    field.run("run", *options(**HOW, runtime="flower:devices=3,least=2,deadline=120"))
    begun(field, field.folder / "run", 2)
    kill(processes(field, field.path / "server", "fedmom.flower.superlink --host"))
    assert field.finished(patience=LONG) == 0, field.all_printed()
    assert "is restarted" in field.printed("server")
    assert_same_run(field.folder / "run", simulated(tmp_path / "simulated", **HOW))


def test_a_run_that_is_stopped_by_flowers_command_stays_stopped(field):
    field.run("run", *options(**HOW | {"rounds": 500}, runtime="flower:devices=3,least=2"))
    begun(field, field.folder / "run")
    with Control(field.deployment) as control:
        (run,) = control._client.ListRuns(ListRunsRequest()).run_dict
        control.stop(run)
    assert field.finished(patience=LONG) == 2
    assert "The run was stopped" in field.printed("run")


def test_a_device_that_was_killed_returns_under_its_identity(field, tmp_path):
    """With both devices of a cohort needed, rounds are repeated until it is back: the same run."""
    field.run("run", *options(**HOW, runtime="flower:devices=3,least=2,deadline=20"))
    out = field.folder / "run"
    begun(field, out)
    field.kill("device-3", all_of=field.path / "devices" / "device-3")
    time.sleep(3)
    field.device(3)
    assert field.finished(patience=LONG) == 0, field.all_printed()
    events = lines(out, "devices.jsonl")
    assert any(e["event"] == "repeated" for e in events)
    assert_same_run(out, simulated(tmp_path / "simulated", **HOW))


def test_what_a_method_remembers_survives_a_restart_of_its_device(field, tmp_path, monkeypatch):
    """SCAFFOLD, from a file of the app: its clients' states are on the devices."""
    shutil.copy(EXAMPLES / "own_method.py", field.path / "app" / "fedmom_app" / "methods.py")
    how = {"rounds": 4, "clients-per-round": 3, "eval-every": 4, "server-lr": 1.0}
    method = "@fedmom_app.methods.scaffold:share=1.0"
    runtime = "flower:devices=3,least=3,deadline=60"
    field.run("run", *options(**how, algorithm=method, runtime=runtime))
    out = field.folder / "run"
    begun(field, out, 2)
    assert field.end("device-2") == 130
    field.device(2)
    assert field.finished(patience=LONG) == 0, field.all_printed()
    states = field.path / "devices" / "device-2" / "state"
    assert list(states.rglob("round-00000003.safetensors"))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    same = simulated(tmp_path / "simulated", **how, algorithm="@own_method.scaffold:share=1.0")
    assert_same_run(out, same)


def test_devices_that_may_not_take_part_are_told_so(field, tmp_path):
    """An unregistered key, another CA, and no TLS: as programs, in sentences."""
    other = layout.create(tmp_path / "other", field.deployment.address, 1)
    theirs = tmp_path / "other" / "devices" / "device-1"
    mine = field.path / "devices" / "device-1"
    wrong_ca = tmp_path / "wrong-ca"
    shutil.copytree(theirs, wrong_ca)
    done = subprocess.run(
        fedmom("deploy", "device", wrong_ca, "--data", DATA, "--client", 0),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert "its certificate is not signed by the CA" in done.stderr
    assert other.address == field.deployment.address
    unregistered = tmp_path / "unregistered"
    shutil.copytree(theirs, unregistered)
    shutil.copy(mine / "ca.pem", unregistered / "ca.pem")
    stranger = field.start(
        "stranger", "deploy", "device", unregistered, "--data", DATA, "--client", 0
    )
    field.wait(lambda: "does not know this device's key" in field.printed("stranger"), "a refusal")
    stranger.send_signal(signal.SIGTERM)
    with Control(field.deployment) as control:
        assert {node.name for node in control.nodes()} == {"device-1", "device-2", "device-3"}


def test_a_trial_without_tls_on_one_machine(tmp_path):
    """One device has a file of its own, which names no clients."""
    rng = np.random.default_rng(0)
    mine = tmp_path / "mine.npz"
    np.savez(mine, x=rng.normal(size=(50, 60)), y=np.arange(50) % 10)
    with Field(tmp_path, 2, insecure=True) as field:
        field.server()
        field.device(1)
        field.start(
            "device-2", "deploy", "device", field.path / "devices" / "device-2", "--data", mine
        )
        field.run("run", *options(rounds=2, runtime="flower:devices=2"))
        assert field.finished(patience=LONG) == 0, field.all_printed()
        assert [r["replies"] for r in lines(field.folder / "run", "rounds.jsonl")] == [2, 2]
        assert "40 training and 10 test samples of mine" in field.printed("device-2")
        last = lines(field.folder / "run", "evals.jsonl")[-1]
        assert last["clients"] == 2


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_devices_train_through_nginx(tmp_path):
    """With a model of 1.2 MB, which nginx would put into files of its own if it were let."""
    with Field(tmp_path, 2) as field:
        field.server()
        outside = field.front()
        for number in (1, 2):
            field.device(number, "--server", outside)
        wide = options(rounds=2, model="mlp:hidden=4096", runtime="flower:devices=2")
        field.run("run", *wide)
        assert field.finished(patience=LONG) == 0, field.all_printed()
        rows = lines(field.folder / "run", "rounds.jsonl")
        assert [row["replies"] for row in rows] == [2, 2]


HOSTILE = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmom.flower.device import respond as honest

# Three in a row that cannot be used at all would set the device aside; a NaN is found later.
KINDS = ["huge", "names", "nan", "shape", "type", "samples", "raises"]
app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def respond(message, context):
    reply = honest(message, context)
    if context.node_config["folder"].endswith("device-3") and "update" in reply.content:
        return spoil(message, reply, KINDS[message.content["task"]["round"] % len(KINDS)])
    return reply


def spoil(message, reply, kind):
    if kind == "raises":
        # Put together here: the app's own text is in Flower's database, too.
        raise OSError("sample 17 of /home/ann/" + ".".join(["secret", "npz"]))
    update = {name: array.numpy() for name, array in reply.content["update"].items()}
    facts = dict(reply.content["facts"])
    if kind == "nan":
        update["0"] = np.full_like(update["0"], np.nan)
    elif kind == "huge":
        update["0"] = np.zeros(300_000_000, np.float32)
    elif kind == "names":
        update = {"x" + name: array for name, array in update.items()}
    elif kind == "shape":
        update["0"] = update["0"][:1]
    elif kind == "samples":
        facts["samples"] = 10**9
    else:
        update["0"] = update["0"].astype(np.float64)
    arrays = ArrayRecord({name: Array(array) for name, array in update.items()})
    return Message(RecordDict({"update": arrays, "facts": MetricRecord(facts)}), reply_to=message)
"""


def test_hostile_devices_are_left_out_and_the_run_goes_on(field):
    (field.path / "app" / "fedmom_app" / "client_app.py").write_text(HOSTILE)
    how = {"rounds": 7, "clients-per-round": 3, "eval-every": 7}
    field.run("run", *options(**how, runtime="flower:devices=3,deadline=120"))
    assert field.finished(patience=LONG) == 0, field.all_printed()
    rows = lines(field.folder / "run", "rounds.jsonl")
    assert [row["replies"] for row in rows] == [2] * 7
    reasons = [row["rejected"] for row in rows]
    assert all(len(rejected) == 1 and rejected[0][0] == 2 for rejected in reasons)
    told = " | ".join(rejected[0][1] for rejected in reasons)
    for part in ("not finite", "bytes", "named 0 to 1", "shape", "float64", "it claims 1000000000"):
        assert part in told
    assert "OSError" in told
    server, run = (field.path / "server").glob("*.*"), field.folder.glob("run/**/*")
    for file in (*server, *run, field.output("run")):  # databases, logs, what the run printed
        assert not file.is_file() or b"secret.npz" not in file.read_bytes()
    device = field.path / "devices" / "device-3" / "supernode.log"
    assert "secret.npz" in device.read_text()  # its owner may know


def test_a_soak_with_devices_that_leave_and_come(field):
    """Half an hour, or as long as FEDMOM_SOAK_SECONDS says."""
    seconds = float(os.environ.get("FEDMOM_SOAK_SECONDS", "1800"))
    how = {"rounds": 100_000, "clients-per-round": 2, "eval-every": 10}
    field.run("run", *options(**how, runtime="flower:devices=3,deadline=20"))
    out, chance, kills = field.folder / "run", random.Random(1), 0
    begun(field, out)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number = chance.randint(1, 3)
        before = len(lines(out, "rounds.jsonl"))
        field.kill(f"device-{number}", all_of=field.path / "devices" / f"device-{number}")
        kills += 1
        time.sleep(chance.uniform(0, 20))
        field.device(number)
        field.wait(lambda: len(lines(out, "rounds.jsonl")) > before, "another round", LONG)  # noqa: B023
        time.sleep(chance.uniform(0, 20))
    rows = lines(out, "rounds.jsonl")
    assert [row["round"] for row in rows] == list(range(1, len(rows) + 1))
    assert all(1 <= row["replies"] <= 2 for row in rows)
    whole = sum(row["replies"] == 2 for row in rows)
    again = sum(event["event"] == "repeated" for event in lines(out, "devices.jsonl"))
    print(f"{seconds:.0f} s, {kills} kills: {len(rows)} rounds, {whole} whole, {again} repeated")
    assert whole > 0
