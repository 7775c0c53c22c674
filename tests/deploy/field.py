"""A deployment on this machine for tests: a server and devices, as processes that all end."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from fedmom.flower.launch import free_port
from fedmom.flower.layout import create

PATIENCE = 180.0  # seconds, on a machine that does other things beside
DATA = "synthetic:clients=3,alpha=0.5"


def fedmom(*words):
    return [sys.executable, "-m", "fedmom", *map(str, words)]


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Field:
    """A server and its devices, each started by its own ``fedmom deploy`` command."""

    def __init__(self, folder, devices=3, *, name="fl", insecure=False):
        self.path = Path(folder) / name
        address = f"127.0.0.1:{free_port()}"
        self.deployment = create(self.path, address, devices, insecure=insecure)
        self.folder = Path(folder)
        self._processes = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 20
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes.values():
            process.wait()

    def start(self, name, *words, command=None, env=None):
        """Start a command of ours, or another one; what it prints is kept."""
        with self.output(name).open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command or fedmom(*words),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**(env or os.environ), "FEDMOM_CACHE": str(self.folder / "cache")},
                start_new_session=True,
            )
        return self._processes[name]

    def server(self):
        self.start("server", "deploy", "server", self.path)
        self.wait(lambda: "is ready" in self.printed("server") or self.has_ended("server"), "it")
        assert not self.has_ended("server"), self.all_printed()

    def has_ended(self, name):
        return self._processes[name].poll() is not None

    def device(self, number, *more, data=DATA):
        """Start device 1, 2, ..., which has the data of client 0, 1, ..."""
        place = self.path / "devices" / f"device-{number}"
        words = ("deploy", "device", place, "--data", data, "--client", number - 1, *more)
        return self.start(f"device-{number}", *words)

    def front(self):
        """Start nginx as the deployment's own configuration says, at another port; return where."""
        outside, inside = free_port(), self.deployment.listen.partition(":")[2]
        conf = self.path / "server" / "nginx.conf"
        text = conf.read_text().replace(f"listen {inside}", f"listen {outside}")
        conf.with_name("front.conf").write_text(text)
        with self.output("nginx").open("ab") as output:
            self._processes["nginx"] = subprocess.Popen(
                ["nginx", "-c", str(conf.with_name("front.conf"))],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.wait(lambda: listens(outside), "nginx")
        return f"127.0.0.1:{outside}"

    def run(self, out, *words, name="run"):
        return self.start(name, "deploy", "run", self.path, "--out", self.folder / out, *words)

    def output(self, name):
        return self.folder / f"{name}.out"

    def printed(self, name):
        return self.output(name).read_text(errors="replace") if self.output(name).exists() else ""

    def end(self, name):
        """End a command as Ctrl-C does. (Background jobs of a shell ignore SIGINT.)."""
        self._processes[name].send_signal(signal.SIGTERM)
        return self._processes[name].wait(PATIENCE)

    def kill(self, name, *, all_of=None):
        """SIGKILL a command and all that it has started: a power cut."""
        self._processes[name].kill()
        for pid in self.pids(all_of):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._processes[name].wait()

    def pids(self, home=None):
        """The processes of this deployment, or of one Flower home of it."""
        mark = f"FLWR_HOME={home or self.path}".encode()
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (place / "environ").read_bytes() and int(place.name) != os.getpid():
                    found.append(int(place.name))
        return found

    def command_of(self, pid):
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return ""

    def wait(self, condition, what, patience=PATIENCE):
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {what}:\n{self.all_printed()}")
            time.sleep(0.2)

    def finished(self, name="run", patience=PATIENCE):
        """Wait for a command's end; return its exit code."""
        try:
            return self._processes[name].wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} does not end:\n{self.all_printed()}") from None

    def all_printed(self):
        return "\n".join(
            f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}"
            for file in sorted(self.folder.glob("*.out"))
        )
