"""Every command of docs/deploy.md is run, in the order in which it stands there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedmom.flower.control import Control
from fedmom.flower.launch import free_port
from fedmom.flower.layout import open_deployment
from tests.cli.command import invoke
from tests.deploy.field import PATIENCE, Field
from tests.deploy.test_deployment import lines

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def commands():
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    joined = "".join(blocks).replace("\\\n", " ")
    return [line for line in joined.splitlines() if not line.startswith("#")]


class Reader:
    """Somebody who types one command after another, in a folder of their own."""

    def __init__(self, field, folder):
        self.field, self.folder = field, folder
        programs = Path(sys.executable).parent
        path = f"{programs}:{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "COLUMNS": "200"}  # so that no table is cut
        self.typed = []

    def type(self, line):
        words = shlex.split(line)
        name = next(word for word in words if "=" not in word)
        what = words[2] if name == "fedmom" else name
        self.typed.append(what)
        getattr(self, what.replace("-", "_"))(line, words)

    def init(self, _line, words):
        there = ["--address", self.field.deployment.address] if "--address" not in words else []
        invoke(*words[1:], *there)

    def server(self, _line, words):
        self.field.start("server", *words[1:])
        self.field.wait(lambda: "is ready" in self.field.printed("server"), "the server")

    def device(self, _line, words):
        self.field.start(Path(words[3]).name, *words[1:])

    def run(self, _line, words):
        self.field.start("run", *words[1:])
        assert self.field.finished() == 0, self.field.all_printed()
        assert "Run folder:" in self.field.printed("run")

    def status(self, _line, words):
        printed = invoke(*words[1:])
        assert printed.count("online") == 2
        assert "3 of 3 rounds, finished" in printed

    def add_device(self, _line, words):
        assert "Copy this folder to the device" in invoke(*words[1:])
        assert open_deployment(self.folder / "far").keys.keys() >= {"device-3", "kitchen"}

    def nginx(self, _line, words):  # run in test_faults.py
        conf = self.folder / words[2].removeprefix("$PWD/")
        assert conf.is_file()
        if shutil.which("nginx"):
            subprocess.run(["nginx", "-t", "-c", str(conf)], check=True, capture_output=True)

    def export(self, _line, words):
        self.env |= dict(word.split("=") for word in words[1:])

    def flower_supernode(self, line, _words):
        """Where the device's own program has ended."""
        self.field.end("device-1")
        line = line.replace("127.0.0.1:8443", self.field.deployment.address)
        shell = ["bash", "-c", "exec env " + line.replace("9101", str(free_port()))]
        self.field.start("device-1", command=shell, env=self.env)
        with Control(self.field.deployment) as control:
            self.field.wait(lambda: all(n.online for n in control.nodes()), "the device")

    def flwr(self, line, _words):
        done = subprocess.run(
            ["bash", "-c", line],
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE,
            env=self.env,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.field.all_printed()
        if "flwr ls" in line:
            assert "completed" in done.stdout
        else:
            rows = lines(self.folder / "fl" / "runs" / "deployed", "rounds.jsonl")
            assert [row["replies"] for row in rows] == [2, 2], done.stdout
            assert "Round 2: 2 of 2 replies count" in done.stdout


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path, monkeypatch):
    """The port is a free one, since several tests may run at once."""
    monkeypatch.chdir(tmp_path)
    with Field(tmp_path, name="spare", devices=0) as field:
        field.path = tmp_path / "fl"
        field.deployment = replace(field.deployment, path=field.path)
        reader = Reader(field, tmp_path)
        for line in commands():
            reader.type(line)
        assert reader.typed == [
            *("init", "server", "device", "device", "run", "status", "init"),
            *("add-device", "nginx"),
            *("export", "flower-supernode", "flwr", "flwr"),
        ]
    far = open_deployment(tmp_path / "far")
    assert far.listen == "127.0.0.1:8000"
    assert "listen 9443 ssl" in (tmp_path / "far" / "server" / "nginx.conf").read_text()
