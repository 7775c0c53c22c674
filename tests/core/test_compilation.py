"""Where compiled programs are kept."""

import os
import subprocess
import sys

import pytest

from fedmom.core.compilation import kept_in, prepare_process

DIR, LEAST = "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def test_a_process_of_ours_may_be_told_to_keep_its_programs_elsewhere(tmp_path, monkeypatch):
    """What this process has set for itself is no user's wish; what a user has set is."""
    expected = {DIR: str(tmp_path / "compiled"), LEAST: "0"}
    monkeypatch.delenv(DIR)
    monkeypatch.setenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", "false")  # as it does; put back afterwards
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k != "jax"})
    assert kept_in(tmp_path) == expected
    prepare_process()
    assert DIR in os.environ
    assert kept_in(tmp_path) == expected
    monkeypatch.setenv(DIR, "/elsewhere")
    assert kept_in(tmp_path) == {}


FORK = """
import multiprocessing, sys, fedmom
TASK = {"rounds": 1, "lr": 0.01, "progress": False}
def work(out):
    try:
        print(fedmom.run("synthetic:clients=4", out=out, **TASK).status, flush=True)
    except fedmom.FedMomError as error:
        print(error, flush=True)
if __name__ == "__main__":
    used, out = sys.argv[1:]
    data = fedmom.load_data("synthetic:clients=4")
    if used == "jax":
        fedmom.run(data, out=out + "/first", **TASK)
    child = multiprocessing.get_context("fork").Process(target=work, args=(out + "/second",))
    child.start()
    child.join(60)
    child.kill()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize(("used", "says"), [("jax", 'start method "spawn"'), ("data", "finished")])
def test_a_fork_of_a_process_that_has_computed_is_refused(tmp_path, used, says):
    """It would hang. A fork of one that has not is as good as any process."""
    (tmp_path / "fork.py").write_text(FORK)
    command = [sys.executable, "-W", "ignore", tmp_path / "fork.py", used, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert says in done.stdout, done
