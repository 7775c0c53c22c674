"""The commands of docs/cluster.md, as they stand there, on a cluster of two on this machine."""

import contextlib
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.runtimes.ray_end import started, until

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
SCRIPTS = Path(sys.executable).parent


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path):
    """Installing apart; the port is a free one, and ``auto`` is this cluster, not another's."""
    port = str(free_port())
    lines = re.findall(r"```sh\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    token, head, other, run = (line for line in lines if not line.startswith("pip"))
    home = {**os.environ, "HOME": str(tmp_path)}
    path = {"PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    made = subprocess.run(["bash", "-c", token], env=home | path, check=True, capture_output=True)
    file = tmp_path / ".ray" / "auth_token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes() not in made.stdout + made.stderr
    with contextlib.ExitStack() as stack:
        for line in (head, other):
            here = line.replace("6379", port).replace("HEAD", "127.0.0.1")
            mode, program, *words = shlex.split(here)
            process = stack.enter_context(
                started(
                    [SCRIPTS / program, *words, "--num-cpus=1", "--disable-usage-stats"],
                    first=signal.SIGINT,  # Ctrl-C, as the page says
                    env=home | dict([mode.split("=")]),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            until(process, "Ray runtime started")
        mode, program, *words = shlex.split(run.replace("auto", f"127.0.0.1:{port}"))
        command = [SCRIPTS / Path(program).name, *words]
        known = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
        refused = subprocess.run(command, env=home | {"RAY_AUTH_MODE": "disabled"}, **known)
        done = subprocess.run(command, env=home | dict([mode.split("=")]), **known)
    assert refused.returncode == 2
    assert "set RAY_AUTH_MODE=token" in " ".join(refused.stderr.split())
    assert done.returncode == 0, done.stderr
    assert "Run folder: runs/cluster" in done.stdout
    assert "ray" not in done.stderr.lower()
    rows = (tmp_path / "runs" / "cluster" / "rounds.jsonl").read_text().splitlines()
    assert len(rows) == 20


def test_the_file_for_ray_up_is_one_that_ray_takes():
    (text,) = re.findall(r"```yaml\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    config = prepare_config(yaml.safe_load(text))
    validate_config(config)
    assert len(config["provider"]["worker_ips"]) == config["max_workers"] == 2
    text = text.replace("min_workers", "most_workers")
    with pytest.raises(jsonschema.ValidationError):
        validate_config(prepare_config(yaml.safe_load(text)))
