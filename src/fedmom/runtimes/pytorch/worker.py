"""A process that trains clients in PyTorch, one after another. It does not load JAX."""

import os
import pickle
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedmom.models.torch_calls import Channels
from fedmom.runtimes.pytorch import memory
from fedmom.runtimes.pytorch.memory import Mapped, Memory, Place
from fedmom.runtimes.pytorch.training import TorchSamples, Trainer, Work


class Setup(NamedTuple):
    """What a worker needs for a whole run.

    Args:
        module: The module.
        channels: Where the channels of its inputs are.
        channels_last: Whether PyTorch shall lay channels behind images, which is faster.
        params: Where a slot of the shared memory has the parameters that are trained.
        buffers: Where it has the buffers.
        outputs: Where the outputs of samples go.
        window: The symbols in an input of text.
        arrays: The samples of all clients: in the shared memory, or in files.
        work: What clients do.
        sends_update: Whether a client's result is its update, and not what it has trained.
    """

    module: torch.nn.Module
    channels: Channels
    channels_last: bool
    params: dict[str, Place]
    buffers: dict[str, Place]
    outputs: Place
    window: int
    arrays: dict[str, Place | Mapped]
    work: Work
    sends_update: bool


class Training(NamedTuple):
    """A client's round. The model comes from one slot, and goes to another."""

    model: int
    result: int
    words: tuple[int, int]
    start: int
    size: int
    steps: int
    lr: float


class Scoring(NamedTuple):
    """Samples whose outputs are wanted."""

    model: int
    positions: NDArray[np.int64]


class Answer(NamedTuple):
    """What a worker says: a client's mean loss and its update's norm, or why there is none."""

    loss: float | None = None
    norm: float | None = None
    reason: str = ""


class TorchWorker:
    """Answers jobs.

    Args:
        setup: What it needs.
        shared: The shared memory.
    """

    def __init__(self, setup: Setup, shared: Memory) -> None:
        self._shared, self._setup = shared, setup
        module = setup.module
        if setup.channels_last:
            module = module.to(memory_format=torch.channels_last)
        arrays = {
            name: shared.array(at) if isinstance(at, Place) else memory.opened(at)
            for name, at in setup.arrays.items()
        }
        samples = TorchSamples(arrays, setup.window, setup.channels)
        self._trainer = Trainer(module, list(setup.params), setup.work, samples)
        has = dict(module.named_buffers())
        own = [p.detach() for p in self._trainer.params]
        self._tensors = [*own, *(has[name] for name in setup.buffers)]
        self._slots: dict[int, list[torch.Tensor]] = {}

    def answer(self, job: Training | Scoring) -> Answer:
        """Do a job; an error becomes its reason."""
        try:
            torch._foreach_copy_(self._tensors, self._slot(job.model))
            if isinstance(job, Scoring):
                outputs = self._trainer.outputs(job.positions)
                self._shared.array(self._setup.outputs)[: len(outputs)] = outputs
                return Answer()
            words = np.array(job.words, np.uint32)
            loss = self._trainer.train(words, job.start, job.size, job.steps, job.lr)
            if not self._setup.sends_update:
                torch._foreach_copy_(self._slot(job.result), self._tensors)
                return Answer(loss)
            update = torch._foreach_sub(self._slot(job.model), self._tensors)
            torch._foreach_copy_(self._slot(job.result), update)
            norms = torch.stack(torch._foreach_norm(update))
            return Answer(loss, float(torch.linalg.vector_norm(norms)))
        except Exception as error:  # of the user's module
            return Answer(reason=told(error))

    def _slot(self, base: int) -> list[torch.Tensor]:
        if base not in self._slots:
            places = {**self._setup.params, **self._setup.buffers}
            arrays = self._shared.arrays(places, base).values()
            self._slots[base] = [torch.from_numpy(array) for array in arrays]
        return self._slots[base]


def told(error: BaseException) -> str:
    """Return what was raised, and the line of the user's file that raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    said = str(error).strip().partition("\n")[0].removesuffix(".")
    return f"{type(error).__name__}: {said} ({frames[-1].filename}, line {frames[-1].lineno})"


def main(pipe: int, shared: int, setup: int, outputs: int) -> None:
    """Answer jobs until the pipe is closed.

    Args:
        pipe: The descriptor of the pipe.
        shared: That of the shared memory.
        setup: That of the pickled ``Setup``, which only the process that starts this one can write.
        outputs: Where in the shared memory this worker's outputs go.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    connection = Connection(pipe)
    try:
        sizes = [os.fstat(descriptor).st_size for descriptor in (shared, setup)]
        content = Memory(setup, sizes[1]).array(Place(0, (sizes[1],), "u1"))
        found: Setup = pickle.loads(content.data)
        place = found.outputs._replace(offset=outputs)
        worker = TorchWorker(found._replace(outputs=place), Memory(shared, sizes[0]))
    except Exception as error:
        connection.send(Answer(reason=told(error)))
        return
    connection.send(Answer())
    while True:
        try:
            job: Any = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(worker.answer(job))


def _end_with_parent() -> None:
    """End when the process that started this one has ended: its end of the pipe is closed then."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)
