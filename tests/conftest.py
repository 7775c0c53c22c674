"""Shared by all tests: small populations, and a machine that stays as it is."""

import os
import tempfile

# One compilation serves all tests, and the processes they start. Before JAX is imported.
_COMPILED = tempfile.TemporaryDirectory(prefix="fedmom-compiled-")
os.environ["JAX_COMPILATION_CACHE_DIR"] = _COMPILED.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from fedmom import from_arrays  # noqa: E402

# Compilation makes first examples slow; nothing here is about time.
settings.register_profile("fedmom", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("fedmom")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FEDMOM_CACHE", str(tmp_path_factory.mktemp("cache")))


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
    return from_arrays(x, y, ids, is_test=is_test)
