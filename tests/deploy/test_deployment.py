"""Three real devices and a server on this machine, with TLS and keys."""

import json
import re
import shutil
import ssl

import httpx
import numpy as np
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from safetensors.numpy import load_file

from fedmom.core.errors import FedMomError
from fedmom.experiments import settings
from fedmom.experiments.build import prepare
from fedmom.experiments.execute import execute
from fedmom.experiments.folder import RunFolder
from fedmom.flower import certificates, layout
from fedmom.flower.control import Control
from fedmom.reports import run_page
from tests.cli.command import invoke
from tests.deploy.field import DATA, Field

pytestmark = pytest.mark.thorough
WORK = {"lr": 0.01, "local-steps": 3, "seed": 5, "eval-samples": "all"}


def options(**more):
    """Settings as options of the command line."""
    return [word for key, value in {**WORK, **more}.items() for word in (f"--{key}", value)]


def lines(folder, name):
    file = folder / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def final_model(folder):
    pointer = json.loads((folder / "checkpoint" / "checkpoint.json").read_bytes())
    return load_file(folder / "checkpoint" / pointer["tensors"])


def simulated(folder, **more):
    """The same run, with the same data, in this process."""
    experiment = prepare(settings.parse({**WORK, **more, "data": DATA}))
    execute(RunFolder.create(folder, experiment.config), experiment)
    return folder


def assert_same_run(ours, theirs):
    """Equal to float tolerance: model, momentum, cohorts, and evaluations of every round."""
    found, expected = (
        {name: values for name, values in final_model(f).items() if not name.startswith("clients/")}
        for f in (ours, theirs)
    )
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6)
    rows, others = (
        [(r["round"], r["cohort"], r["replies"]) for r in lines(folder, "rounds.jsonl")]
        for folder in (ours, theirs)
    )
    assert rows == others
    for key in ("loss", "accuracy", "accuracy_p10", "clients", "samples"):
        a, b = ([e[key] for e in lines(f, "evals.jsonl")] for f in (ours, theirs))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    with Field(tmp_path_factory.mktemp("field")) as field:
        field.server()
        for number in (1, 2, 3):
            field.device(number)
        yield field


def test_a_deployed_run_is_the_simulated_one(field, tmp_path):
    how = {"rounds": 3, "clients-per-round": 2, "eval-every": 3}
    field.run("first", *options(**how, runtime="flower:devices=3,deadline=100,least=2"))
    assert field.finished() == 0, field.all_printed()
    out = field.folder / "first"
    assert_same_run(out, simulated(tmp_path / "simulated", **how))
    said = field.printed("device-1")
    assert "(108 training, 12 test)" in said
    assert re.search(r"Sent, in \d+ bytes: an update of the model, the loss", said)
    assert str(field.folder / "cache") not in (out / "devices.jsonl").read_text()
    page = run_page.overview(run_page.find([out]))
    (section,) = [s for s in page.sections if s.title == "Devices"]
    (table,) = section.parts
    assert [row[0] for row in table.rows] == ["device-1", "device-2", "device-3"]
    asked, answered = (sum(int(row[place]) for row in table.rows) for place in (2, 3))
    assert asked == answered == 6
    assert [row[6] for row in table.rows] == ["online"] * 3


def test_status_tells_who_is_online(field):
    shown = invoke("deploy", "status", field.path)
    assert shown.count("online") == 3


def fleet(field, keys=None, ca=None, insecure=False, address=None):
    """A stranger's way to the Fleet API."""
    keys = keys or generate_key_pairs()
    certificate = None if insecure else (ca or field.deployment.ca).read_bytes()
    return FleetHttpClient.from_server_address(
        address or field.deployment.listen,
        insecure,
        certificate,
        [NodeAuthHttpInterceptor(*keys)],
    )


def activation(keys):
    return ActivateNodeRequest(public_key=public_key_to_bytes(keys[1]), heartbeat_interval=30)


def test_a_key_that_is_not_registered_is_refused(field):
    keys = generate_key_pairs()
    with fleet(field, keys) as stranger:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            stranger.ActivateNode(activation(keys))
        assert refused.value.response.status_code == httpx.codes.PRECONDITION_FAILED
        request = RegisterNodeFleetRequest(public_key=public_key_to_bytes(keys[1]))
        with pytest.raises(httpx.HTTPStatusError) as refused:
            stranger.RegisterNode(request)
        assert refused.value.response.status_code == httpx.codes.PRECONDITION_FAILED


def test_a_registered_public_key_is_of_no_use_without_the_private_one(field):
    public = certificates.serialization.load_ssh_public_key(
        field.deployment.keys["device-1"].read_bytes()
    )
    request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=30)
    with fleet(field) as stranger, pytest.raises(httpx.HTTPStatusError) as refused:
        stranger.ActivateNode(request)
    assert refused.value.response.status_code == httpx.codes.UNAUTHORIZED


def test_another_ca_and_no_tls_get_nowhere(field, tmp_path):
    certificates.write_server(tmp_path, ["127.0.0.1"])
    keys = generate_key_pairs()
    with (
        fleet(field, keys, ca=tmp_path / "ca.pem") as stranger,
        pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        stranger.ActivateNode(activation(keys))
    with fleet(field, keys, insecure=True) as stranger, pytest.raises(httpx.TransportError):
        stranger.ActivateNode(activation(keys))


def test_a_running_server_follows_the_folder_of_keys(field):
    """A new device is let in, and one whose key is deleted is not, without a restart."""
    keys = generate_key_pairs()
    file = field.deployment.server / "keys" / "kitchen.pub"
    file.write_bytes(
        keys[1].public_bytes(
            certificates.serialization.Encoding.OpenSSH,
            certificates.serialization.PublicFormat.OpenSSH,
        )
    )
    field.wait(lambda: "kitchen may take part" in field.printed("server"), "the new key")
    with fleet(field, keys) as kitchen:
        kitchen.ActivateNode(activation(keys))
        file.unlink()
        field.wait(lambda: "kitchen may no longer" in field.printed("server"), "its end")
        with pytest.raises(httpx.HTTPStatusError):
            kitchen.ActivateNode(activation(keys))
    assert "kitchen" not in invoke("deploy", "status", field.path)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_behind_nginx_an_outsider_can_neither_register_a_node_nor_start_a_run(field):
    """The outsider has the CA's certificate, which every device has."""
    outside = field.front()
    stranger = layout.Deployment(field.path, outside, outside, insecure=False)
    with Control(stranger) as control:
        assert not control.is_up()
        for attempt in (control.update_keys, lambda: control.start({}), control.nodes):
            with pytest.raises(FedMomError, match="403"):
                attempt()
    keys = generate_key_pairs()
    with fleet(field, keys, address=outside) as node:
        for attempt, request in (
            (node.RegisterNode, RegisterNodeFleetRequest(public_key=public_key_to_bytes(keys[1]))),
            (node.ActivateNode, activation(keys)),
        ):
            with pytest.raises(httpx.HTTPStatusError) as refused:
                attempt(request)
            assert refused.value.response.status_code == httpx.codes.PRECONDITION_FAILED
    with httpx.Client(verify=ssl.create_default_context(cafile=field.deployment.ca)) as http:
        for path in ("/", "/v1/control/start-run", "/v1/runtime/push-messages", "/docs"):
            assert http.post(f"https://{outside}{path}").status_code == httpx.codes.FORBIDDEN
        # A path that leads out of the Fleet API, in the forms that a browser would tidy up
        for path in ("/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs"):
            raw = httpx.URL(f"https://{outside}/").copy_with(raw_path=path.encode())
            assert http.post(raw).status_code == httpx.codes.FORBIDDEN
        large = http.post(f"https://{outside}/v1/fleet/push-object", content=b"0" * 10**6)
        # Flower's answer to a stranger's bytes: nginx, whose own would be 413, let them through.
        assert large.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.UNSUPPORTED_MEDIA_TYPE)
    with Control(field.deployment) as control:
        assert {node.name for node in control.nodes()} == {"device-1", "device-2", "device-3"}


def test_a_round_closes_at_its_deadline_without_a_device_that_was_killed(field):
    """The server takes the device for online for a minute more.

    Should one of the others be late, on a machine with much to do, it is asked again.
    """
    how = {"rounds": 2, "clients-per-round": 3, "eval-every": 100, "weighting": "cohort"}
    field.run(
        "kill", *options(**how, runtime="flower:devices=3,deadline=12,least=2"), name="second"
    )
    out = field.folder / "kill"
    field.wait(lambda: any(e["event"] == "answered" for e in lines(out, "devices.jsonl")), "work")
    field.kill("device-3", all_of=field.path / "devices" / "device-3")
    assert field.finished("second") == 0, field.all_printed()
    rows = lines(out, "rounds.jsonl")
    assert [row["round"] for row in rows] == [1, 2]
    assert rows[1]["replies"] == 2
    assert rows[1]["rejected"][0][0] == 2
    # Not "it has gone offline", which the server would know after a minute.
    assert rows[1]["rejected"][0][1] == "it did not answer in time"


def test_a_device_that_is_stopped_says_so_to_the_server(field):
    """So it may come back at once, and nobody waits for it in the meantime."""
    log = field.path / "server" / "superlink.log"
    before = log.read_text().count("Deactivated node_id")
    assert field.end("device-1") == 130
    assert log.read_text().count("Deactivated node_id") == before + 1
    assert "This device no longer takes part" in field.printed("device-1")
