"""Run an experiment in its folder, or resume it, until the last round."""

import contextlib
import copy
import itertools
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedmom.core.arguments import short
from fedmom.core.errors import BadReplyError, DivergedError, FedMomError
from fedmom.core.files import locked
from fedmom.core.identity import label
from fedmom.core.types import Params, Say
from fedmom.experiments import checkpoints, logs, provenance
from fedmom.experiments.build import Experiment
from fedmom.experiments.checkpoints import Checkpoint, Tensors
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.logs import EVALS, ROUNDS
from fedmom.experiments.observers import Event, Observers, TensorBoard
from fedmom.experiments.results import Result, faults_of
from fedmom.runtimes.base import Runtime, Snapshot
from fedmom.training.evaluation import evaluate
from fedmom.training.loop import Record, State, broadcast_of, model_of

SECONDS_BETWEEN_CHECKPOINTS = 10.0
FRUITLESS = 10  # rounds in a row, in which every reply was rejected, end a run
ROWS_IN_MEMORY = 10_000  # rounds: of a longer run, the log is read at the end


def warn(text: str) -> None:
    """Say something to a program: as a warning, at the line of the user's that called us."""
    level, ours = 1, ("fedmom", "contextlib")
    while (frame := sys._getframe(level)).f_back:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in ours:
            break
        level += 1
    warnings.warn(text, stacklevel=level + 1)


def execute(
    folder: RunFolder,
    experiment: Experiment,
    observers: Observers = (),
    *,
    accept_changes: bool = False,
    say: Say = warn,
    runtime: str | None = None,
    checkpoint_seconds: float | None = None,
    **runtime_options: Any,
) -> Result:
    """Run, or resume, until the last round. Whatever ends it, all finished rounds are kept.

    Args:
        folder: Where settings, logs and checkpoints are.
        experiment: What to run.
        observers: Functions of an ``Event``, called before the first round and after every round.
            If one returns a reason, the run ends there and can be resumed.
        accept_changes: Resume although data or settings are not those that the run was started
            with.
        say: Told what the user should know, such as that a checkpoint is damaged.
        runtime: Another runtime than that of the settings, this time.
        checkpoint_seconds: The longest time between checkpoints, 10 s by default; 0 for one after
            every round.
        **runtime_options: Options of the runtime, where the settings do not give them.

    Returns:
        The result. A run that diverged or was ended is a result, too: its ``stop`` and ``why``
        say so, and its ``error`` is the one that ended it.
    """
    clients = experiment.runtime(spec=runtime, **runtime_options)
    with contextlib.ExitStack() as stack:
        stack.callback(clients.close)
        if experiment.config.tensorboard:
            observers = [stack.enter_context(TensorBoard(folder.path)), *observers]
        stack.enter_context(locked(folder.path))
        execution = _Execution(folder, experiment, observers, clients)
        if checkpoint_seconds is not None:
            execution.checkpoint_seconds = checkpoint_seconds
        execution.begin(say, accept_changes=accept_changes)
        return execution.run()


class _Execution:
    """One run, from its checkpoint to its end."""

    def __init__(
        self, folder: RunFolder, experiment: Experiment, observers: Observers, runtime: Runtime
    ) -> None:
        self._folder, self._experiment, self._observers = folder, experiment, observers
        self._runtime, self._config = runtime, experiment.config
        self._diagnostics = experiment.diagnostics()
        self._rounds: list[dict[str, Any]] = []
        self._evals: list[dict[str, Any]] = []
        self._is_long = False  # whether the rows of its rounds are left to the log
        self._saved = -1
        self._done = experiment.start()
        self._settled = True  # whether the state and the runtime are those of one round
        self.checkpoint_seconds = SECONDS_BETWEEN_CHECKPOINTS

    def run(self) -> Result:
        """Run to the end."""
        stop, ended_by = ("", ""), None
        try:
            stop = ("stopped", self._play())
        except (DivergedError, BadReplyError) as error:
            stop = ("diverged" if isinstance(error, DivergedError) else "stopped", str(error))
            ended_by = error
        finally:
            if self._settled:
                self._save(self._done)
        if self._done.round == self._config.rounds:
            stop = ("", "")  # whatever an observer said of the last round
        else:
            self._folder.note_stop(*stop)
        versions, path = self._folder.versions(), self._folder.path
        rounds = logs.read(path / ROUNDS).rows if self._is_long else self._rounds
        return Result(path, self._config, self._evals, rounds, versions, *stop, error=ended_by)

    def _play(self) -> str:
        """Do the rounds that are left; return why an observer has ended them, if one has."""
        saved_at = time.monotonic()
        fruitless = _fruitless(self._rounds)
        how: dict[str, Any] = {"commit": False, "watch": self._diagnostics}
        for state, record in self._experiment.train(self._done, self._runtime, **how):
            fruitless = fruitless + 1 if _is_fruitless(record.row()) else 0
            if fruitless >= min(FRUITLESS, self._config.rounds):
                raise BadReplyError(_why_fruitless(record, fruitless))
            self._log(state, record)
            due = state.round % self._config.eval_every == 0
            is_last = state.round == self._config.rounds
            evals = self._evaluate(state) if due or is_last else []
            # From here on the round counts. Stopped before, the checkpoint is that of the round
            # before, of the clients as well as of the server.
            self._settled = False
            self._runtime.commit()
            self._done, self._settled = state, True
            if due or time.monotonic() - saved_at >= self.checkpoint_seconds:
                self._save(state)
                saved_at = time.monotonic()
            if why := self._tell(state, record, evals):
                return why
        return ""

    def begin(self, say: Say, *, accept_changes: bool) -> None:
        """Take the state to start from: the checkpoint's, or a new one, evaluated and saved.

        Whatever may refuse it comes first. Until then, nothing in the folder is touched.
        """
        path, data, fresh = self._folder.path, self._experiment.data, self._done
        if not checkpoints.has_checkpoint(path):
            provenance.record(path, self._config, data)
            self._folder.begin_anew(say)
            evals = self._evaluate(fresh)
            self._save(fresh)
            self._tell(fresh, evals=evals)
            return
        changes = provenance.check(path, self._config, data, accept=accept_changes)
        found = checkpoints.find(path, fresh, self._config.rounds)
        self._restore_runtime(*found.checkpoint)
        self._rounds, self._evals = self._folder.cut_back(found, say)
        self._done = found.checkpoint.state
        if changes:
            provenance.accept(path, self._done.round, changes, self._config, data)
        self._saved = self._done.round
        self._tell(self._done)  # a reason to stop does not count yet: one round is run at least

    def _tell(
        self, state: State, record: Record | None = None, evals: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Tell all observers; return why the first of them wants the run to end, if one does."""
        event = Event(
            state.round,
            record,
            {row["split"]: copy.deepcopy(row) for row in evals},  # observers may change theirs
            self._folder.path,
            lambda: self._params(state),
        )
        told = [(observer, observer(event)) for observer in self._observers]
        for observer, why in told:
            if not isinstance(why, str | bool | np.bool_ | None):
                raise FedMomError(
                    f"The callback {label(observer)} returns {short(why)}. It must return None, or"
                    " True or a reason to end the run."
                )
            if why:
                return why if isinstance(why, str) else f"{label(observer)} ended the run."
        return ""

    def _params(self, state: State) -> Params:
        """Return the parameters, in lists and dicts that an observer may change."""
        workload = self._experiment.workload
        return jax.tree.map(lambda leaf: leaf, workload.merged(model_of(workload, state)))

    def _restore_runtime(self, state: State, tensors: Tensors) -> None:
        try:
            self._runtime.restore(Snapshot(tensors), broadcast_of(self._experiment.workload, state))
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

    def _evaluate(self, state: State) -> list[dict[str, Any]]:
        samples = self._config.eval_samples
        budget = None if samples == "all" else int(samples)
        model = model_of(self._experiment.workload, state)
        try:
            rows = [
                evaluate(self._runtime, model, split, budget).row(state.round, split)
                for split in self._runtime.splits
            ]
        except DivergedError:
            if state.round:
                raise
            raise FedMomError(
                "The loss of the first model is not finite, before any training. Check the model's"
                " init, its loss and the data: no learning rate changes that."
            ) from None
        self._evals += rows
        self._folder.append(EVALS, rows)
        return rows

    def _save(self, state: State) -> None:
        if state.round != self._saved:
            self._folder.save(Checkpoint(state, self._runtime.snapshot().tensors))
            self._saved = state.round


def _is_fruitless(row: Mapping[str, Any]) -> bool:
    """Return whether a round had no step because replies were rejected, or too few.

    Not one that had no reply only because the world is as it is.
    """
    too_few = "server/too_few_replies" in row.get("metrics", {})
    return too_few or (bool(faults_of(row)) and not row.get("replies"))


def _fruitless(rounds: Sequence[Mapping[str, Any]]) -> int:
    """Return in how many rounds, up to the last one, every reply was rejected."""
    return len(list(itertools.takewhile(_is_fruitless, reversed(rounds))))


def _why_fruitless(record: Record, rounds: int) -> str:
    if record.replies:
        return (
            f"In {rounds} rounds in a row fewer replies came than the rule of aggregate needs (the"
            f" last time {record.replies}), so the model was not changed. Use more clients per"
            " round, or a rule for fewer attackers, and resume the run."
        )
    client, reason = faults_of(record.row())[-1]
    return (
        f"Every reply was rejected in {rounds} rounds in a row (client {client}: {reason}). Fix"
        " the clients, or the settings, and resume the run."
    )
