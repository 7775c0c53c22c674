"""The virtual environments of the peers: each its own, made once, in the cache folder."""

import subprocess
import sys
from pathlib import Path

from fedmom.core.files import cache_folder

TORCH = "torch==2.13.0"  # first and by itself, so that nothing else chooses one

# What pip is told, call by call, to make each environment; and what to report of it.
ENVIRONMENTS = {
    "torch": [[TORCH, "numpy"]],
    "pfl": [[TORCH], [TORCH, "pfl==0.6.0"]],
    "fedjax": [["fedjax==0.0.17"]],
    "flower": [[TORCH], [TORCH, "flwr[simulation]==1.41.*"]],
    # What TFF 0.87 asks for cannot be had together any more (jaxlib 0.4.14 is gone), so its
    # requirements are given by hand.
    "tff": [
        [
            "setuptools<70",
            "tensorflow==2.14.1",
            "jax==0.4.13",
            "jaxlib==0.4.13",
            "dm-tree==0.1.8",
            "attrs~=23.1",
            "tensorflow-probability==0.22.1",
            "cachetools~=5.3",
            "portpicker~=1.6",
            "tqdm",
            "scikit-learn",
            "googleapis-common-protos==1.61.0",
        ],
        [
            "--no-deps",
            "dp-accounting==0.4.3",
            "google-vizier==0.1.11",
            "tensorflow-privacy==0.9.0",
            "tensorflow-model-optimization==0.7.5",
            "tensorflow-federated==0.87.0",
        ],
    ],
}


def home() -> Path:
    """Where environments, compilations and results are kept."""
    return cache_folder() / "benchmarks"


def make_environment(name: str) -> str | None:
    """Make a peer's environment where there is none; return what went wrong."""
    folder = home() / name
    if (folder / "complete").exists():
        return None
    calls = [[sys.executable, "-m", "venv", "--clear", str(folder)]]
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    calls += [[*pip, *packages] for packages in ENVIRONMENTS[name]]
    for call in calls:
        done = subprocess.run(call, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
            return (errors or done.stderr.splitlines() or ["no message"])[-1]
    (folder / "complete").touch()
    return None
