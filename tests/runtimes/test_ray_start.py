"""How Ray is started on one machine, and what is said where there is no cluster."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")

from fedmom.core.errors import FedMomError
from fedmom.runtimes.cluster import connect
from tests.runtimes.ray_end import below, listening_at, started, until

START = """
import glob, os, sys
if sys.argv[1] == "ray first":
    import ray
from fedmom.runtimes.cluster.connect import connect
from tests.runtimes.ray_end import below
ray = connect()
listening = {}
for file in ("/proc/net/tcp", "/proc/net/tcp6"):
    for line in open(file).read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            listening[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
for process in below(os.getpid()):
    for place in glob.glob(f"/proc/{process}/fd/*"):
        try:
            address = listening.get(os.readlink(place))
        except OSError:
            continue
        if address:
            print(address)
ray.shutdown()
"""
EVERYWHERE = {"00000000", "0" * 32}
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nosuchhost.invalid:6379"])
def test_an_address_where_nobody_listens_is_told_at_once(address):
    began = time.monotonic()
    with pytest.raises(FedMomError, match=f"no Ray cluster to join at {address}"):
        connect._check_listens(address)
    assert time.monotonic() - began < 30


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("order", ["fedmom first", "ray first"])
def test_ray_on_one_machine_listens_on_loopback_only(order):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", START, order],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = set(done.stdout.split())
    assert found, done.stderr
    assert found <= LOOPBACK


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("alone", [False, True])
def test_what_ray_start_listens_on_is_what_the_page_says(alone, tmp_path):
    """On all interfaces whatever address is given; on loopback only with the page's variable."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    env = {**plain, "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    env |= {connect.CLUSTERS: "0"} if alone else {}
    command = [Path(sys.executable).parent / "ray", "start", "--head", "--block", f"--port={port}"]
    command += ["--num-cpus=1", "--object-store-memory=80000000", "--include-dashboard=false"]
    command += [] if alone else ["--node-ip-address=127.0.0.1"]
    kept = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with started(command, first=signal.SIGINT, env=env, **kept) as head:
        until(head, "Ray runtime started")
        found = listening_at(below(head.pid))
    assert found
    assert (found <= LOOPBACK) if alone else (found & EVERYWHERE)


def test_a_token_that_others_can_read_is_told(tmp_path, monkeypatch):
    file = tmp_path / "auth_token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    connect._check_token()  # there is none
    file.write_text("secret")
    file.chmod(0o644)
    tmp_path.chmod(0o755)
    with pytest.warns(UserWarning, match="Other users of this machine can read .*auth_token"):
        connect._check_token()
    file.chmod(0o600)
    connect._check_token()


@pytest.mark.thorough
def test_an_address_without_a_cluster_is_told_within_half_a_minute():
    code = "import fedmom; fedmom.run('synthetic:clients=4', runtime='ray:address=127.0.0.1:1')"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert "There is no Ray cluster to join at 127.0.0.1:1" in done.stderr
    assert time.monotonic() - began < 30
