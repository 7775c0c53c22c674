"""Where compiled programs are kept."""

import os
import sys

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
