"""A SuperNode for training, as ``fedmom deploy device`` starts it: Flower's own, in less time.

Flower's SuperNode looks for messages every three seconds and starts a new Python for each of them,
which costs seconds more. This one looks often during a run and has a worker that has loaded
everything: each message is still handled in a new process, forked from it. The worker sleeps until
it is called through a pipe, where Flower's would ask many times a second.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from flwr.app import Error

EAGER_SECONDS = 30.0  # after a message: the next one is likely to come soon
EAGER_LOOKS, LOOKS_FOR_REPLY = 0.25, 0.05  # seconds between looks
CALL_AGAIN = 0.5  # seconds after which a call is repeated, in case that nobody took the message
MOST_CALLS = 4096  # that are answered at once
CLIENT_TASK = "flwr-clientapp"


class EagerTime:
    """The module ``time``, as the SuperNode's loop sees it: its pauses are shorter in a run.

    It sleeps half a second while it waits for its own client's reply, and three when there is
    nothing to do.

    Args:
        call: Called while it waits: there is a message to be handled.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._busy = self._called = -EAGER_SECONDS
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Sleep as long as makes sense."""
        now = time.monotonic()
        if seconds < 1:
            if now - self._busy > 2 * LOOKS_FOR_REPLY or now - self._called > CALL_AGAIN:
                self._call()
                self._called = now
            self._busy = now
            time.sleep(LOOKS_FOR_REPLY)
        else:
            time.sleep(EAGER_LOOKS if now - self._busy < EAGER_SECONDS else seconds)


def main() -> None:
    """Run a SuperNode with the command line of ``flower-supernode``, and its worker."""
    parent = os.getppid()
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    port = sys.argv[sys.argv.index("--port") + 1]
    worker = [sys.executable, "-m", "fedmom.flower.node", "--work", f"127.0.0.1:{port}"]
    # It ends with this process, for then the pipe is closed.
    working = subprocess.Popen([*worker, str(os.getpid())], stdin=subprocess.PIPE)
    threading.Thread(target=_end_with, args=(working,), daemon=True).start()
    setattr(start_client_internal, "time", EagerTime(_caller(working)))  # noqa: B010
    sys.argv += ["--isolation", "process"]
    start_parent_process_monitor(parent)  # it ends with who has started it
    flower_supernode()


def _caller(worker: "subprocess.Popen[bytes]") -> Callable[[], None]:
    """Return a function that wakes the worker up; calls that find the pipe full are not needed."""
    assert worker.stdin is not None
    pipe = worker.stdin.fileno()
    os.set_blocking(pipe, False)

    def call() -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(pipe, b".")

    return call


def _end_with(worker: "subprocess.Popen[bytes]") -> None:
    """End this process when its worker has: nobody would handle its messages."""
    worker.wait()
    os.kill(os.getpid(), signal.SIGTERM)


def work(address: str, parent: int) -> None:
    """Handle a SuperNode's messages, each in a process forked from this one, whenever it calls.

    Args:
        address: The SuperNode's Runtime API.
        parent: The SuperNode's process; a client's process ends with it.
    """
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime import run_clientapp as handler

    # What ends the SuperNode is sent to all of its group. Were this process to end first, the
    # SuperNode would not come to tell the server that the device leaves.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    setattr(handler, "Error", by_name)  # noqa: B010
    _load()
    client = RuntimeHttpClient.from_server_address(
        address,
        True,
        None,
        [RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    request = AcquireTaskRequest(supported_task_types=[CLIENT_TASK])
    while os.read(0, MOST_CALLS):
        # All that there are: a message of a run that died meanwhile has a task, too, whose process
        # waits for content that never comes.
        while (task := client.AcquireTask(request)).HasField("task") and task.token:
            if os.fork() == 0:
                handler.run_clientapp(address, task.token, True, parent_pid=parent)
        _bury()


def _bury() -> None:
    """Let go of the processes that have ended."""
    with contextlib.suppress(ChildProcessError):  # there are none
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def by_name(code: int, reason: str) -> Error:
    """Return an error as a server is told of it: Flower's text of an exception is cut to its type.

    Args:
        code: Flower's code of the error.
        reason: Flower's text: for an exception, its type, a colon, and what it says, which may
            be data or paths.
    """
    return Error(code, reason.partition(":<")[0])


def _load() -> None:
    """Load what clients need. JAX starts no thread before it computes, so forks are safe."""
    import warnings

    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    from fedmom.core.compilation import prepare_process

    prepare_process()
    import fedmom.experiments.build
    import fedmom.flower.device
    import fedmom.runtimes.devices.client  # noqa: F401

    # JAX warns at every fork, since it cannot know that it has not been used yet.
    warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        main()
