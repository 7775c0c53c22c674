"""The numbers of a run's logs as TensorBoard event files, in the run's folder."""

from functools import partial
from pathlib import Path
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.types import LOWER_IS_BETTER
from fedmom.experiments.events import Event


class TensorBoard:
    """An observer of one run that writes TensorBoard files.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise FedMomError(
                "TensorBoard files need an extra: pip install 'fedmom[tensorboard]'."
            ) from None
        self._writer_at: Any = partial(SummaryWriter, str(folder / "tensorboard"))
        self._writer: Any = None

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def __call__(self, event: Event) -> None:
        """Write the numbers of a round and its evaluation."""
        if self._writer is None:  # rounds after the checkpoint will be written again
            # With a suffix, or what began in the same second would be the same file.
            purge, suffix = event.round + 1, f".{event.round}"
            self._writer = self._writer_at(purge_step=purge, filename_suffix=suffix)
        if record := event.record:
            numbers = {
                name: getattr(record, name)
                for name in ("train_loss", "update_norm", "seconds", "bytes_up", "bytes_down")
            }
            self._add("round", {**numbers, **record.metrics}, event.round)
        for split, row in event.evals.items():
            kept = {k: v for k, v in row.items() if k not in ("round", "split", LOWER_IS_BETTER)}
            self._add(split, kept, event.round)
        if event.evals:
            self._writer.flush()

    def _add(self, group: str, numbers: dict[str, Any], round_: int) -> None:
        for name, value in numbers.items():
            if value is not None:
                self._writer.add_scalar(f"{group}/{name}", value, round_)
