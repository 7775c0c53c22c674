"""Where a run resumes: the newest checkpoint that is whole, with logs that reach it.

Everything is read and checked first. Only then is the folder touched, and what is no longer used
is kept next to what stays.
"""

from pathlib import Path
from typing import Any, NamedTuple

from fedmom.core.errors import FedMomError
from fedmom.core.files import write_atomic
from fedmom.core.types import Say
from fedmom.experiments import checkpoints, logs
from fedmom.experiments.checkpoints import NEWEST, PREVIOUS, Checkpoint, Pointer
from fedmom.experiments.logs import EVALS, ROUNDS, Log, LogRows

FOLDER = "checkpoint"


class FoundCheckpoint(NamedTuple):
    """A checkpoint to resume from, and the logs; ``fault`` says what is wrong with a newer one."""

    path: Path  # of the run
    checkpoint: Checkpoint
    pointer: Pointer
    logs: dict[str, Log]
    fault: str = ""

    def settle(self, say: Say) -> tuple[LogRows, LogRows]:
        """Cut the logs back to the checkpoint: later rounds are run again, to the same bits.

        Args:
            say: Called with a sentence if the newest checkpoint cannot be used.

        Returns:
            What is left of the rounds and of the evaluations.
        """
        if self.fault:
            say(
                f"{self.fault}. Resuming from the checkpoint before it, of round"
                f" {self.pointer.round}; later rounds are run again."
            )
            _put_newest_aside(self.path / FOLDER, self.pointer)
        done = self.pointer.round
        rounds, evals = (
            logs.cut(self.path / name, self.logs[name], self.logs[name].up_to(done))
            for name in (ROUNDS, EVALS)
        )
        return rounds, evals


def has_checkpoint(path: Path) -> bool:
    """Whether a run has written a checkpoint."""
    return any((path / FOLDER / name).exists() for name in (NEWEST, PREVIOUS))


def find(path: Path, template: Any, last_round: int) -> FoundCheckpoint | None:
    """Find the checkpoint to resume from, without touching anything.

    Args:
        path: The run's folder.
        template: A state of the run, whose form the checkpoint's must have.
        last_round: The run's number of rounds.

    Returns:
        The newest checkpoint that is whole; None if the run has none at all.

    Raises:
        FedMomError: A log has a bad line, or no checkpoint can be used.
    """
    if not has_checkpoint(path):
        return None
    read = {name: logs.read(path / name) for name in (ROUNDS, EVALS)}
    for name, log in read.items():
        logs.check_order(path / name, log)
    faults: list[str] = []
    for name in (NEWEST, PREVIOUS):
        file = path / FOLDER / name
        try:
            pointer = checkpoints.read_pointer(file)
            _check_place(path, file, pointer, read, last_round)
            checkpoint = checkpoints.load(file.parent, pointer, template)
            return FoundCheckpoint(path, checkpoint, pointer, read, "; ".join(faults))
        except FileNotFoundError:
            if name == NEWEST:
                faults.append(f"{file} is missing")
        except FedMomError as error:
            faults.append(str(error))
    raise FedMomError(
        f"{'; '.join(faults)}. Restore the file from a copy, or start again in another folder:"
        f" fedmom run --config {path / 'config.toml'}"
    )


def _check_place(
    path: Path, file: Path, pointer: Pointer, read: dict[str, Log], last_round: int
) -> None:
    """Refuse a round that the run does not have, or that its logs do not reach."""
    if pointer.round > last_round:
        raise FedMomError(
            f"{file} is of round {pointer.round}, but config.toml has rounds = {last_round}"
        )
    needed = {ROUNDS: pointer.round, **(pointer.lines or {})}
    for name, lines in needed.items():
        if name in read and len(read[name].rows) < lines:
            raise FedMomError(
                f"{path / name} has {len(read[name].rows)} whole lines, fewer than the {lines} of"
                f" its checkpoint of round {pointer.round}"
            )


def _put_newest_aside(folder: Path, used: Pointer) -> None:
    """Let ``checkpoint.json`` point to what is used; keep what it was, and its tensors."""
    for old in folder.glob("*.safetensors"):
        if old.name != used.tensors:
            old.rename(_free(old))
    if (folder / NEWEST).exists():
        write_atomic(_free(folder / NEWEST), (folder / NEWEST).read_bytes())
    write_atomic(folder / NEWEST, used.json())


def _free(path: Path) -> Path:
    """Return an unused name next to a file."""
    number = 1
    while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
        number += 1
    return aside
