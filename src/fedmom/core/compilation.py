"""JAX set up for many short programs, whose compiled form is kept between processes."""

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.files import cache_folder

SECONDS_WORTH_KEEPING = 0.1
_home: int | None = None  # the process that has computed first


def prepare_process() -> None:
    """Set JAX up before it is imported, for a process of our own (the command line).

    Clients have threads of their own, so a program need not be handed to yet another one.
    JAX's own environment variables win.
    """
    os.environ.setdefault("JAX_CPU_ENABLE_ASYNC_DISPATCH", "false")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache_folder() / "compiled")
        os.environ.setdefault(
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(SECONDS_WORTH_KEEPING)
        )
    if "jax" in sys.modules:
        keep_programs()


def kept_in(folder: Path) -> dict[str, str]:
    """Return variables for the environment of a process that keeps every program in a folder.

    There are none if the user has told JAX where to keep them. What ``prepare_process`` has set in
    this process is not the user's word.
    """
    ours = str(cache_folder() / "compiled")
    if os.environ.get("JAX_COMPILATION_CACHE_DIR", ours) != ours:
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def keep_programs() -> None:
    """Keep compiled programs on disk, unless the user has told JAX what to do with them.

    Raises:
        FedMomError: This process was forked from one that had been here, where JAX would hang.
    """
    import jax

    global _home
    if _home is None:
        _home = os.getpid()
    if _home != os.getpid():
        raise FedMomError(
            "This process was forked from one that had used JAX, whose threads it lacks, so that it"
            ' would hang. Start it with multiprocessing\'s start method "spawn".'
        )
    options: Any = jax.config
    if options.jax_compilation_cache_dir is None and options.jax_enable_compilation_cache:
        options.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
        options.update("jax_persistent_cache_min_compile_time_secs", SECONDS_WORTH_KEEPING)


def give_memory_back() -> None:
    """Return to the system what compiling has freed: 100 MB on LeNet-5, which glibc would keep."""
    with contextlib.suppress(OSError, AttributeError):  # there is no such call elsewhere
        ctypes.CDLL(None).malloc_trim(0)
