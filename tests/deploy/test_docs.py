"""Every command of docs/deploy.md is run, in the order in which it stands there."""

import re
import shlex
from pathlib import Path

import pytest

from fedmom.flower.layout import open_deployment
from tests.cli.command import invoke
from tests.deploy.field import Field

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
BACKGROUND = ("server", "device")


def commands():
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if not line.startswith("#")]
    return [shlex.split(line) for line in lines]


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path, monkeypatch):
    """In a folder of their own; the port is a free one, since several tests may run at once."""
    monkeypatch.chdir(tmp_path)
    found = commands()
    assert [words[2] for words in found if words[0] == "fedmom"] == [
        *("init", "server", "device", "device", "run", "status", "init")
    ]
    with Field(tmp_path, name="spare", devices=0) as field:
        field.path = tmp_path / "fl"
        for number, words in enumerate(found):
            if words[0] == "nginx":  # tested in test_faults.py
                assert (tmp_path / words[2].removeprefix("$PWD/")).is_file()
                continue
            assert words[:2] == ["fedmom", "deploy"]
            if words[2] == "init" and "--address" not in words:
                words = [*words, "--address", field.deployment.address]
            if words[2] in BACKGROUND:
                field.start(f"{words[2]}-{number}", *words[1:])
                if words[2] == "server":
                    field.wait(lambda n=number: "is ready" in field.printed(f"server-{n}"), "it")
            elif words[2] == "run":
                field.start("run", *words[1:])
                assert field.finished() == 0, field.all_printed()
                assert "Run folder:" in field.printed("run")
            else:
                printed = invoke(*words[1:])
                if words[2] == "status":
                    assert printed.count("online") == 2
                    assert "3 of 3 rounds, finished" in printed
    far = open_deployment(tmp_path / "far")
    assert far.listen == "127.0.0.1:8000"
    assert "listen 9443 ssl" in (tmp_path / "far" / "server" / "nginx.conf").read_text()
