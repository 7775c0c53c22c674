"""How Ray is started on one machine, and what is said where there is no cluster."""

import subprocess
import sys
import time

import pytest

pytest.importorskip("ray")

from fedmom.core.errors import FedMomError
from fedmom.runtimes.cluster import connect

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
def test_an_address_without_a_cluster_is_told_within_half_a_minute():
    code = "import fedmom; fedmom.run('synthetic:clients=4', runtime='ray:address=127.0.0.1:1')"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert "There is no Ray cluster to join at 127.0.0.1:1" in done.stderr
    assert time.monotonic() - began < 30
