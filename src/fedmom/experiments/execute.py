"""Running an experiment in its folder, or going on with one, until the last round."""

import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedmom.core.errors import BadReplyError, DivergedError, FedMomError
from fedmom.core.identity import label
from fedmom.core.types import Params, Say
from fedmom.experiments import logs, provenance, recovery
from fedmom.experiments.build import Experiment
from fedmom.experiments.checkpoints import Checkpoint
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.logs import EVALS, ROUNDS
from fedmom.experiments.recovery import FoundCheckpoint
from fedmom.experiments.results import Result
from fedmom.runtimes.base import Runtime, Snapshot
from fedmom.training.diagnostics import Diagnostics
from fedmom.training.evaluation import evaluate
from fedmom.training.loop import Record, State, broadcast_of, model_of

SECONDS_BETWEEN_CHECKPOINTS = 10.0
SPLITS = 2  # rows of an evaluation: train and test
ROWS_IN_MEMORY = 10_000  # rounds: of a longer run, the log is read at the end


@dataclass(frozen=True)
class Event:
    """What a callback is told after a round, and once before the first one.

    Args:
        round: Rounds done.
        record: The round, as it is logged; None before the first one.
        evals: The evaluation after it, by split, such as ``event.evals["test"]["loss"]``; empty
            if there was none.
        params: The model's parameters.
        path: The run's folder.

    Examples:
        >>> event = Event(0, None, {"test": {"loss": 2.3}}, params={}, path=Path("runs/first"))
        >>> event.evals["test"]["loss"]
        2.3
    """

    round: int
    record: Record | None
    evals: Mapping[str, Mapping[str, Any]]
    params: Params
    path: Path


# Returns a reason (or True) to end the run here, else None.
Callback = Callable[[Event], str | bool | None]


class Watcher(Protocol):
    """Whoever looks on: a progress bar, a plain log, TensorBoard."""

    def begin(self, experiment: Experiment, round_: int) -> None:
        """A run starts, or goes on after so many rounds."""

    def round(self, record: Record) -> None:
        """A round is done."""

    def evaluated(self, rows: list[dict[str, Any]]) -> None:
        """An evaluation is done."""


def warn(text: str) -> None:
    """Say something to a program: as a warning, at the line of the user's that called us."""
    level = 1
    while (frame := sys._getframe(level)).f_back and _is_ours(frame.f_globals):
        level += 1
    warnings.warn(text, stacklevel=level + 1)


def _is_ours(names: Mapping[str, Any]) -> bool:
    return str(names.get("__name__")).partition(".")[0] in ("fedmom", "contextlib")


def execute(
    folder: RunFolder,
    experiment: Experiment,
    watchers: Sequence[Watcher] = (),
    *,
    callbacks: Sequence[Callback] = (),
    accept_changes: bool = False,
    say: Say = warn,
    runtime: str | None = None,
    **runtime_options: Any,
) -> Result:
    """Run, or go on, until the last round. Whatever ends it, all finished rounds are kept.

    Args:
        folder: Where settings, logs and checkpoints are.
        experiment: What to run.
        watchers: Who is told of rounds and evaluations.
        callbacks: Functions of an ``Event``, called after every round. One that returns a reason
            ends the run there, as if Ctrl-C had been pressed: it can be resumed.
        accept_changes: Go on where data or settings are not those that the run was started with.
        say: Told what the user should know, such as that a checkpoint is damaged.
        runtime: Another runtime than that of the settings, this time.
        **runtime_options: Options of the runtime, where the settings do not give them.

    Returns:
        The result. A run that diverged or was ended is a result, too: its ``stop`` and ``why``
        say so.
    """
    clients = experiment.runtime(spec=runtime, **{"sums": experiment.takes_sums} | runtime_options)
    try:
        with folder.locked():
            execution = _Execution(folder, experiment, watchers, clients, callbacks)
            return execution.run(execution.begin(say, accept_changes=accept_changes))
    finally:
        clients.close()


class _Execution:
    """One run, from its checkpoint to its end."""

    def __init__(
        self,
        folder: RunFolder,
        experiment: Experiment,
        watchers: Sequence[Watcher],
        runtime: Runtime,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self._folder, self._experiment, self._watchers = folder, experiment, watchers
        self._callbacks = callbacks
        self._runtime, self._config = runtime, experiment.config
        self._diagnostics = _diagnostics(experiment, runtime)
        self._rounds: list[dict[str, Any]] = []
        self._evals: list[dict[str, Any]] = []
        self._is_long = False  # whether the rows of its rounds are left to the log
        self._saved = -1
        self._done = experiment.start()
        self._settled = True  # whether the state and the runtime are those of one round

    def run(self, done: State) -> Result:
        """Run from a state to the end."""
        self._done, stop = done, ("", "")
        try:
            stop = ("stopped", self._go_on())
        except (DivergedError, BadReplyError) as error:
            stop = ("diverged" if isinstance(error, DivergedError) else "stopped", str(error))
        finally:
            if self._settled:
                self._save(self._done)
        if self._done.round == self._config.rounds:
            stop = ("", "")  # whatever a callback said of the last round
        else:
            self._folder.note_stop(*stop)
        versions, path = self._folder.versions(), self._folder.path
        rounds = logs.read(path / ROUNDS).rows if self._is_long else self._rounds
        return Result(path, self._config, self._evals, rounds, versions, *stop)

    def _go_on(self) -> str:
        """Do the rounds that are left; return why a callback has ended them, if one has."""
        saved_at = time.monotonic()
        watched: Runtime = self._diagnostics or self._runtime
        for state, record in self._experiment.train(self._done, watched, commit=False):
            self._log(state, record)
            due = state.round % self._config.eval_every == 0
            if due or state.round == self._config.rounds:
                self._evaluate(state)
            # From here on the round counts. Stopped before, the checkpoint is that of the round
            # before, of the clients as well as of the server.
            self._settled = False
            self._runtime.commit()
            self._done, self._settled = state, True
            if due or time.monotonic() - saved_at > SECONDS_BETWEEN_CHECKPOINTS:
                self._save(state)
                saved_at = time.monotonic()
            if why := self._asked_to_stop(state, record):
                return why
        return ""

    def begin(self, say: Say, *, accept_changes: bool) -> State:
        """Return the state to go on from: the checkpoint's, or a new one, evaluated and saved.

        Whatever may refuse it comes first. Until then, nothing in the folder is touched.
        """
        path, data, fresh = self._folder.path, self._experiment.data, self._done
        if not recovery.has_checkpoint(path):
            provenance.record(path, self._config, data)
            return self._begin_anew(fresh, say)
        changes = provenance.check(path, self._config, data, accept=accept_changes)
        found = recovery.find(path, fresh, self._config.rounds)
        assert found is not None
        self._restore_runtime(found)
        self._rounds, self._evals = self._folder.go_on(found, say)
        done = found.checkpoint.state
        if changes:
            provenance.accept(path, done.round, changes, self._config, data)
        self._tell_begin(done)
        self._saved = done.round
        return done

    def _asked_to_stop(self, state: State, record: Record | None) -> str:
        """Call the callbacks; return why the first of them wants the run to end, if one does."""
        if not self._callbacks:
            return ""
        rows = [row for row in self._evals[-SPLITS:] if row["round"] == state.round]
        model = model_of(self._experiment.algorithm, state)
        evals = {row["split"]: row for row in rows}
        event = Event(state.round, record, evals, model, self._folder.path)
        for callback in self._callbacks:
            if reason := callback(event):
                return reason if isinstance(reason, str) else f"{label(callback)} ended the run."
        return ""

    def _begin_anew(self, fresh: State, say: Say) -> State:
        self._folder.begin_anew(say)
        self._tell_begin(fresh)
        self._evaluate(fresh)
        self._save(fresh)
        self._asked_to_stop(fresh, None)  # told only: a run has one round at least
        return fresh

    def _tell_begin(self, state: State) -> None:
        self._folder.forget_stop()
        for watcher in self._watchers:
            watcher.begin(self._experiment, state.round)

    def _restore_runtime(self, found: FoundCheckpoint) -> None:
        state, tensors = found.checkpoint
        try:
            self._runtime.restore(
                Snapshot(tensors), broadcast_of(self._experiment.algorithm, state)
            )
        except (LookupError, TypeError, ValueError) as error:
            raise FedMomError(
                f"{self._folder.path}: the client states of the checkpoint of round {state.round}"
                f" do not fit this run ({error}). Start it again in another folder."
            ) from None

    def _log(self, state: State, record: Record) -> None:
        row = record.row()
        if self._diagnostics and (numbers := self._diagnostics.of(record, state.params)):
            row["diagnostics"] = numbers
        self._is_long = self._is_long or len(self._rounds) >= ROWS_IN_MEMORY
        if self._is_long:
            self._rounds.clear()
        else:
            self._rounds.append(row)
        self._folder.append(ROUNDS, [row])
        for watcher in self._watchers:
            watcher.round(record)

    def _evaluate(self, state: State) -> None:
        samples = self._config.eval_samples
        budget = None if samples == "all" else int(samples)
        model = model_of(self._experiment.algorithm, state)
        rows = [
            evaluate(self._runtime, model, split, budget).row(state.round, split)
            for split in self._runtime.splits
        ]
        self._evals += rows
        self._folder.append(EVALS, rows)
        for watcher in self._watchers:
            watcher.evaluated(rows)

    def _save(self, state: State) -> None:
        if state.round != self._saved:
            self._folder.save(Checkpoint(state, self._runtime.snapshot().tensors))
            self._saved = state.round


def _diagnostics(experiment: Experiment, runtime: Runtime) -> Diagnostics | None:
    """Return the diagnostics of the run, if they are asked for."""
    config, rule = experiment.config, experiment.algorithm.rule
    if config.diagnostics_every is None or rule is None:
        return None
    return Diagnostics(
        runtime,
        experiment.data,
        experiment.model,
        experiment.work,
        every=config.diagnostics_every,
        rule=rule,
        seed=config.seed,
    )
