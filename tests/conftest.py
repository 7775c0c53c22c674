"""Shared by all tests: small populations, a cache of compiled programs, a machine left as it is."""

import dataclasses
import gc
import hashlib
import itertools
import os
import platform
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from platformdirs import user_cache_path

ROOT = Path(__file__).resolve().parents[1]
ROWS = 256  # a population's length is a multiple of it
SHARED = ROOT.parent / "shared" / "data"  # real data, where it is at hand


def _compiled() -> Path:
    """Where compiled programs are kept: for all processes of a run, and for the next run.

    Most of the suite's time is compilation. The name says what a program depends on besides its
    own text: versions, and the kind of CPU.
    """
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else [platform.processor()]
    kind = sorted({line for line in lines if line.startswith(("flags", "model name", "Features"))})
    parts = [sys.version, version("jax"), version("jaxlib"), platform.platform(), *kind]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return user_cache_path("fedmom-tests", appauthor=False) / digest


# Before JAX is imported. Processes that tests start inherit it, and so do pytest's own workers.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_compiled()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# Tests start hundreds of processes, and each would compile the package's sources anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Modules and programs stay until the end: to look through them for garbage again and again took a
# twentieth of the suite's time.
gc.set_threshold(20_000, 20, 20)

# A shell turns Ctrl-C off for what it runs with &, and processes that tests start would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

import fedmom  # noqa: E402
from fedmom import from_arrays  # noqa: E402
from fedmom.data.federated import aligned  # noqa: E402

# Compilation makes first examples slow; nothing here is about time.
settings.register_profile("fedmom", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("fedmom")


# XLA compiles with these in a third of the time, to programs that are slower.
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"


def pytest_configure(config):
    """Compile quickly, before XLA reads its flags. Processes that tests start inherit it.

    Tests marked slow are compiled as users' programs are, for they run long; and .ci/run runs those
    of numbers once more in that way, with XLA_FLAGS set to nothing.
    """
    if "not slow" in config.getoption("markexpr") and "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = QUICK if _known(QUICK) else ""


def _known(flags: str) -> bool:
    """Whether this version of XLA has the flags: it ends a process that has others."""
    probe = "from jaxlib import xla_client; xla_client.make_cpu_client()"
    environment = {**os.environ, "XLA_FLAGS": flags}
    told = subprocess.run([sys.executable, "-c", probe], env=environment, capture_output=True)
    return told.returncode == 0


# Files that take longest, the longest first, those that share a Ray together. Workers begin with
# them: with one of them at the end, the others would wait.
LONG = (
    ("deploy/test_deployment.py", "reproduction/test_make.py"),
    ("test_docs.py", "golden/test_folders.py", "test_site.py"),
    ("runtimes/test_ray.py", "runtimes/test_ray_faults.py", "runtimes/test_contract.py"),
    ("hostile/test_kills.py", "cli/test_run.py", "api/test_objects.py"),
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Deal the long files to the workers, each in front of a worker's share of the others."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    groups = [[ROOT / "tests" / name for name in names] for names in LONG]
    long = [[i for path in group for i in items if i.path == path] for group in groups]
    known = {path for group in groups for path in group}
    rest = [item for item in items if item.path not in known]
    share = -(-len(items) // workers)  # what a worker is given at first: so many in a row
    items.clear()
    for worker in range(workers):
        mine = [item for group in long[worker::workers] for item in group]
        room = max(0, share - len(mine))
        items += [*mine, *rest[:room]]
        rest = rest[room:]


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    # Numbered here: ``mktemp`` reads the names of all folders of the tests before, each time.
    folder = tmp_path_factory.getbasetemp() / "caches" / str(next(_numbers))
    monkeypatch.setenv("FEDMOM_CACHE", str(folder))


@pytest.fixture
def compilations():
    """The names of programs, added to as they are compiled or found in JAX's cache on disk."""
    import jax

    names = []

    def heard(event, _seconds, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(about.get("fun_name", "?"))

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield names
    jax.monitoring.unregister_event_duration_listener(heard)


def population(sizes, dimension=4, classes=3, seed=0, test_sizes=None):
    """Unbalanced clients with random inputs and labels."""
    rng = np.random.default_rng(seed)
    tests = test_sizes or [0] * len(sizes)
    ids = np.concatenate(
        [np.full(a + b, k) for k, (a, b) in enumerate(zip(sizes, tests, strict=True))]
    )
    is_test = np.concatenate([np.arange(a + b) >= a for a, b in zip(sizes, tests, strict=True)])
    x = rng.normal(size=(len(ids), dimension)).astype(np.float32)
    y = rng.integers(0, classes, len(ids))
    y[:classes] = np.arange(classes)
    data = from_arrays(x, y, ids, is_test=is_test)
    # Rows of nobody behind them: populations of one length share their compiled programs.
    room = -(-len(ids) // ROWS) * ROWS
    arrays = {n: aligned(np.resize(a, (room, *a.shape[1:]))) for n, a in data.arrays.items()}
    return dataclasses.replace(data, arrays=arrays)


def workload_of(data, model, work, algorithm=None, seed=0):
    """What is run: an algorithm (by default FedAvg) with this local work."""
    algorithm = algorithm or fedmom.Algorithm(fedmom.servers.fedavg())
    return fedmom.Workload(data, model, algorithm._replace(work=work), seed)
