"""Worker processes: they are started, given jobs, and replaced when they end."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.runtimes.pytorch.memory import Memory, Place
from fedmom.runtimes.pytorch.worker import Answer

AHEAD = 2  # jobs that a worker has: one that it does, and one so that it need not wait
TRIES = 2  # workers that a job may end
START = """import sys
sys.path[:] = {path!r}
from fedmom.runtimes.pytorch.worker import main
main({given})"""


@dataclass(eq=False)
class TorchJob:
    """What a worker is asked, whose it is, and how many workers have ended over it."""

    message: Any
    owner: Any = None
    ended: int = 0


@dataclass(eq=False)
class _Worker:
    process: "subprocess.Popen[bytes]"
    connection: Connection
    jobs: deque[TorchJob] = field(default_factory=deque)
    is_ready: bool = False


class Pool:
    """Processes that answer jobs, in any order.

    They are no children of ``multiprocessing``, which would run the user's script once more in
    each. When this process ends, however it does, so do they.

    Args:
        setup: The pickled ``Setup``.
        shared: The shared memory.
        outputs: Where in it each worker's outputs go; there are as many workers.
    """

    def __init__(self, setup: bytes, shared: Memory, outputs: Sequence[int]) -> None:
        self._setup = Memory.new(max(1, len(setup)))
        self._setup.array(Place(0, (len(setup),), "u1"))[:] = memoryview(setup)
        self._shared, self._outputs = shared, outputs
        self._processes: list[subprocess.Popen[bytes]] = []
        self._end = weakref.finalize(self, _end, self._processes)
        self._workers = [self._started(place) for place in outputs]
        self._idle: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(len(outputs)):
            self._idle.put(number)

    @property
    def room(self) -> int:
        """How many jobs more there is room for."""
        return sum(max(0, AHEAD - len(worker.jobs)) for worker in self._workers)

    @property
    def is_busy(self) -> bool:
        """Whether there are jobs under way."""
        return any(worker.jobs for worker in self._workers)

    @property
    def processes(self) -> list[int]:
        """The ids of the processes."""
        return [worker.process.pid for worker in self._workers]

    def submit(self, job: TorchJob) -> None:
        """Give a job to the worker that has the fewest."""
        self._send(min(self._workers, key=lambda worker: len(worker.jobs)), job)

    def receive(self, timeout: float | None = None) -> list[tuple[TorchJob, Answer]] | None:
        """Wait until a worker says something; return the jobs that are answered.

        Returns:
            The jobs with their answers, none where a worker has begun; None after the timeout.
        """
        connections = {worker.connection: at for at, worker in enumerate(self._workers)}
        heard = wait(list(connections), timeout)
        answered: list[tuple[TorchJob, Answer]] = []
        for ready in heard:
            at = connections[ready]  # type: ignore[index]
            worker = self._workers[at]
            answer = _received(worker)
            if answer is None:
                answered += self._replace(at)
            elif not worker.is_ready:
                _begin(worker, answer)
            else:
                answered.append((worker.jobs.popleft(), answer))
        return answered if heard else None

    def call(self, message: Any) -> tuple[int, Answer]:
        """Ask for one answer, from any thread, while no jobs are under way.

        Returns:
            The worker's number, which ``free`` takes back once its outputs are read; and what it
            said.
        """
        at = self._idle.get()
        try:
            for _ in range(TRIES):
                if (answer := self._called(at, message)) is not None:
                    return at, answer
            raise FedMomError("A worker process of the runtime torch ended twice in an evaluation.")
        except BaseException:
            self.free(at)
            raise

    def free(self, at: int) -> None:
        """Let a worker answer the next call."""
        self._idle.put(at)

    def close(self) -> None:
        """End the processes."""
        self._end()
        for worker in self._workers:
            worker.connection.close()
        self._setup.close()

    def _called(self, at: int, message: Any) -> Answer | None:
        worker = self._workers[at]
        job = TorchJob(message, ended=TRIES)  # not asked again by ``_replace``
        self._send(worker, job)
        while (answer := _received(worker)) is not None and not worker.is_ready:
            _begin(worker, answer)
        worker.jobs.clear()
        if answer is None:
            self._replace(at)
        return answer

    def _send(self, worker: _Worker, job: TorchJob) -> None:
        worker.jobs.append(job)
        with contextlib.suppress(OSError):  # it has ended, which ``receive`` finds
            worker.connection.send(job.message)

    def _replace(self, at: int) -> list[tuple[TorchJob, Answer]]:
        """Start another process in place of one that has ended, with its jobs.

        Returns:
            The job that has ended too many, if one has.
        """
        lost = self._workers[at]
        code = lost.process.wait()
        lost.connection.close()
        _close(lost.process)
        self._processes.remove(lost.process)
        if not lost.is_ready:
            raise FedMomError(
                f"A worker process of the runtime torch could not start: {_why(code)}. What it said"
                " is above."
            )
        self._workers[at] = self._started(self._outputs[at])
        failed = []
        for number, job in enumerate(lost.jobs):
            job.ended += number == 0  # it was at work on the first
            if job.ended >= TRIES:
                reason = f"its worker process ended twice, with {_why(code)}"
                failed.append((job, Answer(reason=reason)))
            else:
                self._send(self._workers[at], job)
        return failed

    def _started(self, place: int) -> _Worker:
        ours, theirs = Pipe()
        given = [theirs.fileno(), self._shared.descriptor, self._setup.descriptor]
        numbers = ", ".join(map(str, [*given, place]))
        process = subprocess.Popen(
            [sys.executable, "-c", START.format(path=sys.path, given=numbers)],
            stdin=subprocess.PIPE,  # its end tells the worker to end
            pass_fds=given,
            process_group=0,  # Ctrl-C is for this process
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self._processes.append(process)
        return _Worker(process, ours)


def _received(worker: _Worker) -> Answer | None:
    """Return what a worker says; None if it has ended."""
    try:
        return worker.connection.recv()
    except (EOFError, OSError):
        return None


def _begin(worker: _Worker, answer: Answer) -> None:
    if answer.reason:
        raise FedMomError(f"A worker process cannot load the PyTorch module: {answer.reason}.")
    worker.is_ready = True


def _why(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _end(processes: list["subprocess.Popen[bytes]"]) -> None:
    """End processes; they hold nothing that is not elsewhere."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        _close(process)


def _close(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
