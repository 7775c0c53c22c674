"""A deployment's folder: what is in it, who may read it, and what is refused."""

import importlib.util
import json
import shutil
import ssl
import stat
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cryptography import x509
from flwr.app import Context, Message, RecordDict
from flwr.cli.config_utils import load_and_validate
from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY, AUTHN_TYPE_STORE_KEY
from flwr.common.constant import AuthnType
from flwr.supercore.credential_store.file_credential_store import FileCredentialStore
from flwr.supercore.task_identity import TaskIdentity

from fedmom import from_arrays
from fedmom.core.errors import FedMomError
from fedmom.data.store.writer import save_store
from fedmom.experiments import settings
from fedmom.experiments.folder import RunFolder
from fedmom.flower import certificates, launch, layout, node, running, server
from fedmom.flower.control import RunStatus, packed_app, settings_of
from fedmom.flower.device import Tail, own_data, respond
from fedmom.flower.ending import how_it_ended
from fedmom.flower.server import follow
from fedmom.reports import result_tables
from fedmom.runtimes.devices import journal
from fedmom.runtimes.devices.population import from_json, natural
from tests.cli.command import invoke, refused


def test_init_writes_an_app_that_flower_accepts(tmp_path):
    printed = invoke("deploy", "init", tmp_path / "fl", "--devices", 3)
    assert "fedmom deploy server" in printed
    config, warnings = load_and_validate(tmp_path / "fl" / "app" / "pyproject.toml")
    assert config["project"]["name"] == "fedmom-app"
    assert warnings == []
    names = sorted(p.name for p in (tmp_path / "fl" / "devices").iterdir())
    assert names == ["device-1", "device-2", "device-3"]
    packed = packed_app(tmp_path / "fl" / "app", {"rounds": 7})
    assert b"PRIVATE KEY" not in packed
    assert settings_of(tmp_path / "fl" / "app")["rounds"] == 20  # on the disk, as it was


@pytest.mark.parametrize(("devices", "cohort"), [(1, 1), (2, 2), (3, 2)])
def test_an_app_is_of_as_many_devices_as_were_given_a_key(tmp_path, devices, cohort):
    deployment = layout.create(tmp_path / "fl", "127.0.0.1:8443", devices)
    values = settings_of(deployment.app)
    assert values["runtime"].startswith(f"flower:devices={devices},")
    assert values["clients-per-round"] == cohort


def test_a_server_that_others_could_reach_is_refused(tmp_path):
    """With TLS, too: the Control API asks for no key."""
    deployment = layout.create(tmp_path / "fl", "fl.example.org:9443", 1)
    file = deployment.server / "server.toml"
    file.write_text(file.read_text().replace("127.0.0.1:8000", "0.0.0.0:8000"))
    with pytest.raises(FedMomError, match="Control API"):
        layout.open_deployment(deployment.path)


def own_file(folder, kind):
    """A device's own rows, without a word on clients."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 3)), rng.integers(0, 2, 50)
    if kind == "npz":
        np.savez(folder / "mine.npz", x=x, y=y)
        return str(folder / "mine.npz")
    if kind == "marked":
        np.savez(folder / "mine.npz", x=x, y=y, is_test=np.arange(50) < 5)
        return str(folder / "mine.npz")
    lines = [
        "a,b,c,y",
        *(f"{','.join(map(str, row))},{label}" for row, label in zip(x, y, strict=True)),
    ]
    (folder / "mine.csv").write_text("\n".join(lines))
    return f"{folder / 'mine.csv'}:label=y"


@pytest.mark.parametrize(("kind", "held_out"), [("npz", 10), ("marked", 5), ("csv", 10)])
def test_a_devices_own_file_needs_no_clients(tmp_path, kind, held_out):
    data = own_data({"data": own_file(tmp_path, kind)})
    assert (data.clients, data.train.size.tolist(), data.test.size.tolist()) == (
        *(1, [50 - held_out], [held_out]),
    )
    again = own_data({"data": own_file(tmp_path, kind)})
    assert again.test.start.tolist() == data.test.start.tolist()


def test_options_that_a_run_under_way_does_not_take_are_told(tmp_path):
    experiment = settings.parse({"data": "synthetic:clients=3", "rounds": 20, "lr": 0.1})
    RunFolder.create(tmp_path / "run", experiment)
    wanted = settings.parse({"data": "synthetic:clients=3", "rounds": 50, "lr": 0.1})
    told = server._unused(tmp_path / "run", wanted, {"rounds": 50, "lr": 0.1})
    assert told == "rounds 50 (it has 20)"
    assert not server._unused(tmp_path / "new", wanted, {"rounds": 50})


def test_secrets_are_their_owners_alone(tmp_path):
    layout.create(tmp_path / "fl", "fl.example.org:9443", 1)
    secrets = ("ca.key", "server.key", "control.token", "flwr/credentials.yaml")
    for file in (*(f"server/{name}" for name in secrets), "devices/device-1/device.key"):
        assert stat.S_IMODE((tmp_path / "fl" / file).stat().st_mode) == 0o600
    for folder in ("server", "runs", "devices/device-1"):
        assert stat.S_IMODE((tmp_path / "fl" / folder).stat().st_mode) == 0o700
    there = {p.name for p in (tmp_path / "fl" / "devices" / "device-1").iterdir()}
    assert there == {"ca.pem", "device.key", "device.toml"}


def test_the_certificate_is_for_the_address_and_for_this_machine(tmp_path):
    deployment = layout.create(tmp_path / "fl", "fl.example.org:9443", 0)
    server = x509.load_pem_x509_certificate((deployment.server / "server.pem").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    context = ssl.create_default_context(cafile=str(deployment.ca))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    assert context.get_ca_certs()[0]["subject"] == ((("commonName", "FedMom deployment CA"),),)
    assert deployment.listen == "127.0.0.1:8000"  # nobody else's machine reaches the Control API


def test_tls_and_keys_are_the_default_of_every_program(tmp_path):
    deployment = layout.create(tmp_path / "fl", "127.0.0.1:8443", 1)
    device = layout.open_device(tmp_path / "fl" / "devices" / "device-1")
    server = launch.superlink(deployment)
    supernode = launch.supernode(device, 9101, "mine.npz", None)
    assert "--enable-supernode-auth" in server
    assert "--auth-supernode-private-key" in supernode
    assert "--insecure" not in server + supernode


def test_insecure_is_for_one_machine(tmp_path):
    text = refused("deploy", "init", tmp_path / "a", "--insecure", "--address", "10.0.0.1:8443")
    assert "10.0.0.1 is another" in text
    invoke("deploy", "init", tmp_path / "b", "--insecure")
    assert "--insecure" in launch.superlink(layout.open_deployment(tmp_path / "b"))
    device = tmp_path / "b" / "devices" / "device-1"
    text = refused("deploy", "device", device, "--data", "synthetic", "--server", "10.0.0.1:8443")
    assert "insecure is for trials on one machine, and 10.0.0.1 is another" in text
    facts = device / "device.toml"
    facts.write_text(facts.read_text().replace("127.0.0.1", "10.0.0.1"))
    with pytest.raises(FedMomError, match="insecure is for trials"):
        layout.open_device(facts.parent)


@pytest.mark.parametrize(
    "address", ["here", "here:", ":80", "a b:80", "host:70000", "host;x:80", "h:²"]
)
def test_an_address_that_is_none_is_refused(tmp_path, address):
    assert "is not an address" in refused("deploy", "init", tmp_path / "a", "--address", address)
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_service_of_the_server_is_one_that_systemd_takes(tmp_path):
    deployment = layout.create(tmp_path / "fl", "127.0.0.1:8443", 0)
    file = deployment.server / "fedmom-server.service"
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60
    )
    assert "fedmom-server.service" not in done.stderr
    assert f"{sys.executable} -m fedmom deploy server {deployment.path}" in file.read_text()


def test_flowers_own_commands_know_the_secret_of_the_server(tmp_path):
    """Where its `flwr login` would have put it: for this address, and in this form."""
    deployment = layout.create(tmp_path / "fl", "127.0.0.1:8443", 0)
    store = FileCredentialStore(deployment.server / "flwr" / "credentials.yaml")
    kind, access = (
        key % deployment.listen for key in (AUTHN_TYPE_STORE_KEY, ACCESS_TOKEN_STORE_KEY)
    )
    assert store.get(kind) == AuthnType.OIDC.encode()
    assert store.get(access) == deployment.token.read_bytes()
    layout.write_token(deployment)
    assert store.get(access) == deployment.token.read_bytes()  # it stays the same


def test_logs_are_bounded_and_what_follows_them_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "LARGEST_LOG", 1000)
    log = tmp_path / "device.log"
    tail, seen = Tail(log), 0
    with log.open("ab") as program:  # as a program that is running has it
        for number in range(500):
            program.write(f"line {number}\n".encode())
            program.flush()
            assert tail.news() == f"line {number}\n"
            launch.shorten(log)
            seen = max(seen, log.stat().st_size)
    assert seen <= 1000
    before = (tmp_path / "device.log.1").read_bytes()
    assert len(before) <= 1000
    kept = [int(line.split()[1]) for line in (before + log.read_bytes()).splitlines()[1:]]
    assert kept == list(range(kept[0], 500))
    assert {file.name for file in tmp_path.iterdir()} == {"device.log", "device.log.1"}


def test_how_a_process_ended_is_told_in_words():
    assert how_it_ended(-11) == "its process was killed by SIGSEGV"
    assert how_it_ended(-63) == "its process was killed by signal 63"
    assert how_it_ended(7) == "its process ended with exit code 7"


class NoServer:
    """A Control API with a run that has died, and dies again whenever it is started."""

    def __init__(self):
        self.started, self.status = [], RunStatus("failed", "its process was killed by SIGKILL")

    def run(self, _):
        return self.status

    def start(self, values):
        self.started.append(values)
        return len(self.started)


def test_a_run_whose_server_app_dies_at_once_is_not_restarted_for_ever(tmp_path):
    deployment, control, said = layout.create(tmp_path / "fl", "127.0.0.1:8443", 0), NoServer(), []
    out = tmp_path / "run"
    running.Order(7, str(out), {"rounds": 3}).write(deployment)
    supervisor = running.Supervisor(deployment, control, said.append)
    for _ in range(2 * running.TRIES):
        supervisor.look()
    assert control.started == [{"rounds": 3, "out": str(out)}] * running.TRIES
    given_up = running.find(deployment, out)
    assert "died 5 times without a round" in given_up.fault
    assert not server._is_live(control, given_up)  # the next command starts it anew
    assert server._is_live(control, replace(given_up, fault=""))
    assert len(said) == running.TRIES
    for status in (RunStatus("stopped", ""), RunStatus("failed", running.EXCEPTION + "no")):
        running.Order(7, str(out), {}).write(deployment)
        control.status = status
        supervisor.look()
        assert running.find(deployment, out) is None
    assert len(control.started) == running.TRIES


def test_a_run_that_cannot_be_looked_after_keeps_no_other_from_it(tmp_path):
    class Unknown(NoServer):
        def run(self, number):
            if number == 1:
                raise FedMomError("there is no such run")
            return super().run(number)

    deployment, control = layout.create(tmp_path / "fl", "127.0.0.1:8443", 0), Unknown()
    for number in (1, 2, 1):
        for name in "abc":
            running.Order(number, str(tmp_path / f"{name}{number}"), {}).write(deployment)
    with pytest.raises(FedMomError, match="no such run"):
        running.Supervisor(deployment, control, print).look()
    assert {values["out"][-1] for values in control.started} == {"2"}
    assert len(control.started) == 3


def test_a_folder_that_holds_a_deployment_is_left_alone(tmp_path):
    layout.create(tmp_path / "fl", "127.0.0.1:8443", 1)
    key = (tmp_path / "fl" / "server" / "ca.key").read_bytes()
    assert "already holds a deployment" in refused("deploy", "init", tmp_path / "fl")
    assert (tmp_path / "fl" / "server" / "ca.key").read_bytes() == key


SERVERS = {
    b"address = 5": "has no text 'address'",
    b"address = [": "is not valid TOML",
    b"a = " + b"[" * 5000: "is not valid TOML",
    b"\xff": "is not valid TOML",
    b'address = "a:1"': "has no text 'listen'",
    b'address = "a:1"\nlisten = "here"': "is not an address",
    b'address = "a:1"\nlisten = "127.0.0.1:1"\ninsecure = "false"': "not 'false'",
}


@pytest.mark.parametrize(("content", "says"), SERVERS.items(), ids=lambda value: str(value)[:30])
def test_a_damaged_deployment_is_a_sentence(tmp_path, content, says):
    layout.create(tmp_path / "fl", "127.0.0.1:8443", 0)
    (tmp_path / "fl" / "server" / layout.SERVER).write_bytes(content)
    assert says in refused("deploy", "status", tmp_path / "fl")


DEVICES = {
    b"": "has no text 'name'",
    b'name = "a"\nserver = 5': "has no text 'server'",
    b'name = "a"\nserver = "here"': "is not an address",
    b'name = "a"\nserver = "127.0.0.1:80"\ninsecure = 1': "must be true or false, not 1",
}


@pytest.mark.parametrize(("content", "says"), DEVICES.items(), ids=lambda value: str(value)[:30])
def test_a_damaged_device_is_a_sentence(tmp_path, content, says):
    (tmp_path / layout.DEVICE).write_bytes(content)
    assert says in refused("deploy", "device", tmp_path, "--data", "synthetic")


@pytest.mark.parametrize("content", [b"garbage", b"\xff\xfe"])
def test_a_damaged_certificate_is_named(tmp_path, content):
    layout.create(tmp_path / "fl", "127.0.0.1:8443", 0)
    (tmp_path / "fl" / "server" / "ca.pem").write_bytes(content)
    assert "ca.pem is not a certificate" in refused("deploy", "status", tmp_path / "fl")


@pytest.mark.parametrize("content", [b"garbage", b"ssh-rsa AAAA", b"\xff"])
def test_a_damaged_key_of_a_device_is_named(tmp_path, content):
    (tmp_path / "a.pub").write_bytes(content)
    with pytest.raises(FedMomError, match=r"a\.pub is not the public key of a device"):
        certificates.public_key_bytes(tmp_path / "a.pub")


def test_an_app_without_a_table_of_settings_is_refused(tmp_path):
    deployment = layout.create(tmp_path / "fl", "127.0.0.1:8443", 0)
    (deployment.app / "pyproject.toml").write_text("[tool.flwr.app]\nconfig = 5\n")
    assert "is not a Flower app's" in refused("deploy", "run", tmp_path / "fl")


ONE = {"key": "k", "name": "a", "train": 3, "test": 0}
POPULATIONS = [
    "[" * 100_000,
    "{}",
    {"devices": []},
    {"devices": [{**ONE, "train": float("inf")}]},
    {"devices": [{**ONE, "train": 10**30}]},
    {"devices": [{**ONE, "train": -1}]},
    {"devices": [{**ONE, "train": True}]},
    {"devices": [{**ONE, "name": 5}]},
    {"features": ["vector", [2**40], 2]},
    {"features": ["vector", [2], "many"]},
    {"features": ["sound", [2], 2]},
    {"features": ["vector", 2, 2]},
    {"features": ["vector", [2], 2, "guess"]},
]


@pytest.mark.parametrize("change", POPULATIONS, ids=lambda change: str(change)[:50])
def test_a_damaged_list_of_devices_is_refused(change):
    whole = {"run": "ab", "features": ["vector", [2], 2], "devices": [ONE]}
    assert from_json(json.dumps(whole).encode()).users == ["a"]
    text = change if isinstance(change, str) else json.dumps({**whole, **change})
    with pytest.raises(FedMomError, match=r"devices\.json, .* is damaged"):
        from_json(text.encode())


def test_any_name_of_a_device_can_be_sorted():
    names = ["b10", "b2", "²", "b" + "9" * 5000, "", "١٢", "10", "9"]
    assert sorted(names, key=natural).index("b2") < sorted(names, key=natural).index("b10")


def test_one_more_device(tmp_path):
    layout.create(tmp_path / "fl", "127.0.0.1:8443", 1)
    invoke("deploy", "add-device", tmp_path / "fl", "kitchen")
    assert set(layout.open_deployment(tmp_path / "fl").keys) == {"device-1", "kitchen"}
    assert "already" in refused("deploy", "add-device", tmp_path / "fl", "kitchen")
    assert "cannot name" in refused("deploy", "add-device", tmp_path / "fl", "../kitchen")


def test_what_is_missing_is_said(tmp_path):
    assert "fedmom deploy init" in refused("deploy", "server", tmp_path)
    assert "from the server's devices/" in refused(
        "deploy", "device", tmp_path, "--data", "synthetic"
    )
    layout.create(tmp_path / "fl", f"127.0.0.1:{launch.free_port()}", 1)
    for words in (("run", tmp_path / "fl"), ("status", tmp_path / "fl")):
        text = refused("deploy", *words)
        assert "does not answer" in text
        assert "fedmom deploy server" in text


def test_settings_that_are_none_are_refused_before_anything_is_started(tmp_path):
    deployment = layout.create(tmp_path / "fl", "127.0.0.1:8443", 1)
    with pytest.raises(FedMomError, match="rounds"):
        follow(deployment, tmp_path / "run", {"rounds": "many"}, print, print)


def test_without_flower_it_says_what_to_install(tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "flwr" else real(name, *a)
    )
    assert "pip install 'fedmom[flower]'" in refused("deploy", "status", tmp_path)


def test_a_run_on_devices_is_not_resumed_as_another(tmp_path):
    (tmp_path / "config.toml").write_text('data = "devices"\nruntime = "flower"\n')
    assert "fedmom deploy run" in refused("resume", tmp_path)


def test_a_device_is_one_client(tmp_path):
    x, y = np.zeros((6, 2), np.float32), np.array([0, 1, 0, 1, 0, 1])
    data = from_arrays(x, y, ["ann", "bob", "bob", "cy", "cy", "cy"], name="three")
    save_store(data, tmp_path / "store", {})
    where = str(tmp_path / "store")
    with pytest.raises(FedMomError, match="has 3 clients, and a device is one"):
        own_data({"data": where})
    assert own_data({"data": where, "client": 2}).train.size.tolist() == [3]
    assert own_data({"data": where, "client": "bob"}).users == ["bob"]
    with pytest.raises(FedMomError, match="--client dan is not a client"):
        own_data({"data": where, "client": "dan"})
    with pytest.raises(FedMomError, match="without data"):
        own_data({})


def test_devices_number_their_classes_by_the_labels_alike(tmp_path):
    """One that has only sevens and threes calls them classes 7 and 3, as the others do."""
    y = np.array([3, 7, 7, 3])
    np.savez(tmp_path / "mine.npz", x=np.zeros((4, 2), np.float32), y=y, is_test=[0, 0, 0, 1])
    data = own_data({"data": str(tmp_path / "mine.npz")})
    assert data.arrays["y"].tolist() == [3, 7, 7, 3]
    assert (data.features.classes, data.class_names) == (8, None)


def test_a_folder_that_cannot_be_used_is_told_by_the_errors_name(tmp_path, capsys):
    """Whatever goes wrong on a device, with our node or with Flower's: its text stays there."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    (tmp_path / "secret").touch()
    where = {"data": "synthetic:clients=1", "folder": str(tmp_path / "secret" / "device")}
    context = Context(
        run_id=1, node_id=1, node_config=where, state=RecordDict(), run_config={}, series_id=1
    )
    message = Message(RecordDict(), 1, "query")
    message.metadata.__dict__["_message_id"] = "question"
    reply = respond(message, context)
    assert reply.error.reason == "NotADirectoryError on the device, whose own log says more"
    assert "secret" in capsys.readouterr().err
    told = node.by_name(1, "<class 'OSError'>:<'No space left on device: /home/ann/x.npz'>")
    assert (told.code, told.reason) == (1, "<class 'OSError'>")


def test_the_table_of_devices_tells_who_answered_and_why_not(tmp_path):
    (tmp_path / journal.DEVICES).write_text(
        '{"run": "ab", "features": ["vector", [2], 2], "devices": ['
        '{"key": "1", "name": "ann", "train": 1200, "test": 3},'
        ' {"key": "2", "name": "bob", "train": 7, "test": 0}]}'
    )
    write = partial(journal.write, tmp_path)
    for event in (
        {"event": "online", "clients": [0, 1]},
        {"event": "asked", "client": 0, "round": 1},
        {"event": "asked", "client": 1, "round": 1},
        {"event": "answered", "client": 0, "round": 1, "seconds": 2.0},
        {"event": "failed", "client": 1, "round": 1, "reason": "it is offline"},
        {"event": "online", "clients": [0]},
        {"event": "repeated", "round": 1, "clients": [1]},
        {"event": "asked", "client": 1, "round": 1},
        {"event": "answered", "client": 1, "round": 1, "seconds": 4.0},
        {"event": "answered", "client": 1, "round": 2, "seconds": 1.0},
    ):
        write(event)
    with (tmp_path / journal.EVENTS).open("a") as file:
        file.write('{"event": "ans')  # torn by a kill
    table = result_tables.device_grid(tmp_path, {0: "its update is not finite"})
    assert table.rows[0][:6] == ["ann", "1,200", "1", "1", "2.0", "0"]
    assert table.rows[0][-1] == "its update is not finite"
    assert table.rows[1][:6] == ["bob", "7", "2", "2", "2.5", "1"]
    assert [row[6] for row in table.rows] == ["online", "offline"]
    assert table.rows[1][-2:] == ["trained, round 2", "it is offline"]
    assert table.note.endswith(": 1.")
    assert result_tables.device_grid(tmp_path / "elsewhere", {}) is None


def test_the_settings_of_the_template_are_settings(tmp_path):
    layout.create(tmp_path / "fl", "127.0.0.1:8443", 0)
    project = tomllib.loads((tmp_path / "fl" / "app" / "pyproject.toml").read_text())
    from fedmom.experiments import settings
    from fedmom.flower.server import DEFAULTS, OUT

    own = project["tool"]["flwr"]["app"]["config"]
    own.pop(OUT)
    assert settings.parse({**DEFAULTS, **own}).runtime.startswith("flower:")


def test_the_worker_is_called_once_for_a_message_and_again_if_nobody_takes_it(monkeypatch):
    now, called = [100.0], []
    monkeypatch.setattr(node.time, "monotonic", lambda: now[0])

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(node.time, "sleep", sleep)
    eager = node.EagerTime(lambda: called.append(now[0]))
    while now[0] < 100 + 2.5 * node.CALL_AGAIN:
        eager.sleep(0.5)  # as Flower's loop does while it waits for a reply
    assert called[0] == 100
    assert len(called) == 3
    eager.sleep(3)  # nothing to do
    eager.sleep(0.5)  # the next message
    assert len(called) == 4


def test_pauses_are_short_while_a_run_goes_on(monkeypatch):
    """Flower's loop sleeps 0.5 s while its client works, and 3 s when there is nothing to do."""
    now, slept, called = [0.0], [], []
    monkeypatch.setattr(node.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(node.time, "sleep", slept.append)
    eager = node.EagerTime(lambda: called.append(now[0]))
    eager.sleep(3)
    eager.sleep(0.5)
    eager.sleep(3)
    now[0] = node.EAGER_SECONDS + 1
    eager.sleep(3)
    assert slept == [3, node.LOOKS_FOR_REPLY, node.EAGER_LOOKS, 3]
    assert called == [0.0]  # the worker, as there is a message
    assert eager.time() > 0  # all else is the module's
