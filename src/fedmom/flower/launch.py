"""Start Flower's programs with sane settings and keep their output in files of bounded size."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedmom.core.files import open_file, read_file, write_atomic
from fedmom.flower.layout import Deployment, DeviceFolder, split_address

# Flower's telemetry, its look for a newer version, and pip at run time are all off.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
}
SECONDS_TO_END = 15
LARGEST_LOG = 5_000_000  # bytes; what was logged before is kept in one more file


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a Flower program, which finds its own programs by PATH."""
    programs = Path(sys.executable).parent
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    return {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(home), **more}


def superlink(deployment: Deployment) -> list[str]:
    """Return the command of a deployment's SuperLink."""
    host, port = split_address(deployment.listen)
    server = deployment.server
    command = [sys.executable, "-m", "fedmom.flower.superlink", "--host", host, "--port", str(port)]
    command += ["--database", str(server / "state.db")]
    command += ["--superexec-auth-secret-file", str(deployment.token)]
    if deployment.insecure:
        return [*command, "--insecure"]
    return [
        *(*command, "--ssl-ca-certfile", str(server / "ca.pem")),
        *("--ssl-certfile", str(server / "server.pem")),
        *("--ssl-keyfile", str(server / "server.key"), "--enable-supernode-auth"),
    ]


def supernode(device: DeviceFolder, port: int, data: str, client: str | None) -> list[str]:
    """Return the command of a device's SuperNode."""
    config: dict[str, Any] = {"data": data, "folder": str(device.path)}
    config |= {} if client is None else {"client": client}
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    command = [sys.executable, "-m", "fedmom.flower.node", "--superlink", device.address]
    command += ["--host", "127.0.0.1", "--port", str(port), "--node-config", words]
    if device.insecure:
        return [*command, "--insecure"]
    ca, key = device.path / "ca.pem", device.path / "device.key"
    return [*command, "--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, env: dict[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in its own process group, which ends with the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open_file(log, "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):  # ask first, then kill
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)


def shorten(log: Path) -> None:
    """Put a log that has grown large aside, replacing the one before, and start an empty one.

    Its file stays the same one, since a program has it open. A line that is written meanwhile may
    be lost.
    """
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size <= LARGEST_LOG:
            return
        write_atomic(log.with_name(f"{log.name}.1"), read_file(log, most=None)[-LARGEST_LOG:])
        os.truncate(log, 0)


def free_port() -> int:
    """Return an unused port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
